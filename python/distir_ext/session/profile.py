"""Result classes of a profile: events of all devices, totals and tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from statistics import mean, median
from typing import Any

from distir_ext.text.display import Printed
from distir_ext.text.trace import event_row, name_rows, write_rows


@dataclass(frozen=True)
class ProfileEvent:
    """One kernel or collective on one device."""

    device: int
    """Its id."""

    stream: str
    """``"compute"`` or ``"communication"``."""

    name: str
    """The variable that it gives, as in the lowered module; the kernel's name where the executable
    does not say."""

    kind: str
    """``"kernel"`` (or a packed function) or ``"collective"``."""

    start: float
    """Seconds since the call began on the first device, or on this one where workers on several
    hosts share no clock."""

    duration: float
    """Seconds, of a collective with :attr:`waiting`."""

    waiting: float | None
    """Seconds of :attr:`duration` until the last device had begun that it needs: of the group, or
    of those that send to it. None where workers share no clock."""

    function: str
    """The function of the lowered module that it is in."""

    callee: str
    """The kernel, the packed function, or the kind of the collective, as ``"all_reduce"``."""

    axes: tuple[str, ...]
    """The mesh axes of a collective."""

    repetition: int
    """Index of the call that it belongs to, from 0."""

    @property
    def moving(self) -> float:
        """Seconds without :attr:`waiting`, as far as that is known."""
        return self.duration - (self.waiting or 0.0)


@dataclass(frozen=True)
class ProfileStep:
    """A device's part of a call."""

    device: int
    repetition: int
    start: float
    duration: float


@dataclass(frozen=True)
class ProfileTotal:
    """All events of one variable, in one call."""

    function: str
    name: str
    kind: str
    callee: str
    axes: tuple[str, ...]

    devices: tuple[int, ...]
    """Ids of those that run it."""

    count: int
    """Number of times that a device runs it in a call."""

    seconds: float
    """Mean over the devices of the median time per call, in seconds, without waiting."""

    waiting: float
    """Mean over the devices of the median waiting time per call, in seconds."""

    slowest: float
    """Time of the slowest device, in seconds, without waiting."""

    @property
    def imbalance(self) -> float:
        """Time of the slowest device over the mean of all devices; 1 if all are equal."""
        return self.slowest / self.seconds if self.seconds else 1.0


@dataclass(frozen=True, repr=False)
class Profile(Printed):
    """Times of a function's operators on the workers of a session.

    ``print`` shows tables, notebooks show them as HTML. :meth:`rows` is for pandas,
    :meth:`to_perfetto` for https://ui.perfetto.dev.
    """

    function: str
    """The function that was called."""

    repetitions: int
    """Number of calls that were measured."""

    events: tuple[ProfileEvent, ...]
    """Events by repetition, then by device, in the order in which they began."""

    steps: tuple[ProfileStep, ...]
    """When each device worked on each call; several for devices with several stages."""

    notes: tuple[str, ...] = ()
    """Notes on costs that the figures leave out."""

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Ids of the devices that took part, ascending."""
        return tuple(sorted({step.device for step in self.steps}))

    @property
    def seconds(self) -> float:
        """Seconds from a call's first begin on a device to its last end; the median of the calls.

        The controller's time for sharding arguments and assembling results is not included.
        """
        spans = []
        for steps in _grouped(self.steps, lambda step: step.repetition).values():
            spans.append(
                max(step.start + step.duration for step in steps) - min(s.start for s in steps)
            )
        return median(spans) if spans else 0.0

    def totals(self) -> tuple[ProfileTotal, ...]:
        """Kernels and collectives by variable, in program order."""
        return tuple(self._totals(lambda event: event.name))

    def by_callee(self) -> tuple[ProfileTotal, ...]:
        """Kernels by their name, collectives by kind and axes; the longest first."""
        found = self._totals(lambda event: "", across=True)
        return tuple(sorted(found, key=lambda total: -(total.seconds + total.waiting)))

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each event, for ``pandas.DataFrame``."""
        return [
            {**asdict(event), "axes": ", ".join(event.axes), "moving": event.moving}
            for event in self.events
        ]

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Writes the events as a trace: a process for each device, a row for each stream.

        Calls stand one behind the other; of a collective, waiting is an event within it.

        Args:
            path: A file that is made or replaced; compressed if its name ends with ``.gz``.

        Raises:
            OSError: It cannot be written.
        """
        about = {"function": self.function, "calls": self.repetitions}
        write_rows(path, about, self._trace())

    def _trace(self) -> Iterator[dict[str, Any]]:
        yield from name_rows(self.device_ids)
        spans = [0.0] * self.repetitions
        for step in self.steps:
            spans[step.repetition] = max(spans[step.repetition], step.start + step.duration)
        begins = [0.0, *accumulate(spans)]
        for event in self.events:
            start = begins[event.repetition] + event.start
            details = {
                "function": event.function,
                "callee": event.callee,
                "axes": ", ".join(event.axes),
                "call": event.repetition,
            }
            where = (event.device, event.stream)
            yield event_row(*where, event.name, event.kind, start, event.duration, details)
            if event.waiting:
                yield event_row(*where, "waiting", "waiting", start, event.waiting, {})

    def _totals(
        self, name: Callable[[ProfileEvent], str], across: bool = False
    ) -> Iterator[ProfileTotal]:
        groups = _grouped(
            self.events,
            lambda e: (
                "" if across else e.function,
                name(e),
                e.kind,
                e.callee,
                e.axes,
            ),
        )
        for (function, variable, kind, callee, axes), events in groups.items():
            by_device = _grouped(events, lambda event: event.device)
            moving = [self._median(each, lambda e: e.moving) for each in by_device.values()]
            waiting = [
                self._median(each, lambda e: e.waiting or 0.0) for each in by_device.values()
            ]
            counts = [self._median(each, lambda e: 1) for each in by_device.values()]
            yield ProfileTotal(
                function,
                variable,
                kind,
                callee,
                axes,
                tuple(sorted(by_device)),
                round(max(counts)),
                mean(moving),
                mean(waiting),
                max(moving),
            )

    def _median(self, events: Iterable[ProfileEvent], of: Callable[[ProfileEvent], float]) -> float:
        """Returns the median of the calls' sums over events."""
        sums = [0.0] * self.repetitions
        for event in events:
            sums[event.repetition] += of(event)
        return median(sums)

    def _of_device(self, device: int) -> tuple[float, ...]:
        """Seconds of a call that a device computes, moves, waits, does something else, and all."""
        calls = [[0.0] * 5 for _ in range(self.repetitions)]
        for event in self.events:
            if event.device == device:
                call = calls[event.repetition]
                call[0 if event.kind == "kernel" else 1] += event.moving
                call[2] += event.waiting or 0.0
        for step in self.steps:
            if step.device == device:
                calls[step.repetition][4] += step.duration
        for call in calls:
            call[3] = call[4] - sum(call[:3])
        return tuple(median(column) for column in zip(*calls, strict=True))


def _grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
