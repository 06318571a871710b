"""Frames to the workers and their answers back, without waiting for one worker alone."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distir_ext._workers.base import UNWIND_LIMIT
from distir_ext._workers.channel import ChannelClosedError, Frame, FrameReader
from distir_ext._workers.connection.byte_stream import ByteStream, Stream

# How long nothing arrives before somebody looks whether anything can arrive, in seconds.
_LOOK_INTERVAL = 0.5


_READ_AND_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


class Exchange:
    """What each worker is sent, one frame after the other, and what comes of it.

    Args:
        counts: Per rank the number of frames.
        make_frame: The frame of a rank and index; called once for each, for the first ones here,
            so that what cannot be sent is found out before anything is, for others when they are
            sent.
        check: Returns what a rank has answered to the frame of an index, if it is an answer; raises
            ValueError if not.
        may_send: Whether a rank may be sent its next frame now; None: as soon as it takes it.
        answered_by: Called with the rank of each answer.

    Attributes:
        counts: As given.
        sent: Per rank how many frames it was sent.
        answers: Per rank the answers.
        failures: What workers that have failed say of it.
        lost: Ranks of workers whose channels have ended, in the order in which that was noticed.
        broken: By rank what is wrong with what a worker has sent; it is not listened to after that.
        timed_out: Whether a deadline was over before an answer or a failure.
        deadlock: A rank whose worker can never go on, and why not, if that was found.
    """

    def __init__(
        self,
        counts: Sequence[int],
        make_frame: Callable[[int, int], Frame],
        check: Callable[[int, int, Any], dict[str, Any]],
        may_send: Callable[[Exchange, int], bool] | None = None,
        answered_by: Callable[[int], None] | None = None,
    ) -> None:
        self.counts = tuple(counts)
        self.sent = [0] * len(counts)
        self.answers: list[list[dict[str, Any]]] = [[] for _ in counts]
        self.failures: list[dict[str, Any]] = []
        self.lost: list[int] = []
        self.broken: dict[int, str] = {}
        self.timed_out = False
        self.deadlock: tuple[int, str] | None = None
        self._make_frame = make_frame
        self._check = check
        self._may_send = may_send
        self._answered_by = answered_by
        self._first = [make_frame(rank, 0) if count else None for rank, count in enumerate(counts)]

    def next_ranks(self) -> list[int]:
        """Who may be sent another frame now."""
        if self.failed:
            return []
        return [
            rank
            for rank, count in enumerate(self.counts)
            if self.sent[rank] < count and (self._may_send is None or self._may_send(self, rank))
        ]

    def next_frame(self, rank: int) -> Frame:
        """The next frame of a rank, which counts as sent."""
        index = self.sent[rank]
        self.sent[rank] += 1
        frame, self._first[rank] = self._first[rank], None
        return frame or self._make_frame(rank, index)

    def record(self, rank: int, message: Any) -> dict[str, Any]:
        """Takes in an answer.

        Raises:
            ValueError: it is none.
        """
        answer = self._check(rank, len(self.answers[rank]), message)
        self.answers[rank].append(answer)
        if self._answered_by is not None:
            self._answered_by(rank)
        if "failure" in answer:
            self.failures.append(answer["failure"])
        return answer

    @property
    def late(self) -> list[int]:
        """Who have not answered all that they were sent."""
        return [rank for rank, sent in enumerate(self.sent) if len(self.answers[rank]) < sent]

    @property
    def answered(self) -> int:
        """How many frames have been answered by all who are sent any."""
        pairs = zip(self.answers, self.counts, strict=True)
        return min(len(mine) for mine, count in pairs if count)

    @property
    def failed(self) -> bool:
        """Whether a worker has failed or is lost."""
        return bool(self.lost or self.failures or self.broken)

    @property
    def complete(self) -> bool:
        """Whether all have answered, or the first failure is known."""
        if self.broken or any(is_cause(failure) for failure in self.failures):
            return True
        if self.failed:
            return set(self.late) <= set(self.lost)
        return all(
            len(mine) == count for mine, count in zip(self.answers, self.counts, strict=True)
        )


def is_first(failure: Any) -> bool:
    """Whether a failure is the one that others follow from; of starting a worker none is."""
    return isinstance(failure, dict) and bool(failure["first"])


def is_cause(failure: Any) -> bool:
    """Whether others follow from a failure, and it does not say that another worker is gone.

    Why that one is gone may be known a moment later.
    """
    return is_first(failure) and failure["kind"] != "ConnectionError"


def _writing_waits_to_read(stream: ByteStream) -> bool:
    """Whether TLS has to receive something before it can send; sockets never do."""
    return isinstance(stream, Stream) and stream.writing_waits_to_read


def run_exchange(
    exchange: Exchange,
    streams: Sequence[ByteStream],
    limit: float,
    abort: Callable[[], None],
    lines: Mapping[Stream, Sequence[int]],
    look: Callable[[Sequence[bool]], tuple[int, str] | None] | None,
) -> None:
    """Sends the workers their frames and reads their answers.

    Ends early, with answers missing, when a worker has failed, or when the next frame that all
    have to answer takes longer than the limit.

    Args:
        exchange: What is sent; receives the answers.
        streams: Per rank the channel, which does not block.
        limit: In seconds; math.inf for none.
        abort: Called when a worker is lost, or lost to another one; makes those that wait fail.
        lines: Connections on which nothing arrives but their end, and the workers that are lost
            with them.
        look: Finds a deadlock, given by rank whether the worker has answered all that it was sent;
            called now and then while nothing arrives.
    """
    readers = [FrameReader() for _ in streams]
    unsent: dict[int, Frame] = {}
    answered = 0
    deadline = time.monotonic() + limit

    def lose(ranks: Sequence[int]) -> None:
        nonlocal deadline
        exchange.lost += [rank for rank in ranks if rank not in exchange.lost]
        abort()
        deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)

    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line, selectors.EVENT_READ, None)
        for rank, count in enumerate(exchange.counts):
            if count:
                selector.register(streams[rank], selectors.EVENT_READ, rank)
        while not exchange.complete:
            for rank in exchange.next_ranks():
                if rank not in unsent:
                    unsent[rank] = exchange.next_frame(rank)
                    selector.modify(streams[rank], _READ_AND_WRITE, rank)
            left = deadline - time.monotonic()
            if left <= 0:
                exchange.timed_out = not exchange.failed
                break
            longest = left if look is None else min(left, _LOOK_INTERVAL)
            ready = selector.select(None if longest == math.inf else longest)
            if not ready and look is not None and not unsent and not exchange.lost:
                late = exchange.late
                exchange.deadlock = look([rank not in late for rank in range(len(streams))])
                if exchange.deadlock is not None:
                    break
            for key, _ in ready:
                if key.data is None:
                    assert isinstance(key.fileobj, Stream)
                    selector.unregister(key.fileobj)
                    lose(lines[key.fileobj])
                    continue
                rank = key.data
                stream = streams[rank]
                try:
                    if rank in unsent:
                        if unsent[rank].write(stream):
                            del unsent[rank]
                        waits = rank not in unsent or _writing_waits_to_read(stream)
                        events = selectors.EVENT_READ if waits else _READ_AND_WRITE
                        selector.modify(stream, events, rank)
                    # To the end: what TLS has read ahead does not show as something to be read.
                    while len(exchange.answers[rank]) < exchange.counts[rank]:
                        found = readers[rank].read(stream)
                        if found is None:
                            break
                        answer = exchange.record(rank, found[0])
                        if "failure" in answer:
                            deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)
                            if not exchange.complete:
                                abort()
                except ChannelClosedError:
                    selector.unregister(stream)
                    lose([rank])
                    continue
                except ValueError as error:
                    exchange.broken[rank] = str(error)
                    abort()
                    break
                if len(exchange.answers[rank]) == exchange.counts[rank]:
                    selector.unregister(stream)
            if not exchange.failed and exchange.answered > answered:
                answered = exchange.answered
                deadline = time.monotonic() + limit
