"""Sends frames to all workers and receives their answers, without blocking on a single worker.

A request is one message for several workers: it is written as a frame once, whatever their number
is, and answers that are the same are looked at once.
"""

from __future__ import annotations

import math
import selectors
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from distir_ext.wire.byte_stream import ByteStream, Stream
from distir_ext.wire.channel import ChannelClosedError, Frame
from distir_ext.workers.base import UNWIND_LIMIT
from distir_ext.workers.branches import Branch
from distir_ext.workers.lifecycle import Bell
from distir_ext.workers.lines import Lines

# How long nothing arrives before somebody looks whether anything can arrive, in seconds.
_LOOK_INTERVAL = 0.5

_READ_AND_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


class Request:
    """One message for some workers.

    Args:
        ranks: The workers, ascending.
        message: The message that they are sent.
        cut: Shards that have been cut, shared by requests of one round.
    """

    def __init__(
        self, ranks: Sequence[int], message: dict[str, Any], cut: dict[int, Any] | None = None
    ) -> None:
        self.ranks = ranks
        self.message = message
        self._cut = cut
        self._frame: Frame | None = None
        self._unsent = len(ranks)

    def frame(self) -> Frame:
        """The message as a frame, which is made once."""
        if self._frame is None:
            self._frame = Frame(self.message, self._cut)
            self._cut = None
        return self._frame

    def sent_to(self, count: int) -> None:
        """Forgets the frame when so many workers more, and with them all, are being sent it."""
        self._unsent -= count
        if self._unsent == 0:
            self._frame = None


class Exchange:
    """Rounds of requests to workers, and their answers.

    Args:
        num_workers: Number of workers of the session.
        rounds: Each worker is in one request of a round at most, and in none of a round if it is in
            none of an earlier one. Frames of the first round are made here, so that what cannot be
            sent is found out before anything is.
        check: Returns what a rank has answered to a request, if it is an answer; raises ValueError
            if not. Workers that answer the same are checked once, unless it is a failure.
        may_send: Whether a rank may be sent its request of a round now; None: as soon as it takes
            it.
        answered_by: Called with the rank of each answer.

    Attributes:
        answers: Per rank the answers.
        failures: Reports of workers that have failed.
        lost: Ranks of workers whose channels have ended, in the order in which that was noticed.
        broken: By rank the fault in what a worker has sent; nothing is read from it after that.
        timed_out: True if a deadline was over before an answer or a failure.
        interrupted: True if the bell was rung before all had answered.
        deadlock: A rank whose worker can never go on, and why not, if that was found.
        answered: Number of rounds to which all their workers have answered.
        gathers: True if answers of workers of one host may wait for each other.
        waits: True if requests to some workers wait for answers of others.
    """

    def __init__(
        self,
        num_workers: int,
        rounds: Sequence[Sequence[Request]],
        check: Callable[[Request, int, Any], dict[str, Any]],
        may_send: Callable[[Exchange, int, int], bool] | None = None,
        answered_by: Callable[[int], None] | None = None,
    ) -> None:
        self.rounds = rounds
        self.answers: list[list[dict[str, Any]]] = [[] for _ in range(num_workers)]
        self.failures: list[dict[str, Any]] = []
        self.lost: list[int] = []
        self.broken: dict[int, str] = {}
        self.timed_out = False
        self.interrupted = False
        self.deadlock: tuple[int, str] | None = None
        self.answered = 0
        self.gathers = len(rounds) == 1
        self.waits = may_send is not None
        self.sent = [0] * num_workers
        self._check = check
        self._may_send = may_send
        self._answered_by = answered_by
        self._has_cause = False
        # By request and message, whose identity lasts while it is in here.
        self._checked: dict[tuple[int, int], tuple[Any, dict[str, Any]]] = {}
        self._requests: list[list[Request]] = [[] for _ in range(num_workers)]
        self._missing = [0] * len(rounds)
        for index, requests in enumerate(rounds):
            for request in requests:
                self._missing[index] += len(request.ranks)
                for rank in request.ranks:
                    self._requests[rank].append(request)
        if rounds:
            for request in rounds[0]:
                request.frame()

    def counts(self, rank: int) -> int:
        """Returns the number of requests that a rank is sent."""
        return len(self._requests[rank])

    def next_for(self, rank: int) -> Request | None:
        """Returns the request that a rank may be sent now, or None."""
        index = self.sent[rank]
        if self.failed or index == len(self._requests[rank]):
            return None
        if self._may_send is not None and not self._may_send(self, rank, index):
            return None
        return self._requests[rank][index]

    def record(self, rank: int, message: Any) -> bool:
        """Takes in an answer.

        Returns:
            Whether it is a failure.

        Raises:
            ValueError: it is no answer.
        """
        index = len(self.answers[rank])
        if index >= self.sent[rank]:
            raise ValueError("its answer is to nothing that it was sent")
        request = self._requests[rank][index]
        key = (id(request), id(message))
        if key in self._checked:
            answer = self._checked[key][1]
        else:
            answer = self._check(request, rank, message)
            if "failure" not in answer:
                self._checked[key] = message, answer
        self.answers[rank].append(answer)
        self._missing[index] -= 1
        while self.answered < len(self._missing) and self._missing[self.answered] == 0:
            self.answered += 1
        if self._answered_by is not None:
            self._answered_by(rank)
        if "failure" not in answer:
            return False
        self.failures.append(answer["failure"])
        self._has_cause = self._has_cause or is_cause(answer["failure"])
        return True

    @property
    def late(self) -> list[int]:
        """Ranks that have not answered all that they were sent."""
        return [rank for rank, sent in enumerate(self.sent) if len(self.answers[rank]) < sent]

    @property
    def failed(self) -> bool:
        """True if a worker has failed or is lost."""
        return bool(self.lost or self.failures or self.broken)

    @property
    def complete(self) -> bool:
        """True if all have answered, or the first failure is known."""
        if self.broken or self._has_cause:
            return True
        if self.failed:
            return set(self.late) <= set(self.lost)
        return self.answered == len(self.rounds)


