"""Watches host connections for disconnects; anything else that arrives there is an answer."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence

from distir_ext.wire.byte_stream import Stream


class Lines:
    """Watches the connections to all hosts of a session; each exchange waits for this one object.

    Registering hundreds of connections for each call would take longer than the call.

    Args:
        workers_of: By connection the workers that are lost with it.
    """

    def __init__(self, workers_of: Mapping[Stream, Sequence[int]]) -> None:
        self._workers_of = {line.fileno(): ranks for line, ranks in workers_of.items()}
        self._epoll = select.epoll()
        for descriptor in self._workers_of:
            self._epoll.register(descriptor, select.EPOLLRDHUP)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when a connection has ended."""
        return self._epoll.fileno()

    def ended(self) -> list[int]:
        """Workers whose lines have ended, which are watched no more."""
        found: list[int] = []
        for descriptor, _ in self._epoll.poll(0):
            self._epoll.unregister(descriptor)
            found += self._workers_of[descriptor]
        return found

    def close(self) -> None:
        """Watches nothing any more."""
        self._epoll.close()
