"""Diagnoses failures from workers' answers and from the progress that hosts report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distir_ext.workers.base import stalled_message, wait_for_one_running
from distir_ext.workers.exchange import Exchange, is_cause, is_first
from distir_ext.workers.host_processes import HostProcesses, Started
from distir_ext.workers.hosts.deadlock import find_deadlock


class Diagnosis:
    """Finds and describes failures of workers.

    Args:
        started: The workers and their hosts.
        device_ids: By rank.
    """

    def __init__(self, started: Started, device_ids: Sequence[int]) -> None:
        self._started = started
        self._device_ids = device_ids

    def failure(self, name: str, came: Exchange, timeout: float | None) -> dict[str, Any] | None:
        """The failure of an exchange that came first, or None.

        Args:
            name: Name of the step in messages.
            came: Its outcome, if it has ended.
            timeout: The limit that it had.
        """
        for rank, why in came.broken.items():
            return self._describe(rank, name, "ProtocolError", why)
        failures = came.failures
        for failure in failures:
            if is_cause(failure):
                return dict(failure)
        if came.lost:
            return self._lost(self._first_lost(came.lost), name)
        if failures:
            return dict(max(failures, key=is_first))
        if came.deadlock is not None:
            rank, why = came.deadlock
            return self._describe(rank, name, "ValueError", why)
        if not came.timed_out:
            return None
        late = came.late
        waits = self._waits(late)
        for rank in late:
            if self._started.host_of[rank].lost:
                return self._lost(rank, name)
        stalled = next((rank for rank in late if not waits[rank]), late[0])
        assert timeout is not None
        why = stalled_message(timeout)
        if waits[stalled]:
            why += f"; it waits in {waits[stalled]}"
        return self._describe(stalled, name, "TimeoutError", why)

    def _waits(self, late: Sequence[int]) -> dict[int, str]:
        """Returns the operations that late workers wait in, by rank; empty if they run."""

        def look() -> dict[int, str]:
            return {rank: wait for rank, (_, wait) in self._statuses(late).items()}

        wait_for_one_running(lambda: list(look().values()).count(""))
        return look()

    def _first_lost(self, lost: Sequence[int]) -> int:
        """A worker of a host that is lost itself, if one is, and not only what passes on to it."""
        hosts = self.by_host(lost)
        for host, ranks in hosts if len(hosts) > 1 else ():
            host.status(ranks[:1])
            if host.lost:
                return ranks[0]
        return lost[0]

    def _lost(self, rank: int, name: str) -> dict[str, Any]:
        why = self._how_it_ended(rank)
        kind = "HostLostError" if self._started.host_of[rank].lost else "ProcessLostError"
        return self._describe(rank, name, kind, why)

    def deadlock(self, finished: Sequence[bool]) -> tuple[int, str] | None:
        """A rank whose worker can never go on, and why not.

        Args:
            finished: Per rank whether the worker has answered all that it was sent.
        """
        late = [rank for rank, done in enumerate(finished) if not done]
        for host, ranks in self.by_host(late):
            if not all(wait for _, wait in host.status(ranks)):
                return None  # which is what one finds as long as somebody computes
        found = [[self._progress(rank) for rank in range(len(finished))] for _ in range(2)]
        stuck = find_deadlock(finished, *found)
        if not stuck:
            return None
        waits = {rank: wait for rank, (_, wait) in self._statuses(stuck).items()}
        others = [
            f"device {device} "
            + (f"waits in {waits[rank]}" if rank in waits else "has finished its program")
            for rank, device in enumerate(self._device_ids)
            if rank != stuck[0]
        ]
        return stuck[0], "; ".join(
            [
                f"{waits[stuck[0]]} can never complete, the programs of the workers disagree",
                *others,
            ]
        )

    def _describe(self, rank: int, name: str, kind: str, message: str) -> dict[str, Any]:
        return {
            "worker": rank,
            "device": self._device_ids[rank],
            "function": name,
            "operator": self._statuses([rank])[rank][0],
            "kind": kind,
            "message": message,
            "backtrace": "",
        }

    def _statuses(self, ranks: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Returns each worker's operation and wait by rank; each host is asked once."""
        return {
            rank: status
            for host, mine in self.by_host(ranks)
            for rank, status in zip(mine, host.status(mine), strict=True)
        }

    def by_host(self, ranks: Sequence[int]) -> list[tuple[HostProcesses, list[int]]]:
        """Hosts with those of some workers that they have."""
        found: dict[int, tuple[HostProcesses, list[int]]] = {}
        for rank in ranks:
            host = self._started.host_of[rank]
            found.setdefault(id(host), (host, []))[1].append(rank)
        return list(found.values())

    def _progress(self, rank: int) -> list[int]:
        return self._started.host_of[rank].progress(rank)

    def _how_it_ended(self, rank: int) -> str:
        return self._started.host_of[rank].how_it_ended(rank)
