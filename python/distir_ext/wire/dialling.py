"""Connects to several addresses of one host in parallel, and keeps the first that answers.

Of a host that has several interfaces, some may not be reached from here, or lead to somebody else
who never answers, and nothing says so but that nothing comes. So each address has a thread, and
whoever has proved first that it is the right one comes first.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from distir_ext.wire.byte_stream import Stream

# Makes the connection to an address within a time, in seconds; asks for what it wants in a context.
Connect = Callable[[str, float, Callable[[], AbstractContextManager[None]]], Stream]


class Dialling:
    """Attempts to make a connection to one of these addresses, again and again.

    Args:
        connect: Function that makes a connection; called in several threads.
        addresses: Addresses to connect to.
        interval: Time after which an address that was not reached, or served nothing, is dialled
            again, in seconds.
        deadline: Until when, on the clock ``time.monotonic``.
    """

    def __init__(
        self, connect: Connect, addresses: Sequence[str], interval: float, deadline: float
    ) -> None:
        self._connect = connect
        self._due = dict.fromkeys(addresses, 0.0)  # those that no thread dials now
        self._interval = interval
        self._deadline = deadline
        self._came: queue.SimpleQueue[tuple[str, Stream | Exception]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._turns = threading.Lock()
        self._answered = False
        self._closed = False

    def next(self) -> tuple[str, Stream | Exception] | None:
        """The address that answers next, with its connection or why there is none.

        Returns:
            None if the deadline is over.
        """
        while (left := self._deadline - time.monotonic()) > 0:
            now = time.monotonic()
            for address in [each for each, due in self._due.items() if due <= now]:
                del self._due[address]
                threading.Thread(target=self._dial, args=(address,), daemon=True).start()
            try:
                address, found = self._came.get(timeout=min([left, *self._waits(now)]))
            except queue.Empty:
                continue
            self._due[address] = time.monotonic() + self._interval
            return address, found
        return None

    def close(self) -> None:
        """Ends connections that are made from now on, or that nobody has taken."""
        with self._lock:
            self._closed = True
        while not self._came.empty():
            _, found = self._came.get()
            if isinstance(found, Stream):
                found.close()

    def _waits(self, now: float) -> list[float]:
        return [due - now for due in self._due.values()]

    def _dial(self, address: str) -> None:
        """Runs in a thread, since to look for a name may take long, too."""
        found: Stream | Exception
        try:
            left = max(0.01, self._deadline - time.monotonic())
            found = self._connect(address, left, self._turn)
        except Exception as error:
            found = error
        with self._lock:
            if not self._closed:
                self._came.put((address, found))
            elif isinstance(found, Stream):
                found.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One asks at a time, and nobody after the first who is answered."""
        with self._turns:
            if self._answered:
                raise ConnectionAbortedError("another address has answered")
            yield
            self._answered = True
