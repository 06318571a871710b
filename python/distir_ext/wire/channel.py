"""Sends and receives frames of numbers, text and arrays between a controller and a worker.

A frame is the size of its header in 8 bytes (little endian), the header as JSON, and buffers one
after the other. The header is ``{"message": ..., "buffers": [...]}``; each buffer is described as
``[dtype, shape]`` for a tensor or as a number of bytes. In the message, what JSON lacks is an
object with one key::

    {"tensor": 0}       a buffer that is a tensor       {"bytes": 1}   a buffer of bytes
    {"shape": [2, 3]}   tvm_ffi.Shape                   {"list": [..]}  a list, a tuple or an Array
    {"dict": {..}}      string keys                     {"held": [7, 0]}  see class Held
    {"stored": {..}}    an array on disk, or a box of one
    {"part": {..}}      whichever box of an array on disk is the receiver's (``parts``)

A frame in a message is bytes to whoever reads that: who passes frames on looks into none of them.

Nothing is assumed about the stream but that it is one: it may be a socket of any kind. Nothing in
a frame is run by whoever reads it.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi

from distir_ext.params.host_array import check_shape, memory_of, on_host, tensor_bytes
from distir_ext.params.parts import StoredPart
from distir_ext.params.stored_array import (
    StoredArray,
    StoredBox,
    StoredShards,
    from_plain,
    to_plain,
)
from distir_ext.text.printable import printable
from distir_ext.wire.byte_stream import ByteStream

_PREFIX = struct.Struct("<Q")

# A header describes arrays and does not contain them; what claims more is not one.
_LONGEST_HEADER = 64 << 20

# Of one header: lists, objects and what is in them. Python needs some 100 bytes for each.
_MOST_VALUES = 1 << 22

# Of what is wrong with a frame, in characters.
_LONGEST_REASON = 500

# Of each text that says why a worker has failed, in characters: a program may raise anything.
LONGEST_FAILURE = 1 << 16

# What is received at a time, of bytes.
_PIECE_BYTES = 1 << 20

# Buffers of a frame that may be the same from several senders, in bytes.
_SMALL_BUFFERS = 1 << 16

# Buffers that one system call gathers; systems allow 1024.
_MOST_BUFFERS = 512

# What a message has beside what JSON has.
_KINDS = frozenset({"tensor", "bytes", "shape", "list", "dict", "held", "stored", "part"})

# Of these what workers answer with. What only a controller says is not even looked at.
FROM_WORKERS = _KINDS - {"held", "part"}


@dataclass(frozen=True)
class Held:
    """Name of an object that workers hold: a result of a step on each worker that has run it.

    Attributes:
        step: The number of the step.
        index: Index of the object among the step's results.
    """

    step: int
    index: int


NewTensor = Callable[[tuple[int, ...], str], Any]
"""Makes a tensor in host memory."""


class ChannelClosedError(Exception):
    """The other side is gone."""


def _type_key(value: Any) -> str:
    info = getattr(type(value), "__tvm_ffi_type_info__", None)
    return "" if info is None else str(info.type_key)


class Frame:
    """A frame to be sent, to one stream or several; see :class:`FrameWriter`.

    Args:
        message: Its content: None, bool, int, float, str, bytes, shapes, tensors, native shards
            (which are cut), held objects, arrays on disk, boxes and parts of them, frames; lists
            and dictionaries of these.
        cut: Shards that have been cut, by identity, shared by frames with the same message.

    Attributes:
        pieces: Its bytes.
        enclosed: The frame that has this one in it, kept by whoever sends it often.

    Raises:
        TypeError: the message has something else in it.
        ValueError: it is longer than a reader takes.
    """

    def __init__(self, message: Any, cut: dict[int, Any] | None = None) -> None:
        self.enclosed: Frame | None = None
        self._descriptions: list[Any] = []
        self._memory: list[memoryview] = []
        self._owners: list[Any] = []
        self._cut = {} if cut is None else cut
        header = {"message": self._encode(message), "buffers": self._descriptions}
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > _LONGEST_HEADER:
            raise ValueError(
                f"a message of {len(text)} bytes, without its arrays, is more than the "
                f"{_LONGEST_HEADER} that are sent between processes"
            )
        self.pieces = (memoryview(_PREFIX.pack(len(text)) + text), *self._memory)

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes on a stream."""
        return sum(piece.nbytes for piece in self.pieces)

    def _encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, Held):
            return {"held": [value.step, value.index]}
        if isinstance(value, StoredArray | StoredShards | StoredBox):
            return {"stored": to_plain(value)}
        if isinstance(value, StoredPart):
            return {"part": value.to_plain()}
        if isinstance(value, tvm_ffi.Shape):
            return {"shape": [int(size) for size in value]}
        if isinstance(value, bytes):
            return {"bytes": self._buffer(len(value), [memoryview(value)], value)}
        if isinstance(value, Frame):
            return {"bytes": self._buffer(value.num_bytes, value.pieces, value)}
        if isinstance(value, dict):
            return {"dict": {str(key): self._encode(each) for key, each in value.items()}}
        if isinstance(value, tvm_ffi.Tensor):
            value = on_host(value)
            description = [str(value.dtype), [int(size) for size in value.shape]]
            return {"tensor": self._buffer(description, [memory_of(value)], value)}
        if isinstance(value, list | tuple | tvm_ffi.Array):
            return {"list": [self._encode(each) for each in value]}
        if _type_key(value) == "distir.runtime.Shard":
            key = id(value)
            if key not in self._cut:
                tensor = tvm_ffi.get_global_func("distir.runtime.cut_shard")(value)
                self._cut[key] = (tensor, value)  # keeps the identity in use
            return self._encode(self._cut[key][0])
        raise TypeError(f"{type(value).__name__} cannot be sent between processes")

    def _buffer(self, description: Any, memory: Sequence[memoryview], owner: Any) -> int:
        self._descriptions.append(description)
        self._memory += [piece for piece in memory if piece.nbytes]
        self._owners.append(owner)
        return len(self._descriptions) - 1


