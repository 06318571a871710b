"""Describes arrays on disk, of which each worker reads only its own part.

A :class:`StoredArray` says where its elements are: path, offset, shape and dtype. It is plain data,
which another process is sent in place of the elements. Nothing is read before a box of it is
opened, which maps the file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (makes its types known to NumPy by name)
import numpy as np
import tvm_ffi

from distir_ext.mesh.blocks import shard_shape
from distir_ext.params.host_array import (
    ArrayInParts,
    HostArray,
    check_counts,
    check_shape,
    copied_to_numpy,
    host_array,
    numpy_view,
    tensor_bytes,
)
from distir_ext.params.memory_file import MappedMemory, is_memory_file
from distir_ext.params.process_memory import process_of
from distir_ext.text.files.json_file import require
from distir_ext.text.files.regular_file import open_file


def stored_dtype(name: Any) -> np.dtype[Any]:
    """The dtype of elements in a file, of TVM's name for it, which the file states.

    Raises:
        ValueError: NumPy and TVM do not have the same one of this name.
    """
    try:
        found = np.dtype(name) if isinstance(name, str) else None
        if found is not None and found.itemsize == tensor_bytes((1,), name):
            return found
    except TypeError:
        pass
    raise ValueError(f"elements of dtype {str(name)[:40]} cannot be loaded")


class MappedFiles:
    """Files, each mapped once; the mappings end with this object and what is read.

    All workers of a process read one mapping, since pages count for each mapping that they are
    touched in.

    Args:
        memory: Keeps those of files in memory.
    """

    def __init__(self, memory: MappedMemory | None = None) -> None:
        self._memory = MappedMemory() if memory is None else memory
        self._bytes: dict[Path, np.ndarray[Any, Any]] = {}
        self._opened: list[HostArray | ArrayInParts] = []

    def bytes(self, path: Path) -> np.ndarray[Any, Any]:
        """All bytes of a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not a regular file, or is empty.
        """
        if is_memory_file(path):
            return self._memory.bytes(path)
        if path not in self._bytes:
            with open_file(path) as file:
                require(file.seek(0, 2) > 0, f"{path} is empty")
                self._bytes[path] = np.memmap(file, np.uint8, "r")
        return self._bytes[path]

    def native(self, value: Any) -> Any:
        """A value with every :class:`StoredBox` in it, also inside lists, as a native shard.

        Shards can be cut for as long as this object lives.
        """
        if isinstance(value, list):
            return [self.native(each) for each in value]
        return self._cut(value) if isinstance(value, StoredBox) else value

    def _cut(self, box: StoredBox) -> Any:
        pieces = list(box.pieces())
        whole = [0] * len(box.extent)
        if len(pieces) == 1 and list(pieces[0].at) == whole:
            return self._shard(pieces[0], box.extent)
        parts = [self._shard(each, _minus(each.end, each.begin)) for each in pieces]
        join = tvm_ffi.get_global_func("distir.runtime.joined_shard")
        begins = [tvm_ffi.Shape(tuple(each.at)) for each in pieces]
        return join(tvm_ffi.Shape(box.extent), box.array.dtype, parts, begins)

    def _shard(self, piece: StoredPiece, extent: Sequence[int]) -> Any:
        stored = piece.array
        process = process_of(stored.path)
        if process is not None:
            size = stored_dtype(stored.dtype).itemsize
            strides = [prod(stored.shape[dim + 1 :]) * size for dim in range(len(stored.shape))]
            memory = HostArray(
                None, stored.offset, stored.shape, tuple(strides), stored.dtype, process
            )
            return memory.shard(piece.begin, extent, str(stored))
        array = host_array(stored.read(self, piece.begin, piece.end))
        self._opened.append(array)
        return array.shard([0] * len(extent), extent, str(stored))


class OnDisk(ABC):
    """Base of arrays on disk, with a name, a file and a shape."""

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str

    @abstractmethod
    def pieces_of(self, begin: Sequence[int], end: Sequence[int]) -> Iterator[StoredPiece]:
        """Yields the places in files of the elements from ``begin`` to ``end``."""

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes in memory, without padding."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize

    def shard(self, begin: Sequence[int], extent: Sequence[int]) -> StoredBox:
        """The box of ``extent`` elements at ``begin``; what lies beyond the array is zero."""
        return StoredBox(self, tuple(begin), tuple(extent))

    def numpy(self) -> np.ndarray[Any, Any]:
        """All elements, as a new NumPy array.

        Raises:
            OSError: a file cannot be read.
            ValueError: it was cut off since it was opened.
        """
        files = MappedFiles()
        box = files.native(self.shard([0] * len(self.shape), self.shape))
        found: np.ndarray[Any, Any] = numpy_view(
            tvm_ffi.get_global_func("distir.runtime.cut_shard")(box)
        )
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return copied_to_numpy(self, dtype, copy, "an array on disk")

    def __str__(self) -> str:
        return f'tensor "{self.name}" of {self.path}'


@dataclass(frozen=True)
class StoredArray(OnDisk):
    """A row-major array in a file.

    Attributes:
        name: Its name in the file.
        path: The file.
        offset: Offset of its elements, in bytes.
        shape: Sizes in elements.
        dtype: TVM's name of the element type.
        stored_dtype: That in the file, where elements are widened when they are read.
        whole: The shape of the array in the file, where this is a box of it; else empty.
        at: First index of the box in it.
    """

    name: str
    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: str
    stored_dtype: str
    whole: tuple[int, ...] = ()
    at: tuple[int, ...] = ()

    @property
    def num_stored_bytes(self) -> int:
        """Bytes that the array in the file takes."""
        return prod(self.whole or self.shape) * np.dtype(self.stored_dtype).itemsize

    def part(self, dim: int, begin: int, end: int) -> StoredArray:
        """A range of it along a dimension."""
        at, shape = list(self.at or [0] * len(self.shape)), list(self.shape)
        at[dim], shape[dim] = at[dim] + begin, end - begin
        return replace(self, shape=tuple(shape), whole=self.whole or self.shape, at=tuple(at))

    def read(
        self, files: MappedFiles, begin: Sequence[int], end: Sequence[int]
    ) -> np.ndarray[Any, Any]:
        """The elements from ``begin`` to ``end``; memory of the file unless they are widened."""
        if self.num_stored_bytes == 0:
            whole = np.zeros(self.whole or self.shape, self.stored_dtype)
        else:
            mapped = files.bytes(self.path)[self.offset : self.offset + self.num_stored_bytes]
            require(
                mapped.size == self.num_stored_bytes,
                f"{self.path} was cut off since it was opened: {self} ends behind it",
            )
            whole = mapped.view(self.stored_dtype).reshape(self.whole or self.shape)
        found = whole[_slices(begin, end, self.at)]
        if self.dtype == self.stored_dtype:
            return found
        return _copy_of_mapped(found, self.path).astype(self.dtype)

    def pieces_of(self, begin: Sequence[int], end: Sequence[int]) -> Iterator[StoredPiece]:
        """One, of this array itself."""
        yield StoredPiece(self, tuple(begin), tuple(end), (0,) * len(begin))


@dataclass(frozen=True)
class StoredShards(OnDisk):
    """An array in pieces of equal shape, each of them a :class:`StoredArray`.

    Attributes:
        name: Its name in the index.
        path: The index.
        shape: Sizes in elements, without the padding of the last pieces.
        dtype: TVM's name of the element type.
        parts: Into how many pieces each dimension is cut.
        pieces: Row-major.
    """

    name: str
    path: Path
    shape: tuple[int, ...]
    dtype: str
    parts: tuple[int, ...]
    pieces: tuple[StoredArray, ...]

    def pieces_of(self, begin: Sequence[int], end: Sequence[int]) -> Iterator[StoredPiece]:
        """A part of each piece that has some of the elements."""
        if any(last <= first for first, last in zip(begin, end, strict=True)):
            return
        extent = self.pieces[0].shape
        ranges = [
            range(first // size, -(-last // size))
            for first, last, size in zip(begin, end, extent, strict=True)
        ]
        for block in np.ndindex(*(len(each) for each in ranges)):
            at = [each[index] for each, index in zip(ranges, block, strict=True)]
            origin = [index * size for index, size in zip(at, extent, strict=True)]
            low = [max(a, b) for a, b in zip(begin, origin, strict=True)]
            high = [min(a, b + size) for a, b, size in zip(end, origin, extent, strict=True)]
            piece = self.pieces[int(np.ravel_multi_index(at, self.parts)) if at else 0]
            yield StoredPiece(
                piece,
                tuple(_minus(low, origin)),
                tuple(_minus(high, origin)),
                tuple(_minus(low, begin)),
            )


Stored = StoredArray | StoredShards


@dataclass(frozen=True)
class StoredBox:
    """A worker's part of an array on disk; see :meth:`StoredArray.shard`."""

    array: OnDisk
    begin: tuple[int, ...]
    extent: tuple[int, ...]

    def pieces(self) -> Iterator[StoredPiece]:
        """Yields the places in files of the box's elements, without padding."""
        shape = self.array.shape
        begin = [min(a, size) for a, size in zip(self.begin, shape, strict=True)]
        end = [min(a + b, size) for a, b, size in zip(self.begin, self.extent, shape, strict=True)]
        return self.array.pieces_of(begin, end)


