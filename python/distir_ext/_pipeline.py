"""Running a function for one microbatch after the other, so that its stages overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from distir_ext._microbatches import (
    BatchDims,
    check_batch_dims,
    check_result_dims,
    cut_input,
    join_results,
)
from distir_ext._schedule import Schedule, schedule
from distir_ext._signature import FunctionSpec, unflatten
from distir_ext._timeline import TimedEvent, Timeline
from distir_ext._workers import QueuedStep, Workers


class Pipeline:
    """A function of a loaded executable that is called with a batch of several microbatches.

    The workers of a stage run its program for microbatch 0, 1, ... without waiting for the other
    stages to finish; ``ModelFunction.pipeline`` makes it.

    Attributes:
        schedule: The order of events on each stage's devices.
    """

    def __init__(
        self,
        workers: Workers,
        spec: FunctionSpec,
        prepare: Callable[[Sequence[Any]], tuple[Any, list[list[Any]]]],
        run: Callable[[Sequence[list[list[Any]]], Sequence[int | None], Sequence[int]], Any],
        assemble: Callable[[Sequence[Any], Any], list[Any]],
        microbatches: int,
        kind: str,
        batch_dims: BatchDims | None,
        result_dims: int | Sequence[int | None] | None,
    ) -> None:
        if kind == "interleaved":
            raise ValueError(
                'schedule "interleaved" can be simulated, but not run: the stages of a device are '
                "one program"
            )
        self.schedule: Schedule = schedule(kind, max(len(spec.programs), 1), microbatches)
        self._workers = workers
        self._spec = spec
        self._prepare = prepare
        self._run = run
        self._assemble = assemble
        self._batch_dims = check_batch_dims(spec, batch_dims)
        self._result_dims = check_result_dims(spec, result_dims)
        self._has_run = False
        self._timeline: Timeline | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Runs the function on every microbatch.

        Args:
            *inputs: As for the function, but with all microbatches behind each other.

        Returns:
            As the function, with a :class:`JoinedArray` for each tensor of the result, or a tuple
            with a result per microbatch where ``result_dims`` says None.

        Raises:
            As the function, and ValueError for an input that does not divide into microbatches.
        """
        spec, count = self._spec, self.schedule.microbatches
        if len(inputs) != len(spec.inputs):
            names = ", ".join(param.name for param in spec.inputs)
            raise TypeError(
                f'"{spec.name}" takes {len(spec.inputs)} inputs ({names}), {len(inputs)} were given'
            )
        cuts = [
            cut_input(
                value, param, self._batch_dims, count, f'input "{param.name}" of "{spec.name}"'
            )
            for value, param in zip(inputs, spec.inputs, strict=True)
        ]
        # Every microbatch is checked before the first one runs.
        prepared = [self._prepare([cut[index] for cut in cuts]) for index in range(count)]
        limits, finishers = self._limits()
        steps = self._run([arguments for _, arguments in prepared], limits, finishers)
        self._has_run, self._timeline = True, self._measured(steps)
        results = [
            self._assemble(step.results, cutter)
            for step, (cutter, _) in zip(steps, prepared, strict=True)
        ]
        joined = join_results(results, self._result_dims)
        return unflatten(spec.result, iter(joined))

    @property
    def timeline(self) -> Timeline:
        """When the stages of the last call ran, by a clock that all workers share.

        Raises:
            RuntimeError: there was no call yet, or the workers are processes, which do not measure.
        """
        if not self._has_run:
            raise RuntimeError("the pipeline has not run yet")
        if self._timeline is None:
            raise RuntimeError("workers that are processes do not measure when they run a stage")
        return self._timeline

    def _limits(self) -> tuple[list[int | None], list[int]]:
        """Per rank how many microbatches it may have in flight; the ranks of the last stage."""
        stage_of = self._stage_of_device()
        devices = self._workers.device_ids
        limits = self.schedule.in_flight
        last = self.schedule.stages - 1
        return (
            [
                limits[stage_of[device]] if limits is not None and device in stage_of else None
                for device in devices
            ],
            [rank for rank, device in enumerate(devices) if stage_of.get(device) == last],
        )

    def _measured(self, steps: Sequence[QueuedStep]) -> Timeline | None:
        stage_of = self._stage_of_device()
        times = [step.times for step in steps if step.times is not None]
        if len(times) < len(steps):
            return None
        return Timeline(
            tuple(
                TimedEvent(device, stage_of[device], index, *of_step[rank][1:])
                for rank, device in enumerate(self._workers.device_ids)
                if device in stage_of
                for index, of_step in enumerate(times)
            )
        )

    def _stage_of_device(self) -> dict[int, int]:
        return {
            device: stage
            for stage, program in enumerate(self._spec.programs)
            for device in program.device_ids
        }

    def __repr__(self) -> str:
        count = self.schedule.microbatches
        return f"<Pipeline {self.schedule.kind} of {count} microbatches: {self._spec}>"
