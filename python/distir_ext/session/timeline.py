"""Timeline of stages and microbatches per device: measured, or simulated from a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distir_ext.session.schedule import Event, Schedule
from distir_ext.text.display import figure
from distir_ext.text.errors.tracebacks import short_tracebacks

_MARKS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class TimedEvent:
    """One stage on one microbatch, on one device.

    Attributes:
        device: Id of the device.
        stage: Index of the stage.
        microbatch: Index of the microbatch.
        begin: When it began to compute, in seconds: everything from other stages was there.
        end: When it ended, in seconds.
    """

    device: int
    stage: int
    microbatch: int
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The events of a run, by device and time.

    Attributes:
        events: In order of devices, then of begin.
    """

    events: tuple[TimedEvent, ...]

    @property
    def devices(self) -> tuple[int, ...]:
        """Ids of the devices that have events, ascending."""
        return tuple(sorted({event.device for event in self.events}))

    @property
    def seconds(self) -> float:
        """From the first begin to the last end."""
        if not self.events:
            return 0.0
        return max(event.end for event in self.events) - min(event.begin for event in self.events)

    @property
    def bubble(self) -> float:
        """Idle fraction of the devices' time, 0 to 1."""
        whole = self.seconds * len(self.devices)
        return 1 - sum(event.end - event.begin for event in self.events) / whole if whole else 0.0

    def of_device(self, device: int) -> tuple[TimedEvent, ...]:
        """The events of one device, in order.

        Args:
            device: Its id.

        Raises:
            KeyError: The timeline has no such device.
        """
        found = tuple(event for event in self.events if event.device == device)
        if not found:
            raise KeyError(f"the timeline has no device {device}; it has {list(self.devices)}")
        return found

    def text(self, width: int = 72) -> str:
        """A line per device; the mark in a column is the microbatch that it computes most there.

        Microbatches are ``0`` to ``9``, then letters, then again from ``0``; ``.`` is idle time.

        Args:
            width: Columns for the whole time, at least 1.

        Raises:
            ValueError: There is no column.
        """
        if width < 1:
            raise ValueError(f"width is {width}; it must be at least 1")
        if not self.events:
            return ""
        start = min(event.begin for event in self.events)
        column = self.seconds / width or 1.0
        label = max(len(str(device)) for device in self.devices)
        lines = []
        for device in self.devices:
            marks = []
            for index in range(width):
                begin, end = start + index * column, start + (index + 1) * column
                marks.append(_mark(self.of_device(device), begin, end))
            lines.append(f"device {device:>{label}} |{''.join(marks)}|")
        return "\n".join(lines)

    def plot(self) -> Any:
        """The events as a ``matplotlib.figure.Figure`` (``pip install 'distir-ext[plot]'``).

        Raises:
            ImportError: matplotlib is not installed.
        """
        return figure(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)


def _mark(events: Sequence[TimedEvent], begin: float, end: float) -> str:
    covered = [
        (min(event.end, end) - max(event.begin, begin), event.microbatch) for event in events
    ]
    share, microbatch = max(covered, default=(0.0, 0))
    # Rounding may leave a sliver of an event in the next column.
    if share <= 1e-6 * (end - begin):
        return "."
    return _MARKS[microbatch % len(_MARKS)]


@short_tracebacks
def simulate(
    schedule: Schedule, seconds: float | Sequence[float] = 1.0, transfer: float = 0.0
) -> Timeline:
    """When a schedule's events happen, if every one begins as early as it may.

    An event waits for the event before it on its device, for the stage before it on its microbatch
    and the transfer from there, and for the schedule's limit of microbatches in flight.

    Args:
        schedule: Its devices are numbered from 0.
        seconds: Time of a stage on a microbatch: one number, or one per stage.
        transfer: Time from the end of a stage until the next one has its results,
            while both devices may compute.

    Returns:
        The events with their times, from 0.

    Raises:
        ValueError: not one number of seconds per stage; or events that wait for each other, in a
            schedule made by hand.

    Example:
        >>> from distir_ext.session.schedule import schedule
        >>> print(simulate(schedule("gpipe", stages=2, microbatches=3)).text(width=8))
        device 0 |001122..|
        device 1 |..001122|
    """
    durations = [seconds] * schedule.stages if isinstance(seconds, float | int) else [*seconds]
    if len(durations) != schedule.stages:
        raise ValueError(f"{len(durations)} times were given for {schedule.stages} stages")
    ends: dict[Event, float] = {}
    timed: list[list[TimedEvent]] = [[] for _ in schedule.devices]
    waiting = set(range(len(schedule.devices)))
    while waiting:
        progressed = False
        for device in sorted(waiting):
            events = schedule.devices[device]
            while len(timed[device]) < len(events):
                event = events[len(timed[device])]
                needed = _needed(schedule, event)
                if any(each not in ends for each in needed):
                    break
                ready = [
                    ends[each] + (transfer if each.stage < event.stage else 0) for each in needed
                ]
                free = timed[device][-1].end if timed[device] else 0.0
                begin = max([free, *ready])
                end = begin + durations[event.stage]
                ends[event] = end
                timed[device].append(TimedEvent(device, event.stage, event.microbatch, begin, end))
                progressed = True
            if len(timed[device]) == len(events):
                waiting.discard(device)
        if not progressed and waiting:
            raise ValueError(f"the events of devices {sorted(waiting)} wait for each other")
    return Timeline(tuple(event for of_device in timed for event in of_device))


def _needed(schedule: Schedule, event: Event) -> list[Event]:
    """The events of other devices that must have ended before one begins."""
    needed = []
    if event.stage > 0:
        needed.append(Event(event.stage - 1, event.microbatch))
    if schedule.in_flight is not None:
        earlier = event.microbatch - schedule.in_flight[event.stage]
        if earlier >= 0:
            needed.append(Event(schedule.stages - 1, earlier))
    return needed
