"""Runs a function for one microbatch after the other, so that its stages overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from distir_ext.session.function_calls import FunctionCalls, VirtualStageOfCall
from distir_ext.session.microbatches import (
    BatchDims,
    check_batch_dims,
    check_result_dims,
    cut_input,
    join_results,
)
from distir_ext.session.schedule import (
    Schedule,
    schedule_of_programs,
    stages_of_devices,
    virtual_stages_in_order,
)
from distir_ext.session.timeline import TimedEvent, Timeline
from distir_ext.signature.specs import unflatten
from distir_ext.workers.base import StepOutcome


class Pipeline:
    """A function of a loaded executable that is called with a batch of several microbatches.

    The workers of a stage run its program for microbatch 0, 1, ... without waiting for the other
    stages to finish; ``ModelFunction.pipeline`` makes it.

    Attributes:
        schedule: The order of events on the devices; a stage is a program of the function.
    """

    def __init__(
        self,
        calls: FunctionCalls,
        microbatches: int,
        kind: str | None,
        batch_dims: BatchDims | None,
        result_dims: int | Sequence[int | None] | None,
    ) -> None:
        self._calls = calls
        self._spec = calls.spec
        self.schedule: Schedule = schedule_of_programs(
            self._spec.name, self._spec.programs, kind, microbatches
        )
        self._batch_dims = check_batch_dims(self._spec, batch_dims)
        self._result_dims = check_result_dims(self._spec, result_dims)
        self._has_run = False
        self._timeline: Timeline | None = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Runs the function on every microbatch.

        Args:
            *inputs: As for the function, but with all microbatches behind each other.
            **named: The same by name.

        Returns:
            As the function, with a :class:`JoinedArray` for each tensor of the result, or a tuple
            with a result per microbatch where ``result_dims`` says None.

        Raises:
            As the function, and ValueError for an input that does not divide into microbatches.
        """
        spec, count = self._spec, self.schedule.microbatches
        cuts = [
            cut_input(
                value, param, self._batch_dims, count, f'input "{param.name}" of "{spec.name}"'
            )
            for value, param in zip(self._calls.in_order(inputs, named), spec.inputs, strict=True)
        ]
        # Every microbatch is checked before the first one runs.
        held = self._calls.held
        calls = [
            self._calls.prepare([cut[index] for cut in cuts], held, once=False)
            for index in range(count)
        ]
        order = virtual_stages_in_order(stages_of_devices(spec.programs), count)
        outcomes = self._calls.run(calls, order, *self._limits(), timed=True)
        self._has_run, self._timeline = True, self._measured(outcomes)
        results = [self._calls.assemble(index, call, outcomes) for index, call in enumerate(calls)]
        joined = join_results(results, self._result_dims)
        return unflatten(spec.result, iter(joined))

    @property
    def timeline(self) -> Timeline:
        """When the stages of the last call ran, by a clock that all workers share.

        Raises:
            RuntimeError: there was no call yet, or workers on different hosts share no clock.
        """
        if not self._has_run:
            raise RuntimeError("the pipeline has not run yet")
        if self._timeline is None:
            raise RuntimeError("workers on different hosts have no clock in common")
        return self._timeline

    def _limits(self) -> tuple[list[int | None] | None, list[int]]:
        """Per rank how many microbatches it may have in flight; the ranks of the last stage."""
        limits = self.schedule.in_flight
        if limits is None:
            return None, []
        ranks = enumerate(self._calls.workers.device_ids)
        stages = {rank: self._stages[device][0] for rank, device in ranks if device in self._stages}
        last = self.schedule.stages - 1
        # The last stage ends each microbatch before it begins the next one anyway.
        return (
            [
                limits[stages[rank]] if stages.get(rank, last) != last else None
                for rank in range(self._calls.workers.num_workers)
            ],
            [rank for rank, stage in stages.items() if stage == last],
        )

    def _measured(self, outcomes: Mapping[VirtualStageOfCall, StepOutcome]) -> Timeline | None:
        if any(outcome.times is None for outcome in outcomes.values()):
            return None
        return Timeline(
            tuple(
                TimedEvent(
                    device, self._stages[device][index], microbatch, *outcome.times[rank][1:]
                )
                for rank, device in enumerate(self._calls.workers.device_ids)
                for (index, microbatch), outcome in outcomes.items()
                if outcome.times is not None and index in self._stages.get(device, ())
            )
        )

    @cached_property
    def _stages(self) -> dict[int, Mapping[int, int]]:
        """Stages of each device, by virtual stage."""
        found: dict[int, dict[int, int]] = {}
        for stage, program in enumerate(self._spec.programs):
            for device in program.device_ids:
                found.setdefault(device, {})[program.virtual_stage] = stage
        return dict(found)

    def __repr__(self) -> str:
        count = self.schedule.microbatches
        return f"<Pipeline {self.schedule.kind} of {count} microbatches: {self._spec}>"
