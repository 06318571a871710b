"""Measures calls of a function: workers record the times of all operators.

The worker's side is ``src/runtime/session/notes/profile.h``.

A worker notes begin and end of its collectives. That it waited follows from when the others began:
of the k-th collective on a group, all that comes before the last member's begin is waiting; of a
transfer, all that comes before the last sender's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distir_ext.mesh.mesh_axes import MeshAxes
from distir_ext.native.step_names import StepCursor
from distir_ext.session.function_calls import FunctionCalls
from distir_ext.session.profile import Profile, ProfileEvent, ProfileStep
from distir_ext.session.statistics import Traffic, parse_traffic
from distir_ext.signature.signature import FunctionSpec
from distir_ext.text.printable import printable
from distir_ext.text.progress import counting_bar
from distir_ext.workers.base import Workers

_BEGIN = "distir.runtime.profile_begin"
_END = "distir.runtime.profile_end"
_COUNTS = "distir.runtime.traffic"
_BUILTIN = "distir.runtime."
_CONDITION = "vm.builtin.read_if_cond"

_NO_CLOCK = (
    "workers on several hosts share no clock: times begin on each device with its part of the "
    "call, and waiting is not known apart from moving"
)

StepNames = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class _Row:
    """An event as a worker has noted it."""

    callee: str
    outer: int
    begin: float
    end: float
    flow: int
    value: int


@dataclass(frozen=True)
class _Timed:
    """An event of a device, by the clock of its worker."""

    row: _Row
    name: str
    function: str
    traffic: Traffic | None


def profile_calls(
    calls: FunctionCalls,
    inputs: Sequence[Any],
    repeat: int,
    warmup: int,
    names: Callable[[], StepNames],
    axes: MeshAxes,
) -> Profile:
    """Calls a function and measures it.

    Args:
        calls: Of the function.
        inputs: All of them in order.
        repeat: Number of calls that are measured.
        warmup: Number of calls before them.
        names: Names of variables in the executable.
        axes: Those of its meshes.

    Raises:
        ValueError: ``repeat`` is no positive integer, ``warmup`` none from 0 on; a worker answers
            something else than a profile.
        As ``ModelFunction.__call__``.
    """
    for argument, value, least in (("repeat", repeat, 1), ("warmup", warmup, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{argument} is {value!r}; it must be an integer from {least} on")
    spec = calls.spec
    call = calls.prepare(inputs, once=False)
    workers = call.held.workers
    order = [(index, 0) for index in range(spec.virtual_stages)]
    reader = _Reader(workers, spec, names(), axes)
    events: list[ProfileEvent] = []
    steps: list[ProfileStep] = []
    with counting_bar(f'measuring "{spec.name}"', warmup + repeat) as advance:
        for _ in range(warmup):
            calls.run([call], order)
            advance()
        for repetition in range(repeat):
            with workers.turn():  # calls of other threads come before or after it
                _ask(workers, _BEGIN)
                calls.run([call], order)
                noted, counted = _ask(workers, _END), _ask(workers, _COUNTS)
            measured, worked = reader.read(repetition, noted, counted)
            events += measured
            steps += worked
            advance()
    notes = () if workers.share_a_clock else (_NO_CLOCK,)
    return Profile(spec.name, repeat, tuple(events), tuple(steps), notes)


class _Reader:
    """Makes events of what workers have noted."""

    def __init__(
        self, workers: Workers, spec: FunctionSpec, names: StepNames, axes: MeshAxes
    ) -> None:
        self._device_ids = workers.device_ids
        self._share_a_clock = workers.share_a_clock
        self._names = names
        self._axes = axes
        self._programs = {  # by device and virtual stage, which is the number of the step
            device: {each.virtual_stage: each.name for each in programs}
            for device, programs in spec.programs_of.items()
        }

    def read(
        self, repetition: int, noted: Sequence[Any], counted: Sequence[Any]
    ) -> tuple[list[ProfileEvent], list[ProfileStep]]:
        """Reads the events that workers have noted in one call, and their collectives."""
        events: dict[int, list[_Timed]] = {}
        steps: dict[int, list[_Row]] = {}
        for device, rows, flows in zip(self._device_ids, noted, counted, strict=True):
            programs = self._programs.get(device)
            if programs is None:
                continue
            mine = _parse_rows(rows)
            traffic = parse_traffic(flows, device, self._device_ids, self._axes)
            events[device] = _named(mine, programs, self._names, traffic)
            whole = [row for row in mine if row.outer < 0]
            steps[device] = [row for stage, row in enumerate(whole) if stage in programs]
        begins = {device: min(row.begin for row in rows) for device, rows in steps.items() if rows}
        if self._share_a_clock:
            begins = dict.fromkeys(begins, min(begins.values(), default=0.0))
        worked = [
            ProfileStep(device, repetition, row.begin - begins[device], row.end - row.begin)
            for device, rows in steps.items()
            for row in rows
        ]
        measured = _with_waiting(events, begins, repetition, self._share_a_clock)
        return measured, worked


def _ask(workers: Workers, function: str) -> list[Any]:
    nothing: list[list[Any]] = [[] for _ in workers.device_ids]
    return workers.run("profile", [function] * workers.num_workers, nothing)


def _parse_rows(answer: Any) -> list[_Row]:
    """Reads what a worker answers.

    Raises:
        ValueError: it is something else.
    """
    try:
        names, rows = answer
        found = [
            _Row(
                printable(str(names[int(name)])),
                int(outer),
                float(begin),
                float(end),
                int(flow),
                int(value),
            )
            for name, outer, begin, end, flow, value in rows
        ]
        if any(not -1 <= row.outer < index for index, row in enumerate(found)):
            raise ValueError("an event lies in one that comes later")
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"a worker does not say what it has run: {error}") from error
    return found


def _named(
    rows: Sequence[_Row],
    programs: Mapping[int, str],
    names: StepNames,
    traffic: Sequence[Traffic],
) -> list[_Timed]:
    """The kernels and collectives of a worker, with the variables that they give.

    Args:
        rows: Rows that it has noted in one call.
        programs: Programs that it runs, by virtual stage.
        names: Names of variables in the executable, by function.
        traffic: Traffic of its collectives.
    """
    calls = {row.outer for row in rows}
    cursors: dict[int, StepCursor] = {}
    found = []
    stage = 0
    for index, row in enumerate(rows):
        if row.outer < 0:
            program = programs.get(stage, row.callee)
            cursors[index] = StepCursor(program, names.get(program, ()))
            stage += 1
            continue
        inside = cursors[row.outer]
        if row.callee == _CONDITION:
            inside.take_branch(row.value)
            continue
        variable, callee = inside.name_of(row.callee)
        if not variable:
            continue
        if index in calls or callee in names:
            cursors[index] = StepCursor(callee, names.get(callee, ()))
            continue
        moved = traffic[row.flow] if 0 <= row.flow < len(traffic) else None
        short = replace(row, callee=callee.removeprefix(_BUILTIN))
        found.append(_Timed(short, variable.removeprefix(_BUILTIN), inside.function, moved))
    return found


def _with_waiting(
    events: Mapping[int, Sequence[_Timed]],
    origin: Mapping[int, float],
    repetition: int,
    share_a_clock: bool,
) -> list[ProfileEvent]:
    """Events of a call on all devices."""
    # By groups or plan and device, the begin of each collective, in order.
    begins: dict[tuple[str, int], list[float]] = {}
    for device, mine in events.items():
        for event in mine:
            if event.traffic is not None:
                begins.setdefault((event.traffic.plan, device), []).append(event.row.begin)
    found = []
    for device, mine in events.items():
        passed: dict[str, int] = {}
        for event in mine:
            row, traffic = event.row, event.traffic
            waiting: float | None = 0.0
            if traffic is not None:
                turn = passed[traffic.plan] = passed.get(traffic.plan, -1) + 1
                last = max(
                    (
                        begins[traffic.plan, peer][turn]
                        for peer in traffic.peers
                        if len(begins.get((traffic.plan, peer), ())) > turn
                    ),
                    default=row.begin,
                )
                waiting = min(max(last - row.begin, 0.0), row.end - row.begin)
            found.append(
                ProfileEvent(
                    device,
                    "compute" if traffic is None else "communication",
                    event.name,
                    "kernel" if traffic is None else "collective",
                    row.begin - origin[device],
                    row.end - row.begin,
                    waiting if traffic is None or share_a_clock else None,
                    event.function,
                    row.callee if traffic is None else traffic.kind,
                    () if traffic is None else traffic.axes,
                    repetition,
                )
            )
    return found