def is_first(failure: Any) -> bool:
    """Returns whether a failure came first; failures to start a worker never do."""
    return isinstance(failure, dict) and bool(failure["first"])


def is_cause(failure: Any) -> bool:
    """Returns whether a failure came first, and is not that another worker is gone.

    The reason why that one is gone may be known a moment later.
    """
    return is_first(failure) and failure["kind"] != "ConnectionError"


def _writing_waits_to_read(stream: ByteStream) -> bool:
    """Returns whether TLS has to receive something before it can send; sockets never do."""
    return isinstance(stream, Stream) and stream.writing_waits_to_read


class _BranchOfExchange:
    """A branch while an exchange uses it."""

    def __init__(self, exchange: Exchange, branch: Branch) -> None:
        self._exchange = exchange
        self.branch = branch
        self._ranks = tuple(rank for rank in branch.ranks if exchange.counts(rank))
        self.missing = sum(exchange.counts(rank) for rank in self._ranks)
        self._unsent = self.missing
        self._next: deque[tuple[Request, list[int]]] = deque()

    def push(self) -> bool:
        """Writes what may be sent and the stream takes; whether something is left to be written.

        Raises:
            ChannelClosedError: the other side is gone.
        """
        while True:
            if self.branch.writes and not self.branch.write():
                return True
            if not self._next and not self._look():
                return False
            request, ranks = self._next.popleft()
            frame = request.frame()
            request.sent_to(len(ranks))
            self._unsent -= len(ranks)
            self.branch.send(frame, ranks, self._exchange.gathers)

    def _look(self) -> bool:
        """Finds out what may be sent: one request for each worker of the branch at most."""
        if self._unsent == 0:
            return False
        found: dict[int, tuple[Request, list[int]]] = {}
        for rank in self._ranks:
            request = self._exchange.next_for(rank)
            if request is not None:
                self._exchange.sent[rank] += 1
                found.setdefault(id(request), (request, []))[1].append(rank)
        self._next.extend(found.values())
        return bool(found)


