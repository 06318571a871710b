"""Reads TVM's parameter files, which ``tvm.runtime.save_param_dict_to_file`` writes.

A file is a magic number, the names, and as many tensors, each with a magic number, device, rank,
dtype, shape and size before its elements; all of it little-endian.
"""

from __future__ import annotations

import io
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO

import tvm_ffi

from distir_ext.params.host_array import MOST_DIMS, check_shape
from distir_ext.params.stored_array import StoredArray, stored_dtype
from distir_ext.text.files.json_file import MOST_VALUES, require
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, open_file

_LIST_MAGIC = 0xF7E58D4F05049CB7
_TENSOR_MAGIC = 0xDD5E40F096B4A13F


def is_param_dict(path: Path) -> bool:
    """Returns whether a file begins as one of this format."""
    with open_file(path) as file:
        return file.read(8) == struct.pack("<Q", _LIST_MAGIC)


def read_file(path: Path) -> dict[str, StoredArray]:
    """The tensors of a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or has a dtype that NumPy lacks; names the file and the tensor.
    """
    with open_file(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        magic, _, count = _unpack(file, "<QQQ", f"{path} is damaged: it")
        require(magic == _LIST_MAGIC, f"{path} is not a parameter file of TVM")
        require(count <= MOST_VALUES, f"{path} is damaged: it has {count} tensors")
        names = []
        left = min(size, MOST_INDEX_BYTES)  # of all names; a file may be as large and take no room
        for index in range(count):
            (length,) = _unpack(file, "<Q", f"{path} is damaged: name {index}")
            require(length <= left, f"{path} is damaged: name {index} has {length} bytes")
            left -= length
            names.append(file.read(length).decode(errors="replace"))
        (tensors,) = _unpack(file, "<Q", f"{path} is damaged: it")
        require(
            tensors == count == len(set(names)),
            f"{path} is damaged: it has {tensors} tensors and {len(set(names))} names",
        )
        return {name: _skip_tensor(file, name, path, size) for name in names}


def check_tensor(data: bytes, where: str) -> None:
    """Refuses bytes that are not one tensor as TVM writes it.

    Raises:
        ValueError: they are not; names ``where``.
    """
    file = io.BytesIO(data)
    _skip_tensor(file, "", Path(where), len(data))
    require(file.tell() == len(data), f"{where} has bytes behind its tensor")


def _skip_tensor(file: BinaryIO, name: str, path: Path, size: int) -> StoredArray:
    """Locates the tensor that begins here, and moves the file behind it."""
    where = f'{path} is damaged: tensor "{name}"'
    magic, _, _, _, rank, code, bits, lanes = _unpack(file, "<QQiiiBBH", where)
    require(magic == _TENSOR_MAGIC and 0 <= rank <= MOST_DIMS, f"{where} has no valid header")
    *sizes, num_bytes = _unpack(file, f"<{rank + 1}q", where)
    try:
        dtype = str(tvm_ffi.dtype.from_dlpack_data_type((code, bits, lanes)))
        element_bytes = stored_dtype(dtype).itemsize
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(
            f'tensor "{name}" of {path} has a dtype (code {code}, {bits} bits, {lanes} lanes) '
            "that cannot be loaded"
        ) from error
    try:
        shape = check_shape(sizes)
    except ValueError as error:
        raise ValueError(f"{where} has no valid shape: {error}") from error
    require(
        num_bytes == prod(shape) * element_bytes,
        f"{where} has {num_bytes} bytes for {dtype} {list(shape)}",
    )
    offset = file.tell()
    require(offset + num_bytes <= size, f"{where} ends at byte {offset + num_bytes} of {size}")
    file.seek(num_bytes, 1)
    return StoredArray(name, path, offset, shape, dtype, dtype)


def _unpack(file: BinaryIO, form: str, where: str) -> tuple[int, ...]:
    text = file.read(struct.calcsize(form))
    require(len(text) == struct.calcsize(form), f"{where} is cut off")
    return struct.unpack(form, text)
