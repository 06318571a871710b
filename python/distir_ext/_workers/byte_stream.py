"""Streams of bytes between processes and hosts, and the deadline for what is read and written."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Protocol


class ByteStream(Protocol):
    """What frames are written to and read from: a socket, or a :class:`Stream`."""

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int: ...

    def close(self) -> None: ...


class Stream:
    """A connected socket.

    Reading and writing wait until the deadline, which is one for all of them: who sends a byte now
    and then gains no time.

    Args:
        raw: A connected socket; belongs to the stream.
        deadline: See :meth:`limit`, as a time of ``time.monotonic``.
    """

    def __init__(self, raw: socket.socket, deadline: float = math.inf) -> None:
        self.raw = raw
        raw.setblocking(False)
        self._blocks = True
        self._deadline = deadline

    def limit(self, seconds: float) -> None:
        """Has everything from now on end within so many seconds; math.inf for no limit."""
        self._deadline = time.monotonic() + seconds

    def setblocking(self, blocks: bool) -> None:
        """Whether reading and writing wait; if not they raise BlockingIOError."""
        self._blocks = blocks

    def fileno(self) -> int:
        return self.raw.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        return self._complete(select.POLLIN, lambda: self.raw.recv_into(buffer))

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        return self._complete(select.POLLOUT, lambda: self.raw.sendmsg(buffers))

    def send_all(self, data: bytes) -> None:
        """Writes all of it."""
        left = memoryview(data)
        while left:
            left = left[self.sendmsg([left]) :]

    def receive(self, size: int) -> bytes:
        """Reads so many bytes.

        Raises:
            EOFError: the other side has ended the connection.
        """
        received = bytearray(size)
        left = memoryview(received)
        while left:
            count = self.recv_into(left)
            if count == 0:
                raise EOFError("it has hung up")
            left = left[count:]
        return bytes(received)

    def hang_up(self) -> None:
        """Ends the connection, also for whoever waits on it."""
        hang_up(self.raw)

    def close(self) -> None:
        self.raw.close()

    def _complete(self, event: int, attempt: Callable[[], int]) -> int:
        while True:
            try:
                return attempt()
            except BlockingIOError:
                if not self._blocks:
                    raise
            self._wait(event)

    def _wait(self, event: int) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it took too long")
        poll = select.poll()
        poll.register(self.raw, event)
        poll.poll(None if left == math.inf else math.ceil(left * 1000))


def hang_up(raw: socket.socket) -> None:
    """Ends a connection, or a listener, also for whoever waits on it."""
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)
    raw.close()
