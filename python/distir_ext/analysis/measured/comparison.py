"""Compares predicted times of kernels and collectives with measured ones.

A prediction is an estimate or a simulated timeline, and a measurement is a profile. The result has
a row for each variable with both times and their ratio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from distir_ext.analysis.costs import Estimate, ProgramEstimate
from distir_ext.analysis.timelines.timeline import Timeline
from distir_ext.session.profile import Profile
from distir_ext.text.display import Printed
from distir_ext.text.errors.tracebacks import short_tracebacks


@dataclass(frozen=True)
class ComparedRow:
    """A kernel or a collective of a program, by the variable that it gives."""

    function: str
    """The function of the lowered module; empty beside a timeline, which does not say it."""

    name: str
    """The variable."""

    kind: str
    """``"kernel"`` or ``"collective"``."""

    callee: str
    """The kernel, or the kind of the collective, as it was measured."""

    predicted: float
    """Seconds in one call of the entry function."""

    measured: float
    """Seconds in one call, the mean of the devices, without waiting for others."""

    @property
    def ratio(self) -> float:
        """Measured by predicted; infinite where nothing was predicted."""
        return self.measured / self.predicted if self.predicted else float("inf")


@dataclass(frozen=True, repr=False)
class Comparison(Printed):
    """Predicted times beside measured ones.

    ``print`` shows the rows with the largest difference first, notebooks show them as HTML.
    :meth:`rows` is for pandas.
    """

    compared: tuple[ComparedRow, ...]
    """Rows of both sides, the largest difference in seconds first."""

    only_predicted: tuple[str, ...]
    """Variables that were not measured, as ``"main.lv3"``."""

    only_measured: tuple[str, ...]
    """Variables that were not predicted."""

    @property
    def predicted(self) -> float:
        """Seconds of all rows together, one after the other."""
        return sum(row.predicted for row in self.compared)

    @property
    def measured(self) -> float:
        """Seconds of all rows together, one after the other."""
        return sum(row.measured for row in self.compared)

    @property
    def spearman(self) -> float:
        """Spearman's rank correlation of predicted and measured seconds.

        It is 1 where what was predicted to take longer does, and not a number for fewer than two
        different times.
        """
        return _correlation(
            _ranks([row.predicted for row in self.compared]),
            _ranks([row.measured for row in self.compared]),
        )

    @property
    def mean_error(self) -> float:
        """The mean over rows of the difference by the measured time, 0.5 for half of it."""
        errors = [abs(r.predicted - r.measured) / r.measured for r in self.compared if r.measured]
        return float(np.mean(errors)) if errors else 0.0

    def of_kind(self, kind: str) -> Comparison:
        """Kernels (``"kernel"``) or collectives (``"collective"``) alone.

        Args:
            kind: ``"kernel"`` or ``"collective"``.

        Raises:
            ValueError: It is neither.
        """
        if kind not in ("kernel", "collective"):
            raise ValueError(f"there is no kind {kind!r}; the kinds are kernel and collective")
        return Comparison(tuple(row for row in self.compared if row.kind == kind), (), ())

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each row, for ``pandas.DataFrame``."""
        return [{**asdict(row), "ratio": row.ratio} for row in self.compared]


