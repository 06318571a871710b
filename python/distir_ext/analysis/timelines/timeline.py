"""Timelines: the events of a simulation, their sums, and the critical path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from distir_ext.analysis.timelines.events import DeviceGroup, Operation
from distir_ext.analysis.timelines.trace import write_trace
from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.device_text import device_text
from distir_ext.text.display import Printed, figure

COMPUTE, COMMUNICATION = "compute", "communication"
"""The streams of a device."""


@dataclass(frozen=True)
class TimelineEvent:
    """One operation on one device, for one microbatch. Times are in seconds from the begin."""

    device: int
    """Its id."""

    stream: str
    """``"compute"`` or ``"communication"``."""

    name: str
    """The variable that it gives."""

    kind: str
    """``"kernel"``, or the kind of communication, as ``"all_reduce"``."""

    operator: str
    """The name of the kernel, or the kind of communication."""

    start: float
    """When it begins, which for communication is when all others are there."""

    duration: float
    """Seconds from there to its end."""

    waited: float
    """Seconds that the device has waited for others before."""

    microbatch: int
    """Index of its microbatch."""

    stage: int
    """Index of its program among those of the function."""

    layer: str
    """The layer of the model, or empty."""

    @property
    def end(self) -> float:
        """End of the event, in seconds."""
        return self.start + self.duration


@dataclass(frozen=True)
class DeviceTime:
    """Breakdown of a device's time, in seconds."""

    computing: float
    """In which kernels run."""

    communicating: float
    """In which it sends and receives."""

    exposed: float
    """In which it communicates and no kernel runs."""

    idle: float
    """In which it waits for others, has not begun or has ended."""

    @property
    def seconds(self) -> float:
        """Total time of the device."""
        return self.computing + self.exposed + self.idle

    @property
    def utilization(self) -> float:
        """The part in which kernels run, 0 to 1."""
        return self.computing / self.seconds if self.seconds else 0.0

    @property
    def bubble(self) -> float:
        """The part in which it is idle, 0 to 1."""
        return self.idle / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class CriticalOperator:
    """All calls of an operator that lie on the critical path."""

    operator: str
    """The name of the kernel, or the kind of communication."""

    kind: str
    """As :attr:`Operation.kind`."""

    count: int
    """Number of its events on the path."""

    seconds: float
    """Duration of these events in seconds."""

    share: float
    """Of the whole time, 0 to 1. The shares of all operators sum to 1."""

    saved: float
    """By how many seconds the whole would be shorter if it took no time, wherever it runs. This is
    less than :attr:`seconds` where another path becomes critical, and may be more, since other
    paths have the operator, too."""