class FrameWriter:
    """Writes bytes to a stream as it takes them.

    Args:
        pieces: Of a frame.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pending = deque(pieces)

    def write(self, stream: ByteStream) -> bool:
        """Writes what the stream takes.

        Returns:
            Whether the frame is written.

        Raises:
            ChannelClosedError: the other side is gone.
        """
        while self._pending:
            first = [self._pending[i] for i in range(min(len(self._pending), _MOST_BUFFERS))]
            try:
                sent = stream.sendmsg(first)
            except BlockingIOError:
                return False
            except OSError as error:
                raise ChannelClosedError(str(error)) from error
            while self._pending and sent >= self._pending[0].nbytes:
                sent -= self._pending.popleft().nbytes
            if sent:
                self._pending[0] = self._pending[0][sent:]
        return True


def _new_tensor(shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor in memory that earlier ones have left: fresh memory takes longer than a copy."""
    new_tensor = tvm_ffi.get_global_func("distir.runtime.new_host_tensor")
    return new_tensor(tvm_ffi.Shape(shape), dtype)


class _Bytes:
    """Bytes that arrive: they take memory as they do, whatever their number is said to be."""

    def __init__(self, size: int) -> None:
        self.content = bytearray()
        self.left = size

    def read(self, stream: ByteStream) -> int:
        piece = memoryview(bytearray(min(self.left, _PIECE_BYTES)))
        count = stream.recv_into(piece)
        self.content += piece[:count]
        self.left -= count
        return count