@short_tracebacks
def compare(predicted: Any, measured: Profile) -> Comparison:
    """Compares predicted times of a program with measured ones.

    Args:
        predicted: An :class:`Estimate` of the same module for a cluster of the devices that it was
            measured on, as ``Cluster.measure`` gives; a :class:`Timeline` that was simulated; or
            another :class:`Profile`.
        measured: Result of ``ModelFunction.profile``.

    Returns:
        A row for each variable that both have. Of collectives, waiting is left out, since no
        prediction of a single collective has it.

    Raises:
        TypeError: one of the two is something else.
        ValueError: they have no variable in common.

    Example:
        >>> from distir_ext.analysis import ProfileEvent
        >>> def took(seconds):
        ...     event = ("compute", "y", "kernel", 0.0, seconds, 0.0, "main", "add", (), 0)
        ...     return Profile("main", 1, (ProfileEvent(0, *event),), ())
        >>> [row.ratio for row in compare(took(1.0), took(1.5)).compared]
        [1.5]
    """
    if not isinstance(measured, Profile):
        raise TypeError(
            "measured is what model[...].profile(...) returns, a distir_ext.analysis.Profile, "
            f"not {type(measured).__name__}"
        )
    rows = measured.rows()
    if isinstance(predicted, Estimate):
        before = _of_estimate(predicted, measured.function)
    elif isinstance(predicted, Timeline):
        # Its events do not say the function that they are in, so variables tell them apart.
        rows = [{**row, "function": ""} for row in rows]
        before = _seconds(_of_timeline(predicted))
    elif isinstance(predicted, Profile):
        before = _seconds(predicted.rows())
    else:
        raise TypeError(
            f"predicted is an Estimate, a Timeline or a Profile, not {type(predicted).__name__}"
        )
    after = _of_events(rows)
    common = [
        ComparedRow(*key[:2], key[2], callee, before[key], seconds)
        for key, (seconds, callee) in after.items()
        if key in before
    ]
    if not common:
        raise ValueError(
            f"nothing that was measured of {measured.function!r} was predicted; both have to be of "
            "the same module, lowered for the same cluster"
        )
    common.sort(key=lambda row: -abs(row.measured - row.predicted))
    return Comparison(
        tuple(common),
        _names(before.keys() - after.keys()),
        _names(after.keys() - before.keys()),
    )


_Key = tuple[str, str, str]


def _names(keys: Iterable[_Key]) -> tuple[str, ...]:
    return tuple(sorted(f"{function}.{name}".lstrip(".") for function, name, _ in keys))


def _of_estimate(estimate: Estimate, function: str) -> dict[_Key, float]:
    """Seconds by function, variable and kind; what programs of several groups share counts once."""
    found: dict[_Key, float] = {}
    for program in estimate.programs:
        if program.function != function:
            continue
        for key, seconds in _of_program(program).items():
            found[key] = max(found.get(key, 0.0), seconds)
    return found


def _of_program(program: ProgramEstimate) -> dict[_Key, float]:
    found: dict[_Key, float] = {}
    for kernel in program.kernels:
        if kernel.count:
            key = (kernel.function, kernel.name, "kernel")
            found[key] = found.get(key, 0.0) + kernel.count * kernel.cost.seconds
    for each in program.collectives:
        if each.count:
            key = (each.function, each.name, "collective")
            found[key] = found.get(key, 0.0) + each.count * each.seconds
    return found


def _of_timeline(timeline: Timeline) -> list[dict[str, Any]]:
    """Its events as those of a profile in which every microbatch is a call."""
    return [
        {
            "function": "",
            "name": event.name,
            "kind": "kernel" if event.stream == "compute" else "collective",
            "device": event.device,
            "duration": event.duration,
            "repetition": event.microbatch,
        }
        for event in timeline.events
    ]


def _seconds(rows: Sequence[Mapping[str, Any]]) -> dict[_Key, float]:
    return {key: seconds for key, (seconds, _) in _of_events(rows).items()}


def _of_events(rows: Sequence[Mapping[str, Any]]) -> dict[_Key, tuple[float, str]]:
    """Seconds without waiting, the mean of devices, of each the median of calls; and the callee."""
    calls = 1 + max((row.get("repetition", 0) for row in rows), default=0)
    sums: dict[_Key, dict[Any, list[float]]] = {}
    callees: dict[_Key, str] = {}
    for row in rows:
        key = (row["function"], row["name"], row["kind"])
        callees.setdefault(key, row.get("callee", ""))
        seconds = sums.setdefault(key, {}).setdefault(row["device"], [0.0] * calls)
        seconds[row.get("repetition", 0)] += row["duration"] - (row.get("waiting") or 0.0)
    return {
        key: (float(np.mean([np.median(each) for each in of.values()])), callees[key])
        for key, of in sums.items()
    }


def _ranks(values: Sequence[float]) -> Any:
    """Returns ranks from 0; equal values share the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[group]


def _correlation(a: Any, b: Any) -> float:
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])
