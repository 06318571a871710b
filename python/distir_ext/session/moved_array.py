"""Reshards arrays on workers, for the same workers or those of another session.

A box of such an array is made of parts of the shards that have its elements. Where all workers are
on this machine and some are processes, workers that get boxes read them where they are, in the
memory of a device that holds them, as of weights on disk. If the system does not let them, each
shard is written once to a file in memory, by one of the devices that hold it, and read there.
Otherwise each shard that is needed is brought to this process once; of workers that are threads it
is here already. A worker that gets a box copies it out of them.

Example: a matrix of 4 x 4 in rows on devices 0 and 1. Its columns 2 and 3 are the box at ``(0, 2)``
of 4 x 2: two parts of 2 x 2, of the shards of both devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

from distir_ext.params.held_array import HeldArray
from distir_ext.params.host_array import host_array, tensor_bytes
from distir_ext.params.memory_file import MemoryFile
from distir_ext.params.parts import StoredPart
from distir_ext.params.process_memory import process_memory
from distir_ext.params.stored_array import StoredArray, StoredShards, stored_dtype
from distir_ext.signature.specs import TensorSpec
from distir_ext.workers.base import Workers
from distir_ext.workers.cuts import Block, Cut, StoredCut, cuts_of

# Smaller arrays are sent as quickly as they are shown to others, in bytes.
_SMALLEST_IN_MEMORY = 1 << 20

# Of shards in a file, in bytes.
_ALIGNMENT = 64


@dataclass(frozen=True, eq=False)
class MovedArray:
    """An array of which boxes are taken.

    Attributes:
        workers: The workers that hold it.
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
        begin: First index in the array.
        end: Index behind the last one, within the array.
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


class MovedCut(Cut):
    """An array on workers in shards for devices.

    Args:
        array: The array.
        spec: The type that says which part of it a device gets.
    """

    def __init__(self, array: MovedArray, spec: TensorSpec) -> None:
        self.array = array
        self.spec = spec
        self.extent = spec.local_shape(array.shape)
        boxes = {
            block: array.shard(spec.begin(device, array.shape), self.extent)
            for block, device in spec.first_holders.items()
        }
        super().__init__(spec.blocks, boxes)


