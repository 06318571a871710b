"""Reads and writes byte streams between processes and hosts, with one deadline."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from distir_ext.wire.tls import Tls, WaitingError

_Result = TypeVar("_Result")


class DeadlineError(TimeoutError):
    """The deadline of a stream is over, whose connection may be as good as before."""


class ByteStream(Protocol):
    """Stream that frames are written to and read from: a socket, or a :class:`Stream`."""

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int: ...

    def close(self) -> None: ...


class Stream:
    """A connected socket, as it is or with TLS.

    Reading and writing wait until the deadline, which is one for all of them: who sends a byte now
    and then gains no time. One thread may read while another writes.

    Args:
        raw: A connected socket; belongs to the stream.
        tls: TLS on it, which makes its handshake with what is first read or written.

    Attributes:
        raw: As given.
        tls: As given, or what :meth:`secure` has begun.
        writing_waits_to_read: Whether writing, which does not wait, can go on only when something
            has arrived.
        key: Key that encrypts the connection when it is handed to others; empty for none.
    """

    def __init__(self, raw: socket.socket, tls: Tls | None = None) -> None:
        self.raw = raw
        self.key = b""
        self.tls = tls
        self.writing_waits_to_read = False
        raw.setblocking(False)
        self._handshake_lock = threading.Lock()
        self._handshake_made = False
        self._blocks = True
        self._deadline = math.inf

    def limit(self, seconds: float) -> None:
        """Sets the time limit in seconds for everything from now on; math.inf for none."""
        self._deadline = time.monotonic() + seconds

    def setblocking(self, blocks: bool) -> None:
        """Sets whether reading and writing wait; otherwise they raise BlockingIOError."""
        self._blocks = blocks

    def secure(self, tls: Tls) -> None:
        """Begins TLS.

        Raises:
            TlsError: the other side is not accepted.
            OSError, EOFError: the connection has ended, or its time is over.
        """
        try:
            self._complete(select.POLLIN, tls.handshake)
        except BaseException:
            tls.close()
            raise
        self.tls = tls
        self._handshake_made = True

    def fileno(self) -> int:
        return self.raw.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        self._make_handshake()
        receive = self.raw.recv_into if self.tls is None else self.tls.recv_into
        return self._complete(select.POLLIN, lambda: receive(buffer))

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        self._make_handshake()
        send = self.raw.sendmsg if self.tls is None else self.tls.sendmsg
        self.writing_waits_to_read = False
        try:
            return self._complete(select.POLLOUT, lambda: send(buffers))
        except WaitingError as waiting:
            self.writing_waits_to_read = waiting.event == select.POLLIN
            raise

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
        """Ends a connection that no other thread waits on."""
        interrupt(self.raw)
        self.close()

    def close(self) -> None:
        if self.tls is not None:
            self.tls.close()
        self.raw.close()

    def forget(self) -> None:
        """As :meth:`close`, in a fork, while the process that was forked goes on using it."""
        if self.tls is not None:
            self.tls.forget()
        self.raw.close()

    def hand_over(self) -> socket.socket:
        """The socket without TLS, which belongs to the caller from now on."""
        if self.tls is not None:
            self.tls.close()
        return self.raw

    def _make_handshake(self) -> None:
        """Makes the handshake in one thread, if reading and writing wait.

        Two threads would both wait for the other side's answer, which only one of them finds: the
        other would wait on, with the connection made.
        """
        if self.tls is None or self._handshake_made or not self._blocks:
            return
        with self._handshake_lock:
            if not self._handshake_made:
                # Reading and writing say themselves that the other side has hung up.
                with contextlib.suppress(EOFError):
                    self._complete(select.POLLIN, self.tls.handshake)
                self._handshake_made = True

    def _complete(self, event: int, attempt: Callable[[], _Result]) -> _Result:
        while True:
            if time.monotonic() > self._deadline:
                raise DeadlineError("it took too long")
            try:
                return attempt()
            except BlockingIOError as error:
                if not self._blocks:
                    raise
                wanted = error.event if isinstance(error, WaitingError) else event
            poll = select.poll()
            poll.register(self.raw, wanted)
            left = self._deadline - time.monotonic()
            poll.poll(None if left == math.inf else max(0, math.ceil(left * 1000)))


def hang_up(raw: socket.socket) -> None:
    """Ends a connection that no other thread waits on."""
    interrupt(raw)
    raw.close()


def interrupt(raw: socket.socket) -> None:
    """Ends a connection, or a listener, for whoever waits on it, who closes it then.

    Another socket may have the number of one that is closed while somebody waits on that.
    """
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_RDWR)
