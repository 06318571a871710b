"""Connections to hosts on which nothing arrives unasked but their end."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence

from distir_ext._workers.connection.byte_stream import Stream


class Lines:
    """Watches the lines of all hosts of a session; each exchange waits for this one object.

    To have the system watch hundreds of them anew would take longer than a call.

    Args:
        workers_of: By line the workers that are lost with it.
    """

    def __init__(self, workers_of: Mapping[Stream, Sequence[int]]) -> None:
        self._workers_of = {line.fileno(): ranks for line, ranks in workers_of.items()}
        self._epoll = select.epoll()
        for descriptor in self._workers_of:
            self._epoll.register(descriptor, select.EPOLLIN)

    def fileno(self) -> int:
        """What is ready to be read when a line has ended."""
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
