"""Forwards frames between a controller and the workers of a host, in the host's agent.

From the controller comes ``{"to", "gathers", "frame"}``: a frame for some of the workers, or for
all (None). To the controller goes one of these, each with ``"from"``, workers or all (None):

- ``{"frame"}``, what all of these have answered, and ``"failed"``, if it says that one has;
- ``{"lost": true}``, their channels have ended;
- ``{"broken"}``, why what they have sent is no frame.

Where there are many hosts, one of them passes on to others (``tree``): to these it is what the
controller is to it, and "the workers" are those of all of them.

Frames are not looked into, but for whether they say that a worker has failed. Where a request says
that answers may be gathered, those that are equal go to the controller as one, when all are there,
or a moment after the first of them.

Nobody waits here for one worker: what a worker does not read yet is kept, which is what a
controller sends for one step, or for the microbatches of a call.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distir_ext.wire.byte_stream import ByteStream, Stream, interrupt
from distir_ext.wire.channel import (
    ChannelClosedError,
    Frame,
    FrameReader,
    FrameWriter,
    RawFrameReader,
)
from distir_ext.workers.branches import ranks_from

# How long an answer waits for those of other workers, in seconds.
GATHERING = 0.01

_READ_AND_WRITE = selectors.EVENT_READ | selectors.EVENT_WRITE


@dataclass(eq=False)
class _Gathering:
    """The answers to one frame.

    Attributes:
        gathers: Whether they wait for each other.
        missing: Workers that have not answered.
        found: By answer who has given it, of those that have not been passed on.
        failures: Those that say that a worker has failed.
        until: When they are passed on at the latest.
    """

    gathers: bool
    missing: set[int]
    found: dict[bytes, list[int]] = field(default_factory=dict)
    failures: set[bytes] = field(default_factory=set)
    until: float = 0.0


class _End:
    """A stream to one of those between whom frames are passed on.

    Attributes:
        ranks: Whom it leads to.
        is_host: Whether that is a host, which passes on in its turn.
    """

    def __init__(
        self, stream: ByteStream, ranks: Sequence[int], reader: FrameReader, is_host: bool = False
    ) -> None:
        self.stream = stream
        self.ranks = ranks
        self.reader = reader
        self.is_host = is_host
        self.writers: deque[FrameWriter] = deque()
        self.events = selectors.EVENT_READ

    def write(self) -> bool:
        """Writes what the stream takes; whether something is left."""
        while self.writers:
            if not self.writers[0].write(self.stream):
                return True
            self.writers.popleft()
        return False


class Relay:
    """Passes frames on, in a thread of its own, until the controller is gone.

    Args:
        controller: The stream to it, or to the host that passes on to this one.
        workers: By rank those to the workers.
        below: Those to hosts that this one passes on to, by the ranks of all workers that they
            reach; streams that do not block.
    """

    def __init__(
        self,
        controller: Stream,
        workers: Mapping[int, ByteStream],
        below: Mapping[tuple[int, ...], ByteStream] | None = None,
    ) -> None:
        controller.setblocking(False)
        self._raw = controller.raw
        self._controller = _End(controller, (), FrameReader())
        self._ends = [
            *(_End(stream, (rank,), RawFrameReader()) for rank, stream in workers.items()),
            *(
                _End(stream, ranks, FrameReader(), is_host=True)
                for ranks, stream in (below or {}).items()
            ),
        ]
        self._end_of = {rank: end for end in self._ends for rank in end.ranks}  # while it is there
        self._all = list(self._end_of)
        self._owed: dict[int, deque[_Gathering]] = {rank: deque() for rank in self._all}
        self._open: list[_Gathering] = []
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="distir relay")
        self._thread.start()

    def close(self) -> None:
        """Ends it, and with it the streams."""
        interrupt(self._raw)
        self._thread.join()

    def _serve(self) -> None:
        ends = [self._controller, *self._ends]
        try:
            with self._selector, contextlib.suppress(ChannelClosedError, ValueError):
                for end in ends:
                    self._selector.register(end.stream, selectors.EVENT_READ, end)
                while True:
                    for key, _ in self._selector.select(self._patience()):
                        self._attend(key.data)
                    self._pass_late_ones_on()
        finally:  # whatever has happened: workers end, and the controller finds out
            for end in ends:
                end.stream.close()

    def _patience(self) -> float | None:
        """Returns the seconds until an answer has to be passed on; None if none waits."""
        if not any(each.found for each in self._open):
            return None
        until = min(each.until for each in self._open if each.found)
        return max(0.0, until - time.monotonic())

    def _attend(self, end: _End) -> None:
        if end is self._controller:
            self._push(end)
            while (found := end.reader.read(end.stream)) is not None:
                self._hand_out(found[0])
            return
        if end not in self._ends:
            return
        if end.writers:
            self._push_down(end)
        self._read_answers(end)

    def _read_answers(self, end: _End) -> None:
        try:
            while end in self._ends and (found := end.reader.read(end.stream)) is not None:
                if end.is_host:
                    self._host_says(end, found[0])
                else:
                    self._answered(end.ranks, *found[0])
        except ChannelClosedError:
            self._close(end, {"lost": True})
        except ValueError as error:
            self._close(end, {"broken": str(error)})

    def _host_says(self, end: _End, message: Any) -> None:
        """Takes in what a host below passes on; raises ValueError for anything else."""
        ranks = [rank for rank in ranks_from(message, end.ranks) if rank in self._end_of]
        if isinstance(message.get("frame"), bytes):
            self._answered(ranks, message["frame"], message.get("failed") is True)
        elif isinstance(message.get("broken"), str):
            self._forget(ranks, {"broken": message["broken"]})
        elif message.get("lost") is True:
            self._forget(ranks, {"lost": True})
        else:
            raise ValueError("its host says nothing of it")

    def _push_down(self, end: _End) -> None:
        """Whoever does not read any more may have answered before, such as why it ends."""
        try:
            self._push(end)
        except ChannelClosedError:
            self._read_answers(end)
            if end in self._ends:
                self._close(end, {"lost": True})

    def _push(self, end: _End) -> None:
        left = end.write()
        waits_to_read = isinstance(end.stream, Stream) and end.stream.writing_waits_to_read
        wanted = _READ_AND_WRITE if left and not waits_to_read else selectors.EVENT_READ
        if wanted != end.events:
            end.events = wanted
            self._selector.modify(end.stream, wanted, end)

    def _hand_out(self, message: Any) -> None:
        """Sends workers a frame; raises ValueError for anything but what a controller sends."""
        if not isinstance(message, dict) or not isinstance(message.get("frame"), bytes):
            raise ValueError("the controller sends something else than frames")
        to = self._all if message.get("to") is None else message["to"]
        if not isinstance(to, list) or not set(to) <= self._owed.keys():
            raise ValueError("the controller sends frames to workers of other hosts")
        gathers = message.get("gathers") is True
        gathering = _Gathering(gathers, set(to) & self._end_of.keys())
        if gathering.missing:
            self._open.append(gathering)
        by_end: dict[int, tuple[_End, list[int]]] = {}
        for rank in to:
            end = self._end_of.get(rank)
            if end is not None:  # not lost before
                self._owed[rank].append(gathering)
                by_end.setdefault(id(end), (end, []))[1].append(rank)
        raw = (memoryview(message["frame"]),)
        for_all = Frame({**message, "to": None}) if any(e.is_host for e in self._ends) else None
        for end, ranks in by_end.values():
            pieces: Sequence[memoryview] = raw
            if end.is_host and for_all is not None:
                is_for_all = len(ranks) == len(end.ranks)
                pieces = (for_all if is_for_all else Frame({**message, "to": ranks})).pieces
            end.writers.append(FrameWriter(pieces))
            self._push_down(end)

    def _answered(self, ranks: Sequence[int], frame: bytes, has_failed: bool) -> None:
        """Takes in an answer that workers have given, all of them the same."""
        if not all(self._owed[rank] for rank in ranks):
            raise ValueError("its answer is to nothing that it was sent")
        answered: dict[int, _Gathering] = {}
        for rank in ranks:
            gathering = self._owed[rank].popleft()
            gathering.missing.discard(rank)
            if not gathering.found:
                gathering.until = time.monotonic() + GATHERING
            gathering.found.setdefault(frame, []).append(rank)
            answered[id(gathering)] = gathering
        for gathering in answered.values():
            if has_failed:
                gathering.failures.add(frame)
            if has_failed or not gathering.gathers or not gathering.missing:
                self._pass_on(gathering)

    def _pass_on(self, gathering: _Gathering) -> None:
        found, gathering.found = gathering.found, {}
        if not gathering.missing:
            self._open.remove(gathering)
        for frame, ranks in found.items():
            failed = {"failed": True} if frame in gathering.failures else {}
            self._tell(ranks, {"frame": frame, **failed})

    def _pass_late_ones_on(self) -> None:
        now = time.monotonic()
        for gathering in [each for each in self._open if each.found and each.until <= now]:
            self._pass_on(gathering)

    def _close(self, end: _End, why: dict[str, Any]) -> None:
        """Gives up a stream, from which nothing more comes."""
        self._ends.remove(end)
        self._selector.unregister(end.stream)
        end.stream.close()
        self._forget([rank for rank in end.ranks if rank in self._end_of], why)

    def _forget(self, ranks: Sequence[int], why: dict[str, Any]) -> None:
        """Tells the controller that nothing more comes from some workers."""
        if not ranks:
            return
        for rank in ranks:
            del self._end_of[rank]
            for gathering in self._owed[rank]:
                gathering.missing.discard(rank)
                if not gathering.missing and gathering in self._open:
                    self._pass_on(gathering)
            self._owed[rank].clear()
        # What they have answered, such as why they end, comes before that.
        for gathering in list(self._open):
            if any(rank in mine for rank in ranks for mine in gathering.found.values()):
                self._pass_on(gathering)
        self._tell(ranks, why)

    def _tell(self, ranks: Sequence[int], message: dict[str, Any]) -> None:
        is_from_all = len(ranks) == len(self._all)
        message = {"from": None if is_from_all else list(ranks), **message}
        self._controller.writers.append(FrameWriter(Frame(message).pieces))
        self._push(self._controller)
