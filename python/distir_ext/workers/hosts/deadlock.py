"""Detects deadlocks of workers on several hosts, from two snapshots of their progress."""

from __future__ import annotations

from collections.abc import Sequence


def find_deadlock(
    finished: Sequence[bool], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]
) -> list[int]:
    """The ranks that can never go on; none if some can, or if that is not certain.

    All of ``before`` was seen before any of ``after``. A worker that is in the same wait both times
    was in it at the moment between, has sent nothing since, and does not have what it waits for
    among the messages that it has seen. If every message to it had been seen by then, and
    nobody runs, nothing can change any more.

    Args:
        finished: Per rank whether the worker has finished its program.
        before: Per rank how far it had come, as ``HostProcesses.progress`` says it.
        after: The same, later.
    """
    waiting = [rank for rank, done in enumerate(finished) if not done]
    count = len(finished)
    if not all([*before, *after]):  # a host does not answer
        return []
    for rank in waiting:
        if not before[rank][0] or not after[rank][0] or before[rank][1] != after[rank][1]:
            return []
        for source in range(count):
            sent = after[source][2 + rank]
            seen = before[rank][2 + count + source]
            if sent != seen:
                return []
    return waiting
