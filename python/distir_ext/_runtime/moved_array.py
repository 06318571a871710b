"""Arrays on workers that are cut in another way, for other workers or the same ones.

A box of such an array is made of parts of the shards that have its elements. Each shard that is
needed is brought to this process once, from one of the devices that hold it; of workers that are
threads it is here already. A worker that gets a box copies it out of them.

Example: a matrix of 4 x 4 in rows on devices 0 and 1. Its columns 2 and 3 are the box at ``(0, 2)``
of 4 x 2: two parts of 2 x 2, of the shards of both devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi

from distir_ext._runtime.held_array import HeldArray
from distir_ext._runtime.host_array import host_array
from distir_ext._workers.base import Workers
from distir_ext._workers.cuts import Block, Cut


@dataclass(frozen=True, eq=False)
class MovedArray:
    """An array of which boxes are taken.

    Attributes:
        workers: Who hold it.
        held: Its type and shards.
    """

    workers: Workers
    held: HeldArray

    @property
    def shape(self) -> tuple[int, ...]:
        """The global sizes."""
        return self.held.shape

    def shard(self, begin: Sequence[int], extent: Sequence[int]) -> MovedBox:
        """The box of ``extent`` elements at ``begin``; what lies beyond the array is zero."""
        ends = [low + size for low, size in zip(begin, extent, strict=True)]
        cut = zip(ends, self.shape, strict=True)
        return MovedBox(self, tuple(begin), tuple(min(each) for each in cut), tuple(extent))


@dataclass(frozen=True, eq=False)
class MovedBox:
    """A box of an array.

    Attributes:
        array: It.
        begin: Where it begins.
        end: Where it ends, and where the array does if that is before.
        extent: Its sizes.
    """

    array: MovedArray
    begin: tuple[int, ...]
    end: tuple[int, ...]
    extent: tuple[int, ...]

    def blocks(self) -> Iterator[Block]:
        """The blocks of the array, as its type cuts it, that have elements of the box."""
        if any(last <= first for first, last in zip(self.begin, self.end, strict=True)):
            return
        sizes = self.array.held.spec.local_shape(self.array.shape)
        ranges = [
            range(first // size, -(-last // size))
            for first, last, size in zip(self.begin, self.end, sizes, strict=True)
        ]
        for index in np.ndindex(*(len(each) for each in ranges)):
            yield tuple(each[i] for each, i in zip(ranges, index, strict=True))

    def native(self, shards: Mapping[Block, Any]) -> Any:
        """The box as a native shard, of the shards of its blocks, which it keeps."""
        spec = self.array.held.spec
        sizes = spec.local_shape(self.array.shape)
        parts, begins = [], []
        for block in self.blocks():
            origin = [index * size for index, size in zip(block, sizes, strict=True)]
            low = [max(pair) for pair in zip(self.begin, origin, strict=True)]
            ends = zip(self.end, origin, sizes, strict=True)
            high = [min(end, first + size) for end, first, size in ends]
            extent = _minus(high, low)
            parts.append(host_array(shards[block]).shard(_minus(low, origin), extent))
            begins.append(tvm_ffi.Shape(_minus(low, self.begin)))
        join = tvm_ffi.get_global_func("distir.runtime.joined_shard")
        return join(tvm_ffi.Shape(self.extent), spec.dtype, parts, begins)


def bring(cuts: Sequence[Any]) -> list[Any]:
    """Cuts whose boxes of arrays on workers are native shards; others are what they were.

    Args:
        cuts: What devices get of values; lists have one for each field.

    Raises:
        WorkerError: a worker that holds some of it is gone.
        RuntimeError: its session is closed.
    """
    needed: dict[MovedArray, set[Block]] = {}
    for box in _boxes(list(cuts)):
        needed.setdefault(box.array, set()).update(box.blocks())
    found = {array: _fetch(array, blocks) for array, blocks in needed.items()}

    def native(cut: Any) -> Any:
        if isinstance(cut, list):
            return [native(each) for each in cut]
        if next(_boxes(cut), None) is None:
            return cut
        return cut.with_shards({at: box.native(found[box.array]) for at, box in cut.shards.items()})

    return [native(each) for each in cuts]


def _boxes(cut: Any) -> Iterator[MovedBox]:
    if isinstance(cut, Cut):
        yield from (each for each in cut.shards.values() if isinstance(each, MovedBox))
    elif isinstance(cut, list):
        for each in cut:
            yield from _boxes(each)


def _fetch(array: MovedArray, blocks: set[Block]) -> dict[Block, Any]:
    """The shards of some blocks, each from the first device that holds it."""
    holders = array.held.spec.holders(array.held.shards)
    tensors = array.workers.fetch(
        {holders[block]: array.held.shards[holders[block]] for block in blocks}
    )
    return {block: tensors[holders[block]] for block in blocks}


def _minus(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))