class TimelineEvents(Sequence[TimelineEvent]):
    """The events of some devices, made when they are read: by device, then in program order."""

    def __init__(self, timeline: Timeline, device_ids: Iterable[int]) -> None:
        self._timeline = timeline
        self._devices = [(device, timeline.group_of(device)) for device in device_ids]
        counts = [len(group) for _, group in self._devices]
        self._first = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self._first[-1])

    @overload
    def __getitem__(self, index: int) -> TimelineEvent: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TimelineEvent, ...]: ...
    def __getitem__(self, index: int | slice) -> TimelineEvent | tuple[TimelineEvent, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(*index.indices(len(self))))
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no event {index}, only {len(self)}")
        number = index % len(self)
        at = int(np.searchsorted(self._first, number, side="right")) - 1
        device, group = self._devices[at]
        return self._timeline.event(device, group, number - int(self._first[at]))

    def __iter__(self) -> Iterator[TimelineEvent]:
        for device, group in self._devices:
            for row in range(len(group)):
                yield self._timeline.event(device, group, row)

    def __repr__(self) -> str:
        return f"<{len(self)} events on {len(self._devices)} devices>"


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Printed):
    """Simulated times of the kernels and collectives of each device of a cluster.

    ``print`` shows tables, notebooks show them as HTML. :attr:`events` and :meth:`rows` are the
    data, :meth:`plot` and :meth:`to_perfetto` are pictures.
    """

    cluster: Cluster
    """The cluster that the timeline is simulated for."""

    function: str
    """The function that is called."""

    schedule: str
    """``"gpipe"``, ``"1f1b"`` or ``"interleaved"``."""

    microbatches: int
    """Number of microbatches."""

    overlap: bool
    """True if communication has a stream of its own."""

    seconds: float
    """From the begin to the end of the last event."""

    stages: tuple[str, ...]
    """The programs of the function, by name."""

    operations: tuple[Operation, ...]
    """Operations that events refer to."""

    groups: tuple[DeviceGroup, ...]
    """Devices by what they do, in the order of their ids. Those of a group have equal times."""

    notes: tuple[str, ...] = ()
    """Costs that the times leave out."""

    _path: tuple[tuple[DeviceGroup, int], ...] = field(default=(), repr=False)
    """The critical path, as rows of groups."""

    _seconds_without: Callable[[str], float] | None = field(default=None, repr=False)
    """The whole time if an operator took none."""

    @property
    def devices(self) -> tuple[int, ...]:
        """Ids, ascending."""
        return tuple(sorted(self._index_of))

    @property
    def events(self) -> TimelineEvents:
        """All events, made when they are read, since thousands of devices may have millions."""
        return TimelineEvents(self, self.devices)

    def of_device(self, device: int) -> TimelineEvents:
        """The events of one device.

        Args:
            device: Its id.

        Raises:
            KeyError: It has none.
        """
        return TimelineEvents(self, [device])

    def group_of(self, device: int) -> DeviceGroup:
        """The group of a device.

        Args:
            device: Its id.

        Raises:
            KeyError: There is no such device.
        """
        if device not in self._index_of:
            raise KeyError(f"there is no device {device}, only {device_text(self.devices)}")
        return self.groups[self._index_of[device]]

    def event(self, device: int, group: DeviceGroup, row: int) -> TimelineEvent:
        """An event of a group, on one of its devices.

        Args:
            device: The id of a device of the group.
            group: One of ``groups``, whose devices do the same at the same times.
            row: Index of the event in the group, from 0, in program order.

        Raises:
            IndexError: The group has fewer events.
        """
        operation = self.operations[group.operations[row]]
        start = float(group.starts[row])
        return TimelineEvent(
            device,
            operation.stream,
            operation.name,
            operation.kind,
            operation.operator,
            start,
            operation.seconds,
            start - float(group.arrivals[row]),
            int(group.microbatches[row]),
            operation.stage,
            operation.layer,
        )

    def by_device(self) -> dict[int, DeviceTime]:
        """Returns the breakdown of each device's time, by id."""
        return {device: self._times[self._index_of[device]] for device in self.devices}

    def by_stage(self) -> dict[int, DeviceTime]:
        """Returns the breakdown of the time of each stage: the mean of its devices.

        Devices with several stages count for all of them.
        """
        found: dict[int, list[int]] = {}
        for index, group in enumerate(self.groups):
            for stage in {self.operations[each].stage for each in np.unique(group.operations)}:
                found.setdefault(stage, []).append(index)
        return {stage: self._mean(groups) for stage, groups in sorted(found.items())}

    @property
    def utilization(self) -> float:
        """The part of the devices' time in which kernels run, 0 to 1."""
        return self._mean(range(len(self.groups))).utilization

    @property
    def bubble(self) -> float:
        """The part of the devices' time in which they are idle, 0 to 1."""
        return self._mean(range(len(self.groups))).bubble

    @property
    def exposed_communication(self) -> float:
        """Seconds in which a device communicates and computes nothing, on average."""
        return self._mean(range(len(self.groups))).exposed

    @cached_property
    def critical_path(self) -> tuple[TimelineEvent, ...]:
        """Events from begin to end, each of which begins when the one before has ended.

        So their durations sum to :attr:`seconds`. Of devices that do the same, it names the first.
        """
        return tuple(self.event(group.device_ids[0], group, row) for group, row in self._path)

    @cached_property
    def critical_operators(self) -> tuple[CriticalOperator, ...]:
        """The critical path by operator, the one that takes longest first."""
        found: dict[str, list[TimelineEvent]] = {}
        for event in self.critical_path:
            found.setdefault(event.operator, []).append(event)
        rows = []
        for operator, events in found.items():
            seconds = sum(event.duration for event in events)
            if not seconds:
                continue
            assert self._seconds_without is not None
            saved = self.seconds - self._seconds_without(operator)
            share = seconds / self.seconds
            kind = events[0].kind
            rows.append(CriticalOperator(operator, kind, len(events), seconds, share, saved))
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def rows(self, devices: Iterable[int] | None = None) -> list[dict[str, Any]]:
        """Events as dicts, for ``pandas.DataFrame``.

        Args:
            devices: Ids; all where it is left out.
        """
        chosen = self.events if devices is None else TimelineEvents(self, devices)
        return [{**vars(event), "end": event.end} for event in chosen]

    def to_perfetto(self, path: str | PathLike[str], devices: Iterable[int] | None = None) -> None:
        """Writes a trace that ui.perfetto.dev, chrome://tracing and TensorBoard open.

        A device is a process, a stream is a thread; arrows lead from what is sent to where it is
        received. The format is that of Chrome ("Trace Event Format", Duffy and others).

        Args:
            path: A file; compressed if its name ends with ``.gz``.
            devices: Ids; all where it is left out. An event takes some 250 bytes.

        Raises:
            KeyError: There is no such device.
        """
        about = {
            "function": self.function,
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "device": self.cluster.device.name if self.cluster.device else "",
        }
        write_trace(self, about, path, self.devices if devices is None else devices)

    def plot(self, devices: Iterable[int] | None = None) -> Any:
        """Draws the events with matplotlib (``pip install 'distir-ext[plot]'``).

        Args:
            devices: Ids; by default, of devices that do the same at the same times, the first.

        Returns:
            A ``matplotlib.figure.Figure``, which notebooks show.

        Raises:
            ImportError: matplotlib is not installed.
            KeyError: There is no such device.
        """
        return figure(self, devices=devices)

    def __getstate__(self) -> dict[str, Any]:
        """Plain data: what the native library would still be asked is asked before."""
        return {
            **vars(self),
            "critical_operators": self.critical_operators,
            "_seconds_without": None,
        }

    @cached_property
    def _index_of(self) -> Mapping[int, int]:
        """Index of each device's group."""
        return {
            device: index for index, group in enumerate(self.groups) for device in group.device_ids
        }

    @cached_property
    def _times(self) -> Sequence[DeviceTime]:
        """Breakdown of each group's time."""
        computes = np.array([each.stream == COMPUTE for each in self.operations], bool)
        return [self._time(group, computes) for group in self.groups]

    def _time(self, group: DeviceGroup, computes: npt.NDArray[np.bool_]) -> DeviceTime:
        is_kernel = computes[group.operations]
        durations = group.ends - group.starts
        computing, communicating = (
            float(np.sum(durations[chosen])) for chosen in (is_kernel, ~is_kernel)
        )
        hidden = 0.0
        if self.overlap and computing and communicating:
            # Interpolates the kernel time before an instant; streams run one operation at a time.
            times = np.stack([group.starts[is_kernel], group.ends[is_kernel]], axis=1).ravel()
            before = np.stack([np.zeros(is_kernel.sum()), durations[is_kernel]], axis=1).ravel()
            done = np.cumsum(before)
            covered = [
                np.interp(each[~is_kernel], times, done) for each in (group.starts, group.ends)
            ]
            hidden = float(np.sum(covered[1] - covered[0]))
        exposed = communicating - hidden
        return DeviceTime(computing, communicating, exposed, self.seconds - computing - exposed)

    def _mean(self, groups: Iterable[int]) -> DeviceTime:
        """Returns the mean over all devices of some groups."""
        weighted = [(self._times[index], len(self.groups[index].device_ids)) for index in groups]
        count = sum(weight for _, weight in weighted) or 1
        names = ("computing", "communicating", "exposed", "idle")
        totals = (sum(getattr(time, name) * weight for time, weight in weighted) for name in names)
        return DeviceTime(*(total / count for total in totals))