class _Memory:
    """The elements of a tensor that arrive."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    @property
    def left(self) -> int:
        return self._memory.nbytes

    def read(self, stream: ByteStream) -> int:
        count = stream.recv_into(self._memory)
        self._memory = self._memory[count:]
        return count


class _InMemory:
    """A stream of bytes that are here already, and then ends."""

    def __init__(self, content: bytes | bytearray) -> None:
        self._left = memoryview(content)

    def fileno(self) -> int:
        return -1

    def recv_into(self, buffer: memoryview, /) -> int:
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        raise OSError("it is read only")

    def close(self) -> None:
        pass


class FrameReader:
    """Reads frames from a stream, as they arrive.

    The other side may be anybody: whatever it sends is a message or a ValueError, and takes no more
    memory than it has sent bytes, times a constant. Of tensors only the addresses are taken before.

    Args:
        new_tensor: Makes the tensors that are received, from shape and dtype.
        kinds: Kinds of values that messages may have, by the words of frames.

    Attributes:
        known: Messages by the bytes of their frames, for readers that receive the same from
            several senders; they decode it once. None: all are decoded.
    """

    def __init__(self, new_tensor: NewTensor = _new_tensor, kinds: frozenset[str] = _KINDS) -> None:
        self._new_tensor = new_tensor
        self._kinds = kinds
        self.known: dict[bytes, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._whole: _Bytes | None = None  # all buffers of a small frame
        self._header: dict[str, Any] | None = None
        self._text: _Bytes | None = None
        self._buffers: list[Any] = []
        self._prefix = _Bytes(_PREFIX.size)
        self._targets: deque[_Bytes | _Memory] = deque([self._prefix])

    def read(self, stream: ByteStream) -> tuple[Any] | None:
        """Reads what there is.

        Returns:
            A message, alone in a tuple; None if the rest of it has not arrived yet, which happens
            on streams that do not block.

        Raises:
            ChannelClosedError: the other side is gone.
            ValueError: what arrived is not a frame, or there is no memory for it.
        """
        try:
            return self._read(stream)
        except MemoryError as error:
            self._begin()  # gives back what has arrived
            raise ValueError("there is no memory for what arrived") from error

    def _read(self, stream: ByteStream) -> tuple[Any] | None:
        while True:
            while self._targets:
                target = self._targets[0]
                if target.left == 0:
                    self._targets.popleft()
                    continue
                try:
                    count = target.read(stream)
                except BlockingIOError:
                    return None
                except OSError as error:
                    raise ChannelClosedError(str(error)) from error
                if count == 0:
                    raise ChannelClosedError("the stream has ended")
            if self._header is not None:
                with _frame_errors():
                    if self._whole is None and self._goes_on(self._header["buffers"]):
                        continue
                    message = self._message(self._header)
                self._begin()
                return (message,)
            if self._text is None:
                (size,) = _PREFIX.unpack(self._prefix.content)
                if not 0 < size <= _LONGEST_HEADER:
                    raise ValueError(f"a frame cannot have a header of {size} bytes")
                self._text = _Bytes(size)
                self._targets.append(self._text)
                continue
            with _frame_errors():
                self._read_header(self._text.content)

    def _message(self, header: dict[str, Any]) -> Any:
        """The message of a frame all of which is here."""
        if self._whole is None or self.known is None or self._text is None:
            return self._decode(header["message"])
        key = bytes(self._text.content + self._whole.content)
        if key not in self.known:
            whole = _InMemory(self._whole.content)
            while self._goes_on(header["buffers"]):
                target = self._targets.popleft()
                while target.left:
                    target.read(whole)
            self.known[key] = self._decode(header["message"])
        return self.known[key]

    def _read_header(self, text: bytearray) -> None:
        """Takes the header."""
        self._header = self._parsed(text)
        sizes = self._sizes(self._header)
        if self.known is not None and sum(sizes) <= _SMALL_BUFFERS:
            self._whole = _Bytes(sum(sizes))
            self._targets.append(self._whole)

    @staticmethod
    def _parsed(text: bytearray) -> dict[str, Any]:
        """A header."""
        if text.count(b",") + text.count(b"[") + text.count(b"{") > _MOST_VALUES:
            raise ValueError(f"a frame cannot have more than {_MOST_VALUES} values")
        header: dict[str, Any] = json.loads(text.decode())
        return header

    @staticmethod
    def _sizes(header: dict[str, Any]) -> list[int]:
        """Returns the number of bytes of each buffer."""
        sizes = [_buffer_bytes(each) for each in header["buffers"]]
        if sum(sizes) > _most_bytes():
            raise ValueError(f"a frame cannot have {sum(sizes)} bytes of buffers")
        return sizes

    def _goes_on(self, descriptions: Sequence[Any]) -> bool:
        """Makes what the next buffer is received in, if there is one.

        Not before the last one is here: a million that are empty are claimed in a few bytes each.
        """
        if self._buffers and isinstance(self._buffers[-1], _Bytes):
            self._buffers[-1] = bytes(self._buffers[-1].content)
        if len(self._buffers) == len(descriptions):
            return False
        description = descriptions[len(self._buffers)]
        if isinstance(description, int):
            self._buffers.append(_Bytes(description))
            self._targets.append(self._buffers[-1])
        else:
            self._buffers.append(self._tensor(*description))
            self._targets.append(_Memory(memory_of(self._buffers[-1])))
        return True

    def _tensor(self, dtype: str, shape: Sequence[int]) -> Any:
        try:
            return self._new_tensor(tuple(shape), dtype)
        except (MemoryError, RuntimeError) as error:
            raise ValueError(f"there is no memory for {dtype} {list(shape)}: {error}") from error

    def _decode(self, value: Any) -> Any:
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise ValueError("a message has a list that is not marked as one")
            return value
        ((kind, content),) = value.items()
        if kind not in self._kinds:
            why = ", that the other side may not send" if kind in _KINDS else ""
            unknown = "" if why else "unknown "
            raise ValueError(f'a message has a value of {unknown}kind "{kind}"{why}')
        if kind == "tensor":
            return self._buffer(content, is_bytes=False)
        if kind == "bytes":
            return self._buffer(content, is_bytes=True)
        if kind == "shape":
            return tvm_ffi.Shape(_integers(content))
        if kind == "held":
            step, index = content
            return Held(_natural(step), _natural(index))
        if kind == "stored":
            return from_plain(content)
        if kind == "part":
            return StoredPart.from_plain(content)
        if kind == "dict":
            return {key: self._decode(each) for key, each in content.items()}
        return [self._decode(each) for each in content]

    def _buffer(self, index: Any, is_bytes: bool) -> Any:
        """A buffer, which is one object however often a message refers to it."""
        found = self._buffers[_natural(index)]
        if isinstance(found, bytes) != is_bytes:
            raise ValueError(f"buffer {index} is of another kind than the message says")
        return found


class RawFrameReader(FrameReader):
    """Reads frames as bytes, for whoever passes them on.

    Of a frame it is known whether it says ``{"failure"}``. It is looked at as far as has to be to
    know where it ends; what else is wrong with it, its reader finds out.
    """

    def _read_header(self, text: bytearray) -> None:
        self._header = self._parsed(text)
        self._whole = _Bytes(sum(self._sizes(self._header)))
        self._targets.append(self._whole)

    def _message(self, header: dict[str, Any]) -> Any:
        """The bytes of the frame, and whether it says that something has failed."""
        assert self._text is not None
        assert self._whole is not None
        message = header.get("message")
        content = message.get("dict") if isinstance(message, dict) else None
        has_failed = isinstance(content, dict) and "failure" in content
        frame = bytes(self._prefix.content + self._text.content + self._whole.content)
        return frame, has_failed


@contextlib.contextmanager
def _frame_errors() -> Iterator[None]:
    """Raises one kind of error for everything that is wrong with what has arrived.

    The other side may have written any of its words.
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(printable(str(error)[:_LONGEST_REASON])) from error
    except (LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = printable(f"{type(error).__name__}: {error}"[:_LONGEST_REASON])
        raise ValueError(f"what arrived is not a frame: {reason}") from error


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]} is not a number of a frame")
    return value