@dataclass(frozen=True)
class StoredPiece:
    """The part of a box that one array on disk has.

    Attributes:
        array: Has it.
        begin: First index in the array.
        end: Index behind the last one.
        at: First index in the box.
    """

    array: StoredArray
    begin: tuple[int, ...]
    end: tuple[int, ...]
    at: tuple[int, ...]


def to_plain(value: OnDisk | StoredBox) -> dict[str, Any]:
    """The value as JSON can have it."""
    if isinstance(value, StoredBox):
        return {**vars(value), "array": to_plain(value.array)}
    plain = {**vars(value), "path": str(value.path)}
    if isinstance(value, StoredShards):
        plain["pieces"] = [to_plain(each) for each in value.pieces]
    return plain


def from_plain(plain: Any) -> Stored | StoredBox:
    """Rebuilds a value from the plain data of :func:`to_plain`.

    Raises:
        ValueError: the data are malformed.
    """
    try:
        return _from_plain(plain)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"an array on disk lacks a valid {error}") from error


def _from_plain(plain: Any) -> Stored | StoredBox:
    if "array" in plain:
        array = _from_plain(plain["array"])
        begin, extent = check_counts(plain["begin"]), check_shape(plain["extent"])
        require(
            not isinstance(array, StoredBox) and len(begin) == len(extent) == len(array.shape),
            "a box of an array on disk has another number of dimensions",
        )
        assert not isinstance(array, StoredBox)
        return StoredBox(array, begin, extent)
    name, path, dtype = plain["name"], plain["path"], plain["dtype"]
    stored_dtype(dtype)
    require(all(isinstance(each, str) for each in (name, path)), "a name or path is not text")
    shape = check_shape(plain["shape"])
    if "pieces" in plain:
        parts = check_shape(plain["parts"])
        pieces = [_from_plain(each) for each in plain["pieces"]]
        what = f'array "{name}" of {path}'
        stated = check_shape(plain["pieces"][0]["shape"]) if pieces else ()
        extent = piece_extent(shape, parts, len(pieces), what, stated)
        stored = [
            each
            for each in pieces
            if isinstance(each, StoredArray) and each.shape == extent and each.dtype == dtype
        ]
        require(len(stored) == len(pieces), f'array "{name}" of {path} has another piece')
        return StoredShards(name, Path(path), shape, dtype, parts, tuple(stored))
    stored_dtype(plain["stored_dtype"])
    (offset,) = check_counts([plain["offset"]])
    whole, at = check_shape(plain["whole"]), check_counts(plain["at"])
    require(
        not (whole or at)
        or (
            len(whole) == len(at) == len(shape)
            and all(a + b <= size for a, b, size in zip(at, shape, whole, strict=True))
        ),
        f'array "{name}" of {path} is no box of one of shape {list(whole)}',
    )
    return StoredArray(name, Path(path), offset, shape, dtype, plain["stored_dtype"], whole, at)


