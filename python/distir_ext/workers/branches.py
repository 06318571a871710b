"""Streams from a controller to its workers: one per local worker, and one per other host.

A frame for several workers is written once to each branch that leads to some of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distir_ext.wire.byte_stream import ByteStream, Stream
from distir_ext.wire.channel import FROM_WORKERS, Frame, FrameReader, FrameWriter, decode

# Frames up to this many bytes may come from several workers alike.
_MOST_KNOWN = 1 << 17


@dataclass(frozen=True)
class Arrived:
    """Answer of some workers, or the end of their channels.

    Attributes:
        ranks: The workers.
        message: The answer of each of them.
        broken: The fault in what they have sent; empty if there is none.
        lost: True if their channels have ended instead.
    """

    ranks: Sequence[int]
    message: Any = None
    broken: str = ""
    lost: bool = False


class Branch(ABC):
    """A stream that leads to workers.

    Args:
        stream: The stream, which does not block.
        ranks: The workers.
    """

    def __init__(self, stream: ByteStream, ranks: Sequence[int]) -> None:
        self.stream = stream
        self.ranks = tuple(ranks)
        self._reader = FrameReader(kinds=FROM_WORKERS)
        self._writer: FrameWriter | None = None

    @property
    def writes(self) -> bool:
        """True if a frame is still to be written."""
        return self._writer is not None

    def send(self, frame: Frame, ranks: Sequence[int], gathers: bool) -> None:
        """Begins to send a frame; the one before has been written.

        Args:
            frame: The frame.
            ranks: Ranks of the workers that get it.
            gathers: Whether their answers may wait for each other.
        """
        self._writer = FrameWriter(self._enclose(frame, ranks, gathers).pieces)

    def write(self) -> bool:
        """Writes what the stream takes.

        Returns:
            Whether all is written.

        Raises:
            ChannelClosedError: the other side is gone.
        """
        if self._writer is not None and self._writer.write(self.stream):
            self._writer = None
        return self._writer is None

    def forget(self) -> None:
        """Lets go, in a fork, of the stream, which the process that was forked goes on using."""
        if isinstance(self.stream, Stream):
            self.stream.forget()
        else:
            self.stream.close()

    @abstractmethod
    def _enclose(self, frame: Frame, ranks: Sequence[int], gathers: bool) -> Frame:
        """The frame as the stream has it."""

    @abstractmethod
    def read(self, known: dict[bytes, Any]) -> Arrived | None:
        """Reads what there is.

        Args:
            known: Messages by what they were decoded from, of all branches.

        Returns:
            An answer; None if nothing more has arrived.

        Raises:
            ChannelClosedError: the other side is gone.
            ValueError: what has arrived is none.
        """


class WorkerBranch(Branch):
    """The channel of one worker."""

    def _enclose(self, frame: Frame, ranks: Sequence[int], gathers: bool) -> Frame:
        return frame

    def read(self, known: dict[bytes, Any]) -> Arrived | None:
        self._reader.known = known
        found = self._reader.read(self.stream)
        return None if found is None else Arrived(self.ranks, found[0])


class HostBranch(Branch):
    """A stream to a host's agent, which passes frames on to its workers (``hosts.relay``)."""

    def _enclose(self, frame: Frame, ranks: Sequence[int], gathers: bool) -> Frame:
        if tuple(ranks) != self.ranks:
            return Frame({"to": list(ranks), "gathers": gathers, "frame": frame})
        if frame.enclosed is None:  # hosts all of whose workers get it are sent the same
            frame.enclosed = Frame({"to": None, "gathers": gathers, "frame": frame})
        return frame.enclosed

    def read(self, known: dict[bytes, Any]) -> Arrived | None:
        self._reader.known = known
        found = self._reader.read(self.stream)
        if found is None:
            return None
        message = found[0]
        ranks = ranks_from(message, self.ranks)
        if isinstance(message.get("frame"), bytes):
            frame = message["frame"]
            try:
                if len(frame) > _MOST_KNOWN:
                    return Arrived(ranks, decode(frame, FROM_WORKERS))
                if frame not in known:
                    known[frame] = decode(frame, FROM_WORKERS)
                return Arrived(ranks, known[frame])
            except ValueError as error:
                return Arrived(ranks, broken=str(error))
        if isinstance(message.get("broken"), str):
            return Arrived(ranks, broken=message["broken"])
        if message.get("lost") is True:
            return Arrived(ranks, lost=True)
        raise ValueError("its host says nothing of it")


def ranks_from(message: Any, own: Sequence[int]) -> Sequence[int]:
    """The workers that a message of a host's agent is from.

    Args:
        message: The message.
        own: The workers that the host reaches.

    Raises:
        ValueError: they are not all of these.
    """
    if not isinstance(message, dict):
        raise ValueError("its host sends something else than answers")
    ranks: list[int] | None = message.get("from", [])
    if ranks is None:
        return own
    is_list = isinstance(ranks, list) and all(type(each) is int for each in ranks)
    if not is_list or not ranks or not set(ranks) <= set(own):
        raise ValueError("its host answers for workers that it does not have")
    if len(set(ranks)) != len(ranks):
        raise ValueError("its host answers twice for a worker")
    return ranks
