"""Converts device orders to and from GSPMD's iota form: ``arange``, reshaped and transposed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from distir_ext.interop._factors import Factor, merged, order_of, strided_factors
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown


@dataclass(frozen=True)
class Iota:
    """The order ``arange(n).reshape(reshape_dims).transpose(transpose_perm).reshape(n)``.

    Raises:
        ValueError: A size is not positive, or ``transpose_perm`` is no permutation.

    Example:
        >>> Iota((2, 4), (1, 0)).devices
        (0, 4, 1, 5, 2, 6, 3, 7)
        >>> print(Iota((3, 4, 5), (1, 2, 0)).canonical())
        <=[3,20]T(1,0)
    """

    reshape_dims: tuple[int, ...]
    """The shape that 0, 1, 2, ... are given; positive sizes."""

    transpose_perm: tuple[int, ...]
    """A permutation of its dimensions."""

    @short_tracebacks
    def __post_init__(self) -> None:
        if not self.reshape_dims or min(self.reshape_dims) < 1:
            raise ValueError(f"reshape dims are positive sizes, not {self.reshape_dims}")
        if sorted(self.transpose_perm) != list(range(len(self.reshape_dims))):
            raise ValueError(
                f"{self.transpose_perm} is no permutation of the {len(self.reshape_dims)} reshape "
                "dims"
            )

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.reshape_dims)

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """The order itself."""
        return tuple(order_of(self._factors()).tolist())

    def canonical(self) -> Iota:
        """Returns an equal iota with as few dimensions as possible, the form that XLA writes."""
        return _iota(merged(self._factors()))

    def _factors(self) -> list[Factor]:
        strides = [1] * len(self.reshape_dims)
        for dim in range(len(strides) - 2, -1, -1):
            strides[dim] = strides[dim + 1] * self.reshape_dims[dim + 1]
        return [(self.reshape_dims[dim], strides[dim]) for dim in self.transpose_perm]

    def __str__(self) -> str:
        text = f"<=[{','.join(map(str, self.reshape_dims))}]"
        if len(self.reshape_dims) > 1:
            text += f"T({','.join(map(str, self.transpose_perm))})"
        return text


@short_tracebacks
def find_iota(devices: Sequence[int]) -> Iota | None:
    """The canonical iota that gives an order of devices; None if none does. Linear time.

    Args:
        devices: Ids of devices, each of 0 to n - 1 once, in their order.

    Raises:
        TypeError: They are something else than integers.

    Example:
        >>> print(find_iota([0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15]))
        <=[2,2,4]T(2,1,0)
        >>> find_iota([0, 1, 3, 2]) is None
        True
    """
    ids = np.asarray(devices)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise TypeError(f"devices are a list of integers, not {shown(repr(devices))}")
    factors = strided_factors(ids.astype(np.int64))
    return None if factors is None else _iota(factors)


def _iota(factors: Sequence[Factor]) -> Iota:
    """Returns the iota with these factors, of which none can be merged."""
    if not factors:
        return Iota((1,), (0,))
    places = sorted(range(len(factors)), key=lambda place: -factors[place][1])
    perm = [0] * len(factors)
    for dim, place in enumerate(places):
        perm[place] = dim
    return Iota(tuple(factors[place][0] for place in places), tuple(perm))
