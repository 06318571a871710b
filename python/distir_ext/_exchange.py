"""One frame to each worker and its answer back, without waiting for one worker alone."""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distir_ext._channel import ChannelClosedError, Frame, FrameReader

# How long the first failure is waited for after another one, and a worker's end, in seconds.
UNWIND_LIMIT = 1.0

# How long nothing arrives before somebody looks whether anything can arrive, in seconds.
_LOOK_INTERVAL = 0.5


@dataclass
class Exchange:
    """What came of sending each worker a frame.

    Attributes:
        answers: Per rank the answer; None if there is none.
        lost: Ranks of workers whose channels have ended, in the order in which that was noticed.
        timed_out: Whether the deadline was over before an answer or a failure.
        deadlock: A rank whose worker can never go on, and why not, if that was found.
    """

    answers: list[Any]
    lost: list[int] = field(default_factory=list)
    timed_out: bool = False
    deadlock: tuple[int, str] | None = None

    @property
    def failures(self) -> list[dict[str, Any]]:
        """What workers that have failed say of it."""
        return [each["failure"] for each in self.answers if each and "failure" in each]

    @property
    def complete(self) -> bool:
        """Whether all have answered, or the first failure is known."""
        if any(is_first(failure) for failure in self.failures):
            return True
        return all(each or rank in self.lost for rank, each in enumerate(self.answers))


def is_first(failure: Any) -> bool:
    """Whether a failure is the one that others follow from; of starting a worker none is."""
    return isinstance(failure, dict) and bool(failure["first"])


def exchange(
    streams: Sequence[socket.socket],
    frames: Sequence[Frame | None],
    deadline: float,
    abort: Callable[[], None],
    lines: Mapping[socket.socket, Sequence[int]],
    look: Callable[[Sequence[bool]], tuple[int, str] | None] | None,
) -> Exchange:
    """Sends frames to the workers that there are frames for, and reads their answers.

    Ends early, with answers missing, when the deadline is over or a worker has failed.

    Args:
        streams: Per rank the channel, which does not block.
        frames: Per rank what is sent.
        deadline: By the monotonic clock, in seconds.
        abort: Called when a worker is lost; makes those that wait for it fail.
        lines: Connections on which nothing arrives but their end, and the workers that are lost
            with them.
        look: Finds a deadlock, given by rank whether the worker has answered; called now and then
            while nothing arrives.
    """
    result = Exchange([None if frame else {"asked": False} for frame in frames])
    readers = [FrameReader() for _ in frames]
    unsent: dict[int, Frame] = {rank: frame for rank, frame in enumerate(frames) if frame}

    def lose(ranks: Sequence[int]) -> None:
        nonlocal deadline
        result.lost += [rank for rank in ranks if rank not in result.lost]
        abort()
        deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)

    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line, selectors.EVENT_READ, None)
        for rank in unsent:
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(streams[rank], events, rank)
        while not result.complete:
            left = deadline - time.monotonic()
            if left <= 0:
                result.timed_out = not result.lost and not result.failures
                break
            longest = left if look is None else min(left, _LOOK_INTERVAL)
            ready = selector.select(None if longest == math.inf else longest)
            if not ready and look is not None and not unsent and not result.lost:
                result.deadlock = look([answer is not None for answer in result.answers])
                if result.deadlock is not None:
                    break
            for key, _ in ready:
                if key.data is None:
                    assert isinstance(key.fileobj, socket.socket)
                    selector.unregister(key.fileobj)
                    lose(lines[key.fileobj])
                    continue
                rank = key.data
                stream = streams[rank]
                try:
                    if rank in unsent and unsent[rank].write(stream):
                        del unsent[rank]
                        selector.modify(stream, selectors.EVENT_READ, rank)
                    found = readers[rank].read(stream)
                except ChannelClosedError:
                    selector.unregister(stream)
                    lose([rank])
                    continue
                if found is None:
                    continue
                (result.answers[rank],) = found
                selector.unregister(stream)
                if "failure" in found[0]:
                    deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)
    return result
