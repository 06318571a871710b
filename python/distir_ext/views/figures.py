"""Draws results of analysis as matplotlib figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from distir_ext.analysis.costs import Estimate, ProgramEstimate
from distir_ext.analysis.sweeps.sweep_result import Sweep
from distir_ext.analysis.timelines.timeline import Timeline, TimelineEvents
from distir_ext.session.timeline import TimedEvent
from distir_ext.session.timeline import Timeline as StageTimeline
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.tables import amount
from distir_ext.views.drawing import collectives, memory, roofline, timeline
from distir_ext.views.drawing.pareto import Point, draw, front


def estimate_figure(estimate: Estimate, kind: str, program: str | None) -> Any:
    """One program of an estimate; by default the one that takes longest."""
    if kind not in _PLOTS:
        raise ValueError(
            f"there is no plot {kind!r}; there are {', '.join(_PLOTS)}"
            f"{did_you_mean(str(kind), _PLOTS)}"
        )
    if not estimate.programs:
        raise ValueError("there is nothing to draw: the estimate has no program")
    longest = max(estimate.programs, key=lambda each: each.seconds)
    return _PLOTS[kind](estimate, longest if program is None else estimate[program])


def timeline_figure(found: Timeline, devices: Iterable[int] | None) -> Any:
    """The events of devices; by default, of devices that do the same, of the first."""
    first = [group.device_ids[0] for group in found.groups]
    chosen = first if devices is None else list(devices)
    title = f"{found.function} on {len(found.devices)} devices: {amount(found.seconds, 's')}"
    if devices is None and len(chosen) < len(found.devices):
        title += "; of devices that do the same, one is drawn"
    return timeline.draw(TimelineEvents(found, chosen), title)


def sweep_figure(sweep: Sweep) -> Any:
    """Time and memory of all configurations."""
    points = list(_points(sweep))
    named = {(each.seconds, each.memory): each for each in reversed(front(points))}
    labelled = [
        point if named.get((point.seconds, point.memory)) is point else replace(point, label="")
        for point in points
    ]
    most = max((point.memory for point in points), default=0.0)
    device = sweep.cluster.device
    title = f"{len(points)} configurations on {device.name if device else 'a cluster'}"
    # A limit that is far above all of them would press them together.
    return draw(labelled, sweep.memory_limit if most > sweep.memory_limit / 2 else None, title)


def _points(sweep: Sweep) -> Iterator[Point]:
    for row in sweep.configurations:
        if row.error is None:
            assert row.seconds is not None
            assert row.peak_memory is not None
            assert row.bytes_sent is not None
            yield Point(str(row), row.seconds, row.peak_memory, row.bytes_sent)


def _roofline(estimate: Estimate, program: ProgramEstimate) -> Any:
    title = f"kernels of {program.name} on {estimate.device.name}"
    return roofline.draw(program.kernels, estimate.device, title)


def _memory(estimate: Estimate, program: ProgramEstimate) -> Any:
    title = f"memory of {program.name} on {estimate.device.name}"
    return memory.draw(program, estimate.device.memory, title)


def _collectives(estimate: Estimate, program: ProgramEstimate) -> Any:
    return collectives.draw(program, f"collectives of {program.name}")


_PLOTS: dict[str, Callable[[Estimate, ProgramEstimate], Any]] = {
    "roofline": _roofline,
    "memory": _memory,
    "collectives": _collectives,
}


def stages_figure(found: StageTimeline) -> Any:
    """Draws the measured times of stages and microbatches on devices."""
    start = min((each.begin for each in found.events), default=0.0)
    title = f"{found.bubble:.0%} of the devices' time is idle"
    return timeline.draw((_drawn(each, start) for each in found.events), title)


def _drawn(event: TimedEvent, start: float) -> timeline.Event:
    return timeline.Event(
        event.device,
        "compute",
        f"stage {event.stage}",
        "stage",
        event.begin - start,
        event.end - event.begin,
        event.microbatch,
        event.stage,
    )
