"""Finds runs of equal layers in a sequence of operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# Periods that are tried.
_MOST_PERIODS = 8
# Elements that have to be left out, or a run is not worth folding.
_LEAST_SAVED = 6


@dataclass(frozen=True)
class Repeat:
    """A part of a sequence that says the same several times."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Index of the first element after it."""
        return self.start + self.period * self.count


def find_repeats(signatures: Sequence[Hashable]) -> list[Repeat]:
    """The repeats of a sequence, in order and apart from each other.

    The longest one is found first, then those before and behind it. Only the most frequent
    distances of equal elements are tried as periods, so it takes linear time but for the depth of
    this recursion.

    Example:
        >>> find_repeats("xabcabcabcy")
        [Repeat(start=1, period=3, count=3)]
    """
    found: list[Repeat] = []
    todo = [(0, len(signatures))]
    while todo:
        start, end = todo.pop()
        best = _longest(signatures, start, end)
        if best is not None:
            found.append(best)
            todo += [(start, best.start), (best.end, end)]
    return sorted(found, key=lambda each: each.start)


def _longest(signatures: Sequence[Hashable], start: int, end: int) -> Repeat | None:
    best: Repeat | None = None
    for period in _periods(signatures, start, end):
        run = 0
        for at in range(start, end):
            is_equal = at + period < end and signatures[at] == signatures[at + period]
            run = run + 1 if is_equal else 0
            count = run // period + 1
            first = at + 1 - run
            # Of equally long ones the shortest period says most.
            if (count - 1) * period < _LEAST_SAVED:
                continue
            if best is None or count * period > best.period * best.count:
                best = Repeat(first, period, count)
    return best


def _periods(signatures: Sequence[Hashable], start: int, end: int) -> list[int]:
    last: dict[Hashable, int] = {}
    distances: Counter[int] = Counter()
    for at in range(start, end):
        if signatures[at] in last:
            distances[at - last[signatures[at]]] += 1
        last[signatures[at]] = at
    likely = [period for period, _ in distances.most_common(_MOST_PERIODS)]
    return sorted(likely)
