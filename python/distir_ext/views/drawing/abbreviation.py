"""Chooses the items of a long list that are shown."""

from __future__ import annotations

import itertools
from collections.abc import Collection


def shown(count: int, most: int, wanted: Collection[int] = ()) -> list[int | None]:
    """Chooses the items to show: all, or the first, the last and those that are wanted.

    Args:
        count: Number of items.
        most: Number of items that fit, apart from those that are wanted.
        wanted: Items that are shown in any case; the first ``most``, if there are more.

    Returns:
        Indices of the items; None for two or more that are left out.

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
