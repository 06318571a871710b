"""Simulates a distributed program on a cluster: start and end of each step on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi

from distir_ext.analysis.layers import layer_of_weight
from distir_ext.analysis.measured.kernel_times import KernelTimes, rooflines_of
from distir_ext.analysis.pipeline_layout import PipelineLayout
from distir_ext.analysis.programs.operations import (
    OperationReader,
    Planned,
    simulated_kind,
)
from distir_ext.analysis.programs.planned import PlannedPrograms, planned_programs
from distir_ext.analysis.roofline import not_exact
from distir_ext.analysis.timelines.events import DeviceGroup
from distir_ext.analysis.timelines.timeline import COMMUNICATION, Timeline
from distir_ext.mesh.cluster import Cluster
from distir_ext.native.collective_records import names
from distir_ext.signature.signature import Program
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

_Integers = npt.NDArray[np.int64]


@short_tracebacks
def simulate(
    mod: tvm.IRModule,
    cluster: Cluster,
    *,
    sizes: Mapping[str, int] | None = None,
    function: str | None = None,
    microbatches: int = 1,
    schedule: str | None = None,
    overlap: bool = False,
    kernels: KernelTimes | None = None,
) -> Timeline:
    """Simulates one call of a function: when each device runs which kernel and which collective.

    What runs are the programs that :func:`estimate` counts, with its times. By default they run as
    on the workers of a session: each runs its kernels and collectives one after the other. A
    collective begins when all of its group have reached it, a receive when it was sent. A send
    does not wait on CPUs; on GPUs (NCCL) it takes as long as its receiver.

    Args:
        mod: A module in any phase before LowerCCL, of one microbatch.
        cluster: The devices, with a :class:`distir_ext.Device`.
        sizes: Values for symbolic sizes, by name.
        function: The function that is called; it may be left out where there is one.
        microbatches: Number of calls that follow each other, as of ``pipeline(microbatches)``.
        schedule: ``"gpipe"``, ``"1f1b"`` or ``"interleaved"``, by default the one that the function
            is built for.
        overlap: Instead, each device runs communication on a stream of its own, beside kernels that
            do not need the result, and no send waits. No backend of this package does so: this is
            what it could save.
        kernels: Times of kernels by :func:`time_kernels`. Others take the roofline's
            times.

    Returns:
        The events on all devices.

    Raises:
        ValueError: As :func:`estimate`; there is no such function, or none was named; the number of
            microbatches is not positive; the schedule is not one of the function; a GPU has several
            stages, which sessions on GPUs refuse; devices wait for each other for ever.
        TypeError: It is no module, or no cluster.

    Example:
        >>> from tvm import relax
        >>> from distir_ext import Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> mod = annotate(builder.get(), Mesh(tp=2), {"x": (None, "tp"), "w": ("tp", None)})
        >>> [each.kind for each in simulate(mod, Cluster.preset("H100")).of_device(0)]
        ['kernel', 'all_reduce']
    """
    known = planned_programs(mod, cluster, sizes)
    return timeline_of(known, function, microbatches, schedule, overlap, kernels)


def timeline_of(
    known: PlannedPrograms,
    function: str | None = None,
    microbatches: int = 1,
    schedule: str | None = None,
    overlap: bool = False,
    kernels: KernelTimes | None = None,
) -> Timeline:
    """The timeline of programs that are planned already; arguments as for :func:`simulate`."""
    name = _function(known.signature["functions"], function)
    stated = known.signature["functions"][name]
    layout = PipelineLayout(name, stated, microbatches, schedule)
    on_gpus = not known.device.is_cpu
    if on_gpus and not overlap:
        layout.check_sends(name)
    roofline = rooflines_of(known, kernels)

    def simulated(crowd: float) -> Timeline:
        reader = OperationReader(known.kernels, roofline(crowd), microbatches)
        operations = [
            reader.read(program.name, stage, _weights(stated, program))
            for stage, program in enumerate(layout.programs)
        ]
        simulation = _Simulation(layout, operations, overlap, on_gpus and not overlap)
        return simulation.timeline(known.cluster, name)

    shared = kernels.workers_per_core if kernels else 1.0
    timeline = simulated(shared)
    for _ in range(_CROWD_ROUNDS if shared > 1 else 0):
        timeline = simulated(max(1.0, shared * _busy_at_once(timeline)))
    return timeline


# Simulations after the first, each with what the one before it says of how many workers compute at
# the same time; what they say changes by less than a hundredth then.
_CROWD_ROUNDS = 4


def _busy_at_once(timeline: Timeline) -> float:
    """The part of the devices that run something, on average, while any of them does."""
    edges = []
    for group in timeline.groups:
        number = np.full(len(group), float(len(group.device_ids)))
        edges += [np.stack([group.starts, number]), np.stack([group.ends, -number])]
    if not edges:
        return 1.0
    times, changes = np.concatenate(edges, axis=1)
    order = np.argsort(times, kind="stable")
    busy = np.cumsum(changes[order])[:-1]
    lasting = np.diff(times[order])
    some = lasting[busy > 0.5].sum()
    devices = sum(len(group.device_ids) for group in timeline.groups)
    return float((busy * lasting).sum() / some / devices) if some > 0 else 1.0


def _function(functions: Mapping[str, Any], name: str | None) -> str:
    listed = ", ".join(functions)
    if name is None:
        if len(functions) != 1:
            raise ValueError(f"the module has several functions, {listed}: state function=")
        return next(iter(functions))
    if name not in functions:
        raise ValueError(
            f"the module has no function {name!r}{did_you_mean(name, functions)}; it has {listed}"
        )
    return name


def _weights(function: Mapping[str, Any], program: Program) -> dict[str, str]:
    """The layer of each weight that a program takes."""
    first = function["num_input"]
    names = [function["params"][index]["name"] for index in program.params if index >= first]
    return {name: layer_of_weight(name) for name in names}


class _Simulation:
    """Request to the native simulation, and the reading of its answer."""

    def __init__(
        self,
        layout: PipelineLayout,
        operations: Sequence[Sequence[Planned]],
        overlap: bool,
        sends_wait: bool,
    ) -> None:
        self._layout = layout
        self._operations = _with_sends(operations) if sends_wait else operations
        self._overlap = overlap
        self._sends_wait = sends_wait
        operators = (each.operation.operator for program in operations for each in program)
        self._labels = {name: index for index, name in enumerate(dict.fromkeys(operators))}
        if names.send in self._labels:  # both sides of a transfer are asked about together
            self._labels[names.send] = self._labels.setdefault(names.recv, self._labels[names.send])
        self._first_operation = np.cumsum([0, *map(len, operations)])
        self._operation_list = tuple(
            each.operation for program in self._operations for each in program
        )
        self._seconds = np.array([each.seconds for each in self._operation_list])

    def timeline(self, cluster: Cluster, function: str) -> Timeline:
        """Simulates.

        Raises:
            ValueError: Devices wait for each other for ever.
        """
        found = tvm_ffi.get_global_func("distir.analysis.Simulate")(self._problem())
        groups = [self._group(row) for row in found["classes"]]
        first_events = np.array([int(row[1]) for row in found["classes"]])
        if len(found["blocked"]):
            waits = (self._blocked(groups, first_events, row) for row in found["blocked"])
            raise ValueError(f"devices wait for each other for ever: {'; '.join(waits)}")
        path = _path(int(found["last_event"]), [row[4] for row in found["classes"]])
        of_event = np.searchsorted(first_events, path, side="right") - 1
        places = zip(of_event.tolist(), (path - first_events[of_event]).tolist(), strict=True)
        without = found["seconds_without"]
        reasons = (
            f"{each.operation.operator}: {each.unknown}"
            for program in self._operations
            for each in program
            if each.unknown
        )
        return Timeline(
            cluster,
            function,
            self._layout.plan.kind,
            self._layout.plan.microbatches,
            self._overlap,
            float(found["seconds"]),
            tuple(program.name for program in self._layout.programs),
            self._operation_list,
            tuple(sorted(groups, key=lambda group: group.device_ids)),
            tuple(not_exact(reasons)),
            tuple((groups[index], row) for index, row in places),
            lambda operator: float(without(self._labels[operator])),
        )

    def _problem(self) -> dict[str, Any]:
        """Returns the problem in the form that ``src/analysis/timeline/timeline_data.cc`` reads."""
        communications: dict[tuple[str, str], int] = {}
        programs = [
            [self._row(each, communications) for each in program] for program in self._operations
        ]
        return {
            **self._layout.as_data(self._sends_wait),
            "programs": programs,
            "communications": [list(each) for each in communications],
        }

    def _row(self, each: Planned, communications: dict[tuple[str, str], int]) -> list[Any]:
        operation, number = each.operation, -1
        if each.communication is not None:
            number = communications.setdefault(each.communication, len(communications))
        on_own_stream = self._overlap and operation.stream == COMMUNICATION
        return [
            simulated_kind(operation.kind),
            operation.seconds,
            int(on_own_stream),
            number,
            self._labels[operation.operator],
            list(each.after) if self._overlap else [],
        ]

    def _group(self, row: Sequence[Any]) -> DeviceGroup:
        """The times of a class of devices."""
        devices = tuple(self._layout.device_ids[number] for number in row[0])
        stages = self._layout.stages[devices[0]]
        blocks = [
            (stages[index], microbatch)
            for index, microbatch in self._layout.order
            if index in stages
        ]
        sizes = [len(self._operations[stage]) for stage, _ in blocks]
        operations = [
            np.arange(self._first_operation[stage], self._first_operation[stage + 1])
            for stage, _ in blocks
        ]
        of_event = np.concatenate([np.zeros(0, np.int64), *operations])
        arrivals, starts = (np.frombuffer(bytes(each), np.float64) for each in row[2:4])
        return DeviceGroup(
            devices,
            of_event,
            np.repeat([microbatch for _, microbatch in blocks], sizes),
            arrivals,
            starts,
            starts + self._seconds[of_event],
        )

    def _blocked(
        self, groups: Sequence[DeviceGroup], first_events: _Integers, row: Sequence[int]
    ) -> str:
        """Describes the events that wait for each other."""
        described = []
        for event in map(int, row):
            if event < 0:
                described.append("a step that no device takes")
                continue
            index = int(np.searchsorted(first_events, event, side="right")) - 1
            group, row_of_group = groups[index], event - int(first_events[index])
            operation = self._operation_list[group.operations[row_of_group]]
            described.append(
                f"{operation.kind} of {operation.name!r} on device {group.device_ids[0]} "
                f"(microbatch {group.microbatches[row_of_group]})"
            )
        return " waits for ".join(described)


def _path(last: int, causes: Sequence[Any]) -> _Integers:
    """Returns the events from the first to the last one, each the cause of the next one's start."""
    of_event = b"".join(map(bytes, causes))
    listed = np.frombuffer(of_event, np.int64).tolist()
    path = []
    while last >= 0:
        path.append(last)
        last = listed[last]
    return np.array(path[::-1], np.int64)


def _with_sends(operations: Sequence[Sequence[Planned]]) -> list[list[Planned]]:
    """A send takes as long as what receives it."""
    seconds = {
        each.operation.plan: each.operation.seconds
        for program in operations
        for each in program
        if each.operation.kind == names.recv
    }
    return [
        [
            replace(
                each,
                operation=replace(each.operation, seconds=seconds.get(each.operation.plan, 0.0)),
            )
            if each.operation.kind == names.send
            else each
            for each in program
        ]
        for program in operations
    ]
