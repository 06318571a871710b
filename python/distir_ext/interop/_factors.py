"""Orders of devices as products of strided factors.

An order of 0, 1, ..., n-1 is *strided* if ``arange(n).reshape(r).transpose(p).reshape(n)`` gives it
for some r and p. Its factors are pairs (size, stride), major to minor: ``0 4 1 5 2 6 3 7`` counts a
factor of size 4 and stride 1, and within it one of size 2 and stride 4::

    >>> strided_factors(np.array([0, 4, 1, 5, 2, 6, 3, 7]))
    ((4, 1), (2, 4))
    >>> strided_factors(np.array([0, 2, 3, 1])) is None
    True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np

Factor: TypeAlias = tuple[int, int]
"""Size and stride."""


def strided_factors(order: np.ndarray) -> tuple[Factor, ...] | None:
    """The factors of an order, as few as there are; None if it is not strided. Linear time."""
    size = len(order)
    rest = order
    found: list[Factor] = []
    while len(rest) > 1:
        # The minor factor is the longest run that goes on with one stride: what continues it with
        # another factor has another stride, or would be the same factor.
        stride = int(rest[1]) - int(rest[0])
        breaks = np.flatnonzero(np.diff(rest) != stride)
        run = int(breaks[0]) + 1 if len(breaks) else len(rest)
        if len(rest) % run:
            return None
        found.append((run, stride))
        rest = rest[::run]
    factors = tuple(reversed(found))
    by_stride = sorted(factors, key=lambda factor: factor[1])
    expected = 1
    for extent, stride in by_stride:
        if stride != expected:
            return None
        expected *= extent
    same = expected == size and np.array_equal(order, order_of(factors))
    return factors if same else None


def order_of(factors: Iterable[Factor]) -> np.ndarray:
    """The order that factors count."""
    order = np.zeros(1, np.int64)
    for size, stride in factors:
        order = (order[:, None] + np.arange(size) * stride).reshape(-1)
    return order


def merged(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    """Returns the same order with as few factors as possible.

    Example:
        >>> merged([(2, 4), (2, 2), (1, 7), (2, 1)])
        ((8, 1),)
    """
    found: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if found and found[-1][1] == size * stride:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return tuple(found)


def split_at_sizes(
    factors: Sequence[Factor], sizes: Sequence[int]
) -> list[tuple[Factor, ...]] | None:
    """The factors of each dimension of an array of this shape, whose elements have the order.

    None if a dimension ends within a factor that cannot be cut there.

    Example:
        >>> split_at_sizes([(4, 1), (2, 4)], [2, 4])
        [((2, 2),), ((2, 1), (2, 4))]
        >>> split_at_sizes([(3, 1), (2, 3)], [2, 3]) is None
        True
    """
    waiting = list(reversed(factors))
    dimensions = []
    for size in sizes:
        here: list[Factor] = []
        while size > 1:
            extent, stride = waiting.pop()
            if size % extent == 0:
                here.append((extent, stride))
                size //= extent
            elif extent % size == 0:
                here.append((size, stride * (extent // size)))
                waiting.append((extent // size, stride))
                size = 1
            else:
                return None
        dimensions.append(tuple(here))
    return dimensions


def cut_at_strides(factor: Factor, bounds: Sequence[int]) -> list[Factor] | None:
    """A factor cut where the axes of a mesh begin, major to minor.

    Args:
        factor: Size and stride.
        bounds: The strides of the axes and the number of devices, ascending.

    Returns:
        Factors that each lie within one axis; None if the factor covers part of an axis and more.

    Example:
        >>> cut_at_strides((8, 2), [1, 4, 16])
        [(4, 4), (2, 2)]
        >>> cut_at_strides((3, 2), [1, 4, 12]) is None
        True
    """
    size, stride = factor
    cuts = [stride, *(bound for bound in bounds if stride < bound < stride * size), stride * size]
    pieces = [(high // low, low) for low, high in pairwise(cuts)]
    whole = all(high % low == 0 for low, high in pairwise(cuts))
    return pieces[::-1] if whole else None