class Passage:
    """Transfers arrays from other workers to the workers of a session.

    It is a context that stays open until they have read the arrays.

    Args:
        workers: The workers that get the arrays.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._file: MemoryFile | None = None
        self._users: set[Workers] = {workers}
        # Whose memory is read.
        self._read: set[Workers] = set()

    def __enter__(self) -> Passage:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._file is not None:
            self._file.close()
            for workers in self._users if error is None else ():
                workers.let_go_of_files()
        # Another process may have the number of one that has ended.
        for workers in self._read if error is None else ():
            workers.check_alive()

    def show(self, cuts: Sequence[Any]) -> list[Any]:
        """Cuts of arrays that devices can read where they are; others are what they were.

        Args:
            cuts: As for :meth:`bring`.

        Raises:
            As :meth:`bring`.
        """
        by_source: dict[Workers, list[MovedCut]] = {}
        for cut in cuts_of(MovedCut, cuts):
            if self._goes_by_memory(cut):
                by_source.setdefault(cut.array.workers, []).append(cut)
        found: dict[int, StoredCut] = {}
        for source, mine in by_source.items():
            found |= self._in_place(source, mine)
        return [_replaced(each, found) for each in cuts]

    def bring(self, cuts: Sequence[Any]) -> list[Any]:
        """Cuts of arrays on workers as their devices can take them; others are what they were.

        What was brought before has to be taken by then.

        Args:
            cuts: Values by device; lists have one for each field.

        Raises:
            WorkerError: a worker that holds some of it is gone.
            RuntimeError: its session is closed.
        """
        cuts = self.show(cuts)
        moved = list(cuts_of(MovedCut, cuts))
        found: dict[int, Any] = dict(self._shared([e for e in moved if self._goes_by_memory(e)]))
        needed: dict[MovedArray, set[Block]] = {}
        fetched = [cut for cut in moved if id(cut) not in found]
        for box in (box for cut in fetched for box in cut.shards.values()):
            needed.setdefault(box.array, set()).update(box.blocks())
        shards = {array: _fetch(array, blocks) for array, blocks in needed.items()}
        for cut in fetched:
            boxes = {at: box.native(shards[cut.array]) for at, box in cut.shards.items()}
            found[id(cut)] = cut.with_shards(boxes)
        return [_replaced(each, found) for each in cuts]

    def _goes_by_memory(self, cut: MovedCut) -> bool:
        """Returns whether an array is large enough to go through shared memory, and can."""
        both = (cut.array.workers, self._workers)
        return (
            all(each.shares_memory for each in both)
            and not all(each.is_this_process for each in both)
            and _stored_bytes(cut.array.held) >= _SMALLEST_IN_MEMORY
        )

    def _in_place(self, source: Workers, cuts: Sequence[MovedCut]) -> dict[int, StoredCut]:
        """Returns parts that devices read in place, by identity of cuts; empty if they cannot."""
        if source.device_type != tvm_ffi.DLDeviceType.kDLCPU:
            return {}
        if self._workers.reads.get(source) is False:
            return {}
        arrays = list({cut.array: None for cut in cuts})
        holders = [each.held.spec.holders(each.held.shards) for each in arrays]
        shown: dict[int, list[Any]] = {}
        for array, by_block in zip(arrays, holders, strict=True):
            for device in by_block.values():
                shown.setdefault(device, []).append(array.held.shards[device])
        where = source.addresses(shown)
        if source not in self._workers.reads:
            some = [(each.process, each.begins[0]) for each in where.values()]
            self._workers.reads[source] = self._workers.can_read(some)
        if not self._workers.reads[source]:
            return {}
        self._read.add(source)
        begins = {device: iter(each.begins) for device, each in where.items()}
        stored: dict[MovedArray, StoredShards] = {}
        for array, by_block in zip(arrays, holders, strict=True):
            at = {
                block: (process_memory(where[device].process), next(begins[device]))
                for block, device in by_block.items()
            }
            places = [at[block] for block in _blocks(array.held)]
            stored[array] = _stored(array.held, places)
        return {id(cut): _stored_cut(cut, stored[cut.array]) for cut in cuts}

    def _shared(self, cuts: Sequence[MovedCut]) -> dict[int, StoredCut]:
        """Writes arrays to the shared file, and returns parts of them by identity of cuts."""
        if not cuts:
            return {}
        if self._file is None:
            self._file = MemoryFile()
        size = 0
        stored: dict[MovedArray, StoredShards] = {}
        written: dict[Workers, dict[int, list[tuple[Any, int]]]] = {}
        for array in {cut.array: None for cut in cuts}:
            by_device = written.setdefault(array.workers, {})
            stored[array], end = _in_file(array.held, self._file.path, size)
            holders = array.held.spec.holders(array.held.shards)
            for block, piece in zip(_blocks(array.held), stored[array].pieces, strict=True):
                device = holders[block]
                shard = array.held.shards[device]
                by_device.setdefault(device, []).append((shard, piece.offset))
            size = end
        self._file.grow(size)
        self._users.update(written)
        for workers, by_device in written.items():
            workers.share(self._file, by_device)
        return {id(cut): _stored_cut(cut, stored[cut.array]) for cut in cuts}


def _replaced(cut: Any, found: Mapping[int, Any]) -> Any:
    """A cut, or all cuts of a list, with others in place of some, by identity."""
    if isinstance(cut, list):
        return [_replaced(each, found) for each in cut]
    return found.get(id(cut), cut)


def _stored_cut(cut: MovedCut, stored: StoredShards) -> StoredCut:
    """Returns a cut for the same devices of an array that is in files."""
    return StoredCut(cut.spec.blocks, StoredPart(stored, cut.spec.layout, cut.extent))


def _blocks(held: HeldArray) -> Iterator[Block]:
    """All blocks of an array, row-major."""
    return iter(np.ndindex(*held.spec.parts))


def _stored_bytes(held: HeldArray) -> int:
    """Returns the bytes of all elements, each counted once; 0 if no file can store them."""
    try:
        return prod(held.shape) * stored_dtype(held.spec.dtype).itemsize
    except ValueError:
        return 0


def _in_file(held: HeldArray, path: Path, begin: int) -> tuple[StoredShards, int]:
    """Places an array's shards in a file from a byte on, and returns the byte behind them."""
    size = tensor_bytes(held.spec.local_shape(held.shape), held.spec.dtype)
    pitch = -(-size // _ALIGNMENT) * _ALIGNMENT
    places = [(path, begin + index * pitch) for index, _ in enumerate(_blocks(held))]
    return _stored(held, places), begin + len(places) * pitch


def _stored(held: HeldArray, places: Sequence[tuple[Path, int]]) -> StoredShards:
    """An array whose blocks are in files, each from a byte on."""
    dtype, extent = held.spec.dtype, held.spec.local_shape(held.shape)
    pieces = [StoredArray("moved", path, at, extent, dtype, dtype) for path, at in places]
    shape, parts = held.shape, held.spec.parts
    return StoredShards("moved", places[0][0], shape, dtype, parts, tuple(pieces))


def _fetch(array: MovedArray, blocks: set[Block]) -> dict[Block, Any]:
    """The shards of some blocks, each from the first device that holds it."""
    holders = array.held.spec.holders(array.held.shards)
    tensors = array.workers.fetch(
        {holders[block]: array.held.shards[holders[block]] for block in blocks}
    )
    return {block: tensors[holders[block]] for block in blocks}


def _minus(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))