def _integers(values: Any) -> tuple[int, ...]:
    """Numbers that are sent as a shape: sizes, or others."""
    if not all(type(each) is int and -(2**63) <= each < 2**63 for each in values):
        raise ValueError("a list of integers has something else in it")
    return tuple(values)


def _buffer_bytes(description: Any) -> int:
    """Returns the number of bytes of a buffer; raises ValueError if there is no such buffer."""
    if isinstance(description, int):
        return _natural(description)
    dtype, shape = description
    return tensor_bytes(check_shape(shape), dtype)


def _most_bytes() -> int:
    """Returns the most bytes that can be received: as many as this machine has memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def send(stream: ByteStream, message: Any) -> None:
    """Writes a frame to a stream that blocks."""
    FrameWriter(Frame(message).pieces).write(stream)


def receive(stream: ByteStream, new_tensor: NewTensor = _new_tensor) -> Any:
    """Reads a frame from a stream that blocks."""
    found = FrameReader(new_tensor).read(stream)
    assert found is not None, "a stream that blocks gives whole frames"
    return found[0]


def decode(frame: bytes, kinds: frozenset[str] = _KINDS) -> Any:
    """The message of a frame that is all here.

    Args:
        frame: The frame.
        kinds: As for :class:`FrameReader`.

    Raises:
        ValueError: it is none, or not all of it.
    """
    try:
        found = FrameReader(kinds=kinds).read(_InMemory(frame))
    except ChannelClosedError as error:
        raise ValueError("a frame is cut off") from error
    assert found is not None, "what is in memory is there"
    return found[0]
