"""Reads users' arrays as host memory without a copy: NumPy, TVM and anything with DLPack.

No element is copied here. A worker that needs a part of the array cuts it straight out of the
caller's memory, whatever its strides are.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import tvm_ffi

from distir_ext.text.printable import printable

# NumPy's limit.
MOST_DIMS = 64

# DLPack's code of addresses.
_HANDLE = 3

# So that strides, and the bits of all elements, are numbers of 64 bits.
_MOST_ELEMENTS = 2**52


@lru_cache(maxsize=4096)
def _as_shape(sizes: tuple[int, ...]) -> tvm_ffi.Shape:
    """Sizes as the native side takes them; those of a call are mostly those of the one before."""
    return tvm_ffi.Shape(sizes)


@dataclass(frozen=True)
class HostArray:
    """A strided array in host memory.

    Attributes:
        owner: Keeps the memory alive.
        source: Source that the native side reads: a Tensor, or an address.
        shape: Sizes in elements.
        byte_strides: Distance of neighbours along each dimension, in bytes.
        dtype: TVM's name of the element type.
        process: Process that has the memory, if it is not this one.
    """

    owner: Any
    source: Any
    shape: tuple[int, ...]
    byte_strides: tuple[int, ...]
    dtype: str
    process: int = 0

    def shard(self, begin: Sequence[int], extent: Sequence[int], file: str = "") -> Any:
        """The box of ``extent`` elements at ``begin``, to be cut by the worker that gets it.

        What lies beyond the array is zero. Memory of a file that is mapped may be gone when it is
        cut, which is an error then that names the ``file``.

        Whoever passes it to a step keeps this object, and so the memory, until the step has ended.
        """
        return tvm_ffi.get_global_func("distir.runtime.shard")(
            self.source,
            _as_shape(self.shape),
            _as_shape(self.byte_strides),
            _as_shape(tuple(begin)),
            _as_shape(tuple(extent)),
            self.dtype,
            printable(file),  # of a name that is not UTF-8, too
            self.process,
        )


@dataclass(frozen=True)
class ArrayInParts:
    """An array of this process whose parts lie apart, as JAX has one that several devices share.

    Attributes:
        parts: First index of each part, and its elements.
        shape: Sizes in elements.
        dtype: TVM's name of the element type.
    """

    parts: tuple[tuple[tuple[int, ...], HostArray], ...]
    shape: tuple[int, ...]
    dtype: str

    def shard(self, begin: Sequence[int], extent: Sequence[int], file: str = "") -> Any:
        """As :meth:`HostArray.shard`; elements come from those parts that have some of the box."""
        parts, places = [], []
        for first, part in self.parts:
            low = tuple(max(pair) for pair in zip(begin, first, strict=True))
            ends = zip(begin, extent, first, part.shape, strict=True)
            high = tuple(min(b + size, f + mine) for b, size, f, mine in ends)
            if any(last <= start for start, last in zip(low, high, strict=True)):
                continue
            parts.append(part.shard(_minus(low, first), _minus(high, low), file))
            places.append(tvm_ffi.Shape(_minus(low, begin)))
        join = tvm_ffi.get_global_func("distir.runtime.joined_shard")
        return join(tvm_ffi.Shape(tuple(extent)), self.dtype, parts, places)


def _minus(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(one, other, strict=True))


def _of_jax(array: Any) -> HostArray | ArrayInParts:
    """An array of JAX: its parts on the devices of this process, each of them once."""
    if array.is_deleted():
        raise TypeError("it has been deleted, as donated arguments are")
    if not array.is_fully_addressable:
        raise TypeError("parts of it are on devices of other processes")
    shape = tuple(array.shape)
    parts: dict[tuple[int, ...], HostArray] = {}
    for shard in array.addressable_shards:
        begin = tuple(each.indices(size)[0] for each, size in zip(shard.index, shape, strict=True))
        if begin not in parts:
            parts[begin] = _of_dlpack(shard.data)
    if len(parts) == 1:
        return next(iter(parts.values()))
    dtype = next(iter(parts.values())).dtype
    return ArrayInParts(tuple(parts.items()), shape, dtype)


def _of_numpy(array: np.ndarray[Any, Any]) -> HostArray:
    if array.dtype.hasobject or array.dtype.names is not None or array.dtype.kind in "USMm":
        raise TypeError(f"it is an array of {array.dtype}, not of numbers")
    if not array.dtype.isnative:
        raise TypeError(f"its byte order ({array.dtype}) is not this machine's")
    return HostArray(array, array.ctypes.data, array.shape, array.strides, array.dtype.name)


def _of_tensor(tensor: Any) -> HostArray:
    if tensor.device.dlpack_device_type() != tvm_ffi.DLDeviceType.kDLCPU:
        raise TypeError(f"it is on {tensor.device}; move it to the CPU first")
    dtype = tvm_ffi.dtype(tensor.dtype)
    element_bytes = max(1, dtype.bits * dtype.lanes // 8)
    strides = tuple(stride * element_bytes for stride in tensor.strides)
    return HostArray(tensor, tensor, tuple(tensor.shape), strides, str(dtype))


def _of_dlpack(value: Any) -> HostArray:
    try:
        return _of_tensor(tvm_ffi.from_dlpack(value))
    except (RuntimeError, BufferError, ValueError) as error:
        # PyTorch adds where in its sources this was said.
        reason = str(error).partition("\n")[0]
        raise TypeError(f"its memory cannot be shared: {reason}") from error


def host_array(value: Any) -> HostArray | ArrayInParts:
    """Any array as memory.

    Args:
        value: A NumPy array or scalar, a TVM tensor, an array of JAX on devices of the host, an
            object with ``__dlpack__`` on the CPU, or what ``numpy.asarray`` accepts.

    Raises:
        TypeError: it is none of these, or not in host memory; the message continues "... : ".
    """
    if isinstance(value, np.ndarray | np.generic):
        return _of_numpy(np.asarray(value))
    if isinstance(value, tvm_ffi.Tensor):
        return _of_tensor(value)
    if hasattr(type(value), "addressable_shards") and hasattr(type(value), "__dlpack__"):
        return _of_jax(value)
    if hasattr(value, "__dlpack__"):
        if getattr(value, "requires_grad", False):
            value = value.detach()  # PyTorch shares the memory of tensors without gradients only
        return _of_dlpack(value)
    try:
        array = np.asarray(value)
        if array.dtype.hasobject and array.ndim == 0:
            raise TypeError(f"it is a {type(value).__name__}, not an array")
        return _of_numpy(array)
    except ValueError as error:
        raise TypeError(f"{type(value).__name__} is not an array: {error}") from error


def on_host(tensor: Any) -> Any:
    """A tensor in host memory: itself, or a copy of one that lies on a GPU and is complete."""
    if tensor.device.dlpack_device_type() == tvm_ffi.DLDeviceType.kDLCPU:
        return tensor
    return tvm_ffi.get_global_func("distir.runtime.copy_to_host")(tensor)


def check_counts(values: Any) -> tuple[int, ...]:
    """Numbers of elements or bytes that somebody else has stated.

    Raises:
        ValueError: it is not a list of numbers from 0 to what 63 bits count.
    """
    if not isinstance(values, list | tuple | tvm_ffi.Shape):
        raise ValueError("there is no list of sizes")
    counts = tuple(values)
    if not all(type(each) is int and 0 <= each < 2**63 for each in counts):
        raise ValueError("a size is not a number of elements")
    return counts


def check_shape(shape: Any) -> tuple[int, ...]:
    """A shape that somebody else has stated, if a tensor can have it.

    Raises:
        ValueError: it is not a list of sizes, or has more elements than can be counted.
    """
    sizes = check_counts(shape)
    if len(sizes) > MOST_DIMS:
        raise ValueError(f"a shape has at most {MOST_DIMS} sizes")
    if math.prod(max(1, size) for size in sizes) >= _MOST_ELEMENTS:
        raise ValueError("a shape has more elements than there can be")
    return sizes


def tensor_bytes(shape: Sequence[int], dtype: str) -> int:
    """The size of a tensor that somebody else has stated, computed without bounds.

    Args:
        shape: As :func:`check_shape` returns it.
        dtype: TVM's name of the element type.

    Raises:
        ValueError: there is no such type, its elements do not fill whole bytes, or there are more
            bytes than addresses.
    """
    if not isinstance(dtype, str):
        raise ValueError("a dtype is a name")
    try:
        found = tvm_ffi.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise ValueError(f"there is no dtype {dtype[:40]!r}") from error
    bits = found.bits * found.lanes
    if bits == 0 or bits % 8 != 0:
        raise ValueError(f"elements of {dtype} do not fill whole bytes")
    # Lanes have 16 bits and a sign: of those below zero the number is known to a processor only.
    if bits < 0 or found.type_code == _HANDLE:
        raise ValueError(f"elements of {dtype} are no numbers of a known size")
    size = math.prod(shape) * (bits // 8)
    if size >= 2**60:
        raise ValueError(f"{size} bytes are more than there can be")
    return size


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a dense TVM tensor in host memory, which stays as long as this does.

    Raises:
        ValueError: its elements do not fill whole bytes.
    """
    size = tensor_bytes([int(size) for size in tensor.shape], str(tensor.dtype))
    if size == 0:
        return memoryview(b"")
    address = tvm_ffi.get_global_func("distir.runtime.address")(tensor)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = tensor
    return memoryview(memory).cast("B")


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's or ``ml_dtypes``' element type of TVM's name."""
    return np.dtype(getattr(ml_dtypes, name, name))


def numpy_view(tensor: Any) -> np.ndarray[Any, Any]:
    """A dense TVM tensor in host memory as a NumPy array of the same memory.

    Unlike arrays by DLPack it can be written to, and have any dtype that ``ml_dtypes`` knows.
    """
    array: np.ndarray[Any, Any] = np.frombuffer(memory_of(tensor), numpy_dtype(str(tensor.dtype)))
    return array.reshape(tuple(int(size) for size in tensor.shape))


def copied_to_numpy(array: Any, dtype: Any, copy: bool | None, what: str) -> Any:
    """Returns the result of ``__array__`` for an array that lies elsewhere.

    Args:
        array: The array, with a method ``numpy()``.
        dtype: As NumPy asks for.
        copy: As NumPy asks for.
        what: Name of the array for messages.

    Raises:
        ValueError: NumPy wants no copy.
    """
    if copy is False:
        raise ValueError(f"{what} can only be copied to NumPy")
    found = array.numpy()
    return found if dtype is None else found.astype(dtype, copy=False)
