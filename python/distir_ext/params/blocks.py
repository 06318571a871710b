"""Cuts a weight into blocks along one dimension, for arrays of all kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from distir_ext.params.stored_array import StoredArray


@dataclass(frozen=True)
class JoinedBlocks:
    """Blocks of a weight as one array, which is made when it is asked for.

    Attributes:
        blocks: Arrays with ``shape``, ``dtype`` and ``numpy()``.
        dim: The dimension along which they are.
    """

    blocks: tuple[Any, ...]
    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the whole."""
        sizes = [int(size) for size in self.blocks[0].shape]
        sizes[self.dim] = sum(int(block.shape[self.dim]) for block in self.blocks)
        return tuple(sizes)

    @property
    def dtype(self) -> str:
        """TVM's name of the element type."""
        return str(self.blocks[0].dtype)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole."""
        return np.concatenate([block.numpy() for block in self.blocks], self.dim)


def blocks_of(name: str, value: Any, dim: int, sizes: Sequence[int]) -> list[Any]:
    """The blocks of a weight; nothing is copied that is memory of this process or in one file.

    Args:
        name: Of the weight, for messages.
        value: An array, or a :class:`StoredArray`.
        dim: The dimension that is cut.
        sizes: Of the blocks along it.

    Raises:
        ValueError: the sizes do not make up the dimension.
    """
    shape = tuple(int(size) for size in value.shape)
    if dim >= len(shape) or shape[dim] != sum(sizes):
        raise ValueError(
            f"the weight {name} has the shape {list(shape)}: dimension {dim} is to be cut into "
            f"blocks of {list(sizes)}"
        )
    ends = list(accumulate(sizes))
    part = _slicer(value, dim)
    return [part(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _slicer(value: Any, dim: int) -> Callable[[int, int], Any]:
    """Returns a function that gives a range of an array along a dimension."""
    if isinstance(value, StoredArray):
        return lambda begin, end: value.part(dim, begin, end)
    if not hasattr(value, "__getitem__"):
        value = value.numpy()
    return lambda begin, end: value[tuple([slice(None)] * dim + [slice(begin, end)])]
