"""Costs of a module, equal to those of ``estimate`` and ``simulate`` but faster to compute.

Planning, fusing and reading functions takes most of the time of both, and most functions of a
configuration equal those of an earlier one except for the devices that communicate.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from distir_ext.analysis.estimate import peak_memory_of
from distir_ext.analysis.pipeline_layout import PipelineLayout
from distir_ext.analysis.programs.planned import LoweredPrograms, PlannedPrograms, lowered_programs
from distir_ext.analysis.programs.planned_program import plan, resolve_target
from distir_ext.analysis.programs.planned_steps import StepsOfModule
from distir_ext.analysis.simulate import timeline_of
from distir_ext.analysis.sweeps.operation_times import (
    OperationTimesReader,
    Prices,
    simulated_seconds,
    with_sends,
)
from distir_ext.analysis.sweeps.planned_functions import FunctionPlanner, PlannedFunction
from distir_ext.analysis.timelines.timeline import COMMUNICATION, Timeline
from distir_ext.mesh.cluster import Cluster


@dataclass(frozen=True)
class Figures:
    """Cost of a configuration; only the error where it cannot be partitioned."""

    seconds: float | None = None
    peak_memory: float | None = None
    bytes_sent: float | None = None
    bubble: float | None = None
    exposed_communication: float | None = None
    error: str | None = None
    named_axes: frozenset[str] | None = None
    """The axes that annotations name, of a plan by name."""


class ProgramCosts:
    """Costs of modules on a cluster.

    Args:
        cluster: The devices, with a :class:`distir_ext.Device`.
    """

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.device is not None
        self._cluster = cluster
        self._on_gpus = not cluster.device.is_cpu
        self._plan = FunctionPlanner(resolve_target(cluster.device.target))
        self._prices = Prices(cluster)

    def __call__(self, mod: tvm.IRModule, function: str, microbatches: int) -> Figures:
        """The figures of one call of a function, or of several that follow each other.

        Args:
            mod: A module in any phase before LowerCCL, of one microbatch.
            function: The function that is called.
            microbatches: Number of its calls.

        Raises:
            ValueError: As :func:`distir_ext.analysis.simulate`.
        """
        lowered = lowered_programs(mod, self._cluster)
        functions = self._plan(lowered.with_runtime_calls)
        found = None
        if functions is not None:
            found = self._of_equal_functions(lowered, functions, function, microbatches)
        return found or self._of_whole_module(lowered, function, microbatches)

    def _of_equal_functions(
        self,
        lowered: LoweredPrograms,
        functions: dict[str, PlannedFunction],
        function: str,
        microbatches: int,
    ) -> Figures | None:
        """Computes the figures from cached functions; None if devices deadlock."""
        stated = lowered.signature["functions"][function]
        layout = PipelineLayout(function, stated, microbatches)
        if self._on_gpus:
            layout.check_sends(function)
        reader = OperationTimesReader(functions, self._prices)
        programs = [
            reader.program(each.name, each.device_ids, microbatches) for each in layout.programs
        ]
        if self._on_gpus:
            programs = with_sends(programs)
        seconds = simulated_seconds(layout.as_data(self._on_gpus), programs, reader.communications)
        if seconds is None:
            return None
        # Programs of each device, for all microbatches. Nothing overlaps.
        of_devices = [
            [programs[stage] for stage in stages.values()] for stages in layout.stages.values()
        ]
        computing, communicating = (
            sum(sum(times) for times in each) * microbatches / len(of_devices)
            for each in (
                [[program.computing for program in own] for own in of_devices],
                [[program.communicating for program in own] for own in of_devices],
            )
        )
        sent = max(sum(program.bytes_sent for program in own) for own in of_devices)
        steps = {name: each.steps for name, each in functions.items()}
        return Figures(
            seconds,
            peak_memory_of(self._cluster, stated, steps),
            sent * microbatches,
            (seconds - computing - communicating) / seconds if seconds else 0.0,
            communicating,
        )

    def _of_whole_module(
        self, lowered: LoweredPrograms, function: str, microbatches: int
    ) -> Figures:
        planned = plan(lowered.with_runtime_calls, lowered.target)
        steps = StepsOfModule(planned, self._cluster.as_data())
        programs = PlannedPrograms(self._cluster, lowered.module, steps, lowered.signature)
        timeline = timeline_of(programs, function, microbatches)
        stated = lowered.signature["functions"][function]
        return Figures(
            timeline.seconds,
            peak_memory_of(self._cluster, stated, programs.kernels),
            _most_sent(timeline) * microbatches,
            timeline.bubble,
            timeline.exposed_communication,
        )


def _most_sent(timeline: Timeline) -> float:
    """Bytes that a device sends for one microbatch, where that is most."""
    by_stage = dict.fromkeys(range(len(timeline.stages)), 0.0)
    for each in timeline.operations:
        if each.stream == COMMUNICATION:
            by_stage[each.stage] += each.bytes
    stages_of = (
        {timeline.operations[each].stage for each in set(group.operations.tolist())}
        for group in timeline.groups
    )
    return max((sum(by_stage[stage] for stage in stages) for stages in stages_of), default=0.0)
