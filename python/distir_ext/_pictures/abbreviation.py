"""Which of many things are shown."""

from __future__ import annotations

import itertools
from collections.abc import Collection


def shown(count: int, most: int, wanted: Collection[int] = ()) -> list[int | None]:
    """Which of so many things are shown: all, or the first, the last and those that are wanted.

    Args:
        count: How many there are.
        most: How many places there are, apart from those that are wanted.
        wanted: Which are shown in any case; of too many, the first.

    Returns:
        Their numbers. None stands for two or more that are left out.

    Example:
        >>> shown(9, 5, [6])
        [0, 1, 2, None, 6, 7, 8]
    """
    if count <= most:
        return list(range(count))
    # One place is for what is left out, one for the last.
    kept = sorted({*range(max(1, most - 2)), count - 1, *sorted(wanted)[:most]})
    found: list[int | None] = [kept[0]]
    for before, each in itertools.pairwise(kept):
        if each - before == 2:
            found.append(each - 1)
        elif each - before > 2:
            found.append(None)
        found.append(each)
    return found