def piece_extent(
    shape: Sequence[int],
    parts: Sequence[int],
    count: int,
    what: str,
    stated: Sequence[int] = (),
) -> tuple[int, ...]:
    """The shape of each of the pieces that an array is cut into.

    Args:
        shape: Of the array.
        parts: Into how many parts each dimension is cut.
        count: The number of pieces.
        what: Its name in messages.
        stated: The shape that pieces have where it is not the least: they are whole heads.

    Raises:
        ValueError: so many parts do not make so many pieces, or pieces of the stated shape leave
            a part of the array out; the message begins with ``what``.
    """
    require(
        len(parts) == len(shape) and min(parts, default=1) >= 1 and prod(parts) == count,
        f"{what} of shape {list(shape)} has {count} pieces for parts {list(parts)}",
    )
    least = shard_shape(shape, parts)
    if not stated:
        return least
    require(
        len(stated) == len(least)
        and all(held >= size for held, size in zip(stated, least, strict=True)),
        f"{what} of shape {list(shape)} has other elements than pieces of {list(stated)}",
    )
    return tuple(stated)


def _copy_of_mapped(array: np.ndarray[Any, Any], path: Path) -> np.ndarray[Any, Any]:
    """A copy of memory of a file, which may be cut off meanwhile."""
    shard = host_array(array).shard([0] * array.ndim, array.shape, str(path))
    copied: np.ndarray[Any, Any] = numpy_view(
        tvm_ffi.get_global_func("distir.runtime.cut_shard")(shard)
    )
    return copied


def _slices(begin: Sequence[int], end: Sequence[int], at: Sequence[int] = ()) -> tuple[slice, ...]:
    offsets = at or [0] * len(begin)
    return tuple(slice(o + a, o + b) for a, b, o in zip(begin, end, offsets, strict=True))


def _minus(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x - y for x, y in zip(a, b, strict=True)]
