"""Frames between a controller and the workers of a host, passed on by the host's agent.

From the controller comes ``{"to", "gathers", "frame"}``: a frame for some of the workers, or for
all (None). To the controller goes one of these, each with ``"from"``, workers or all (None):

- ``{"frame"}``, what all of these have answered;
- ``{"lost": true}``, their channels have ended;
- ``{"broken"}``, why what they have sent is no frame.

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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distir_ext._workers.channel import (
    ChannelClosedError,
    Frame,
    FrameReader,
    FrameWriter,
    RawFrameReader,
)
from distir_ext._workers.connection.byte_stream import ByteStream, Stream, interrupt

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
        until: When they are passed on at the latest.
    """

    gathers: bool
    missing: set[int]
    found: dict[bytes, list[int]] = field(default_factory=dict)
    until: float = 0.0


class _End:
    """A stream to one of those between whom frames are passed on."""

    def __init__(self, stream: ByteStream, rank: int | None, reader: FrameReader) -> None:
        self.stream = stream
        self.rank = rank
        self.reader = reader
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
        controller: The stream to it.
        workers: By rank those to the workers.
    """

    def __init__(self, controller: Stream, workers: Mapping[int, ByteStream]) -> None:
        controller.setblocking(False)
        self._raw = controller.raw
        self._controller = _End(controller, None, FrameReader())
        self._workers = {
            rank: _End(stream, rank, RawFrameReader()) for rank, stream in workers.items()
        }
        self._all = list(self._workers)
        self._owed: dict[int, deque[_Gathering]] = {rank: deque() for rank in workers}
        self._open: list[_Gathering] = []
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="distir relay")
        self._thread.start()

    def close(self) -> None:
        """Ends it, and with it the streams."""
        interrupt(self._raw)
        self._thread.join()

    def _serve(self) -> None:
        ends = [self._controller, *self._workers.values()]
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
        """How long nothing has to be done, in seconds."""
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
        assert end.rank is not None
        if end.rank not in self._workers:
            return
        if end.writers:
            self._push_to_worker(end)
        self._read_answers(end)

    def _read_answers(self, end: _End) -> None:
        assert end.rank is not None
        if end.rank not in self._workers:
            return
        try:
            while (found := end.reader.read(end.stream)) is not None:
                self._answered(end.rank, *found[0])
        except ChannelClosedError:
            self._forget(end.rank, {"lost": True})
        except ValueError as error:
            self._forget(end.rank, {"broken": str(error)})

    def _push_to_worker(self, end: _End) -> None:
        """Whoever does not read any more may have answered before, such as why it ends."""
        assert end.rank is not None
        try:
            self._push(end)
        except ChannelClosedError:
            self._read_answers(end)
            if end.rank in self._workers:
                self._forget(end.rank, {"lost": True})

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
        if not isinstance(to, list) or not set(to) <= set(self._all):
            raise ValueError("the controller sends frames to workers of other hosts")
        frame = memoryview(message["frame"])
        gathering = _Gathering(message.get("gathers") is True, set(to) & self._workers.keys())
        if gathering.missing:
            self._open.append(gathering)
        for rank in to:
            end = self._workers.get(rank)
            if end is None:  # lost before, and said so
                continue
            self._owed[rank].append(gathering)
            end.writers.append(FrameWriter([frame]))
            self._push_to_worker(end)

    def _answered(self, rank: int, frame: bytes, has_failed: bool) -> None:
        if not self._owed[rank]:
            raise ValueError("its answer is to nothing that it was sent")
        gathering = self._owed[rank].popleft()
        gathering.missing.discard(rank)
        if not gathering.found:
            gathering.until = time.monotonic() + GATHERING
        gathering.found.setdefault(frame, []).append(rank)
        if has_failed or not gathering.gathers or not gathering.missing:
            self._pass_on(gathering)

    def _pass_on(self, gathering: _Gathering) -> None:
        found, gathering.found = gathering.found, {}
        if not gathering.missing:
            self._open.remove(gathering)
        for frame, ranks in found.items():
            self._tell({"from": None if len(ranks) == len(self._all) else ranks, "frame": frame})

    def _pass_late_ones_on(self) -> None:
        now = time.monotonic()
        for gathering in [each for each in self._open if each.found and each.until <= now]:
            self._pass_on(gathering)

    def _forget(self, rank: int, why: dict[str, Any]) -> None:
        """Tells the controller that nothing more comes from a worker."""
        end = self._workers.pop(rank)
        self._selector.unregister(end.stream)
        end.stream.close()
        for gathering in self._owed[rank]:
            gathering.missing.discard(rank)
            if not gathering.missing:
                self._pass_on(gathering)
        self._owed[rank].clear()
        # What it has answered, such as why it ends, comes before that.
        for gathering in list(self._open):
            if any(rank in ranks for ranks in gathering.found.values()):
                self._pass_on(gathering)
        self._tell({"from": [rank], **why})

    def _tell(self, message: dict[str, Any]) -> None:
        self._controller.writers.append(FrameWriter(Frame(message).pieces))
        self._push(self._controller)