def run_exchange(
    exchange: Exchange,
    branches: Sequence[Branch],
    limit: float,
    abort: Callable[[], None],
    lines: Lines | None,
    look: Callable[[Sequence[bool]], tuple[int, str] | None] | None,
    bell: Bell,
) -> None:
    """Sends the workers their frames and reads their answers.

    Ends early, with answers missing, when a worker has failed, when the next frame that all have to
    answer takes longer than the limit, or when the bell is rung.

    Args:
        exchange: The requests; receives the answers.
        branches: By which all workers are reached, each by one.
        limit: In seconds; math.inf for none.
        abort: Called when a worker is lost, or lost to another one; makes those that wait fail.
        lines: Connections that are watched for disconnects; None for none.
        look: Finds a deadlock, given by rank whether the worker has answered all that it was sent;
            called now and then while nothing arrives.
        bell: Rung when the answers are of no use any more.
    """
    known: dict[bytes, Any] = {}
    used = [_BranchOfExchange(exchange, each) for each in branches]
    used = [each for each in used if each.missing]
    events = dict.fromkeys(map(id, used), selectors.EVENT_READ)
    answered = 0
    deadline = time.monotonic() + limit

    def lose(ranks: Sequence[int]) -> None:
        nonlocal deadline
        late = set(exchange.late)
        new = [rank for rank in ranks if rank not in exchange.lost]
        exchange.lost += sorted(new, key=lambda rank: rank not in late)
        abort()
        deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)

    def give_up(rank: int, why: str) -> None:
        exchange.broken[rank] = why
        abort()

    def take(each: _BranchOfExchange) -> None:
        """Reads what there is. To the end: what TLS has read ahead does not show."""
        nonlocal deadline
        while each.missing:
            try:
                found = each.branch.read(known)
            except ValueError as error:
                give_up(each.branch.ranks[0], str(error))
                return
            if found is None:
                return
            if found.lost:
                lose(found.ranks)
                each.missing -= sum(
                    exchange.counts(rank) - len(exchange.answers[rank]) for rank in found.ranks
                )
                continue
            for rank in found.ranks:
                try:
                    if found.broken:
                        raise ValueError(found.broken)
                    is_failure = exchange.record(rank, found.message)
                except ValueError as error:
                    give_up(rank, str(error))
                    return
                except MemoryError:
                    give_up(rank, "there is no memory for its answer")
                    return
                each.missing -= 1
                if is_failure:
                    deadline = min(deadline, time.monotonic() + UNWIND_LIMIT)
                    if not exchange.complete:
                        abort()

    with selectors.DefaultSelector() as selector:
        selector.register(bell, selectors.EVENT_READ, bell)
        if lines is not None:
            selector.register(lines, selectors.EVENT_READ, None)

        def push(each: _BranchOfExchange) -> None:
            left = each.push()
            waits = not left or _writing_waits_to_read(each.branch.stream)
            wanted = selectors.EVENT_READ if waits else _READ_AND_WRITE
            if events[id(each)] != wanted:
                events[id(each)] = wanted
                selector.modify(each.branch.stream, wanted, each)

        def serve(each: _BranchOfExchange, serves: Callable[[_BranchOfExchange], None]) -> None:
            try:
                serves(each)
            except ChannelClosedError:
                selector.unregister(each.branch.stream)
                ended.add(id(each))
                lose(each.branch.ranks)

        ended: set[int] = set()
        for each in used:
            selector.register(each.branch.stream, selectors.EVENT_READ, each)
        for each in used:
            serve(each, push)
        while not exchange.complete:
            left = deadline - time.monotonic()
            if left <= 0:
                exchange.timed_out = not exchange.failed
                break
            longest = left if look is None else min(left, _LOOK_INTERVAL)
            ready = selector.select(None if longest == math.inf else longest)
            if any(key.data is bell for key, _ in ready):
                exchange.interrupted = True
                break
            if not ready and look is not None and not exchange.lost:
                if not any(each.branch.writes for each in used):
                    late = set(exchange.late)
                    count = len(exchange.answers)
                    exchange.deadlock = look([rank not in late for rank in range(count)])
                if exchange.deadlock is not None:
                    break
            for key, _ in ready:
                if key.data is None:
                    assert lines is not None
                    lose(lines.ended())
                    continue
                each = key.data
                if each.branch.writes:
                    serve(each, push)
                if id(each) not in ended:
                    serve(each, take)
                if id(each) not in ended and not each.missing:
                    selector.unregister(each.branch.stream)
                    ended.add(id(each))
            # Answers of some may be what others wait for.
            for each in used if exchange.waits else ():
                if id(each) not in ended and not exchange.failed:
                    serve(each, push)
            if not exchange.failed and exchange.answered > answered:
                answered = exchange.answered
                deadline = time.monotonic() + limit
