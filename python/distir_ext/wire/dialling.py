"""Dials several addresses at a time: some of them may drop what is sent there.

Of a host that has several interfaces, some may not be reached from here, and nothing says so but
that nothing comes. So each address has a thread, and whoever is reached first comes first.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Sequence

from distir_ext.wire.connections import parse_address


class Dialling:
    """Connections to some of these addresses, as they are made, again and again.

    Args:
        addresses: As :func:`parse_address` reads them.
        interval: Time after which an address that was not reached, or served nothing, is dialled
            again, in seconds.
        deadline: Until when, on the clock ``time.monotonic``.
    """

    def __init__(self, addresses: Sequence[str], interval: float, deadline: float) -> None:
        self._due = dict.fromkeys(addresses, 0.0)  # those that no thread dials now
        self._interval = interval
        self._deadline = deadline
        self._came: queue.SimpleQueue[tuple[str, socket.socket | Exception]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def next(self) -> tuple[str, socket.socket | Exception] | None:
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
            if isinstance(found, socket.socket):
                found.close()

    def _waits(self, now: float) -> list[float]:
        return [due - now for due in self._due.values()]

    def _dial(self, address: str) -> None:
        """Runs in a thread, since to look for a name may take long, too."""
        found: socket.socket | Exception
        try:
            left = self._deadline - time.monotonic()
            found = socket.create_connection(parse_address(address), max(0.01, left))
        except (OSError, ValueError) as error:
            found = error
        with self._lock:
            if not self._closed:
                self._came.put((address, found))
            elif isinstance(found, socket.socket):
                found.close()
