"""Lower bounds of kernel times on a device: by operations, by bytes or by the launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from distir_ext.analysis.costs import Cost
from distir_ext.analysis.programs.steps import Body, FunctionSteps, Step
from distir_ext.mesh.device import Device


class Roofline:
    """Times of steps on a device.

    Kernels take the longest of operations / rate, bytes / bandwidth and the launch (Williams and
    others, "Roofline: an insightful visual performance model", 2009), unless they were timed;
    collectives what the step says.

    Args:
        device: The device.
        timed: Seconds of a step that was timed; None of others.
    """

    def __init__(
        self, device: Device, timed: Callable[[Step], float | None] = lambda _: None
    ) -> None:
        self._device = device
        self._timed = timed
        self._seconds: dict[tuple[int, str], float] = {}
        self._known: dict[int, tuple[Step, tuple[Cost, str, str]]] = {}

    @property
    def device(self) -> Device:
        """The device that times are for."""
        return self._device

    def cost(self, steps: Iterable[Step]) -> tuple[Cost, str, str]:
        """The cost of kernels one after the other, what bounds the longest, and what is unknown."""
        total, bound, longest, unknown = Cost(), "launch", -1.0, ""
        for step in steps:
            is_loop = step.kind == "kernel"
            computing = self._device.seconds_of(step.flops, step.transcendentals, is_loop)
            accessed = step.bytes_read + step.bytes_written
            moving = accessed / self._device.bandwidth_of(accessed)
            times = {"compute": computing, "memory": moving, "launch": self._device.launch}
            slowest = max(times, key=lambda name: times[name])
            timed = self._timed(step)
            seconds = times[slowest] if timed is None else timed
            total += Cost(
                sum(step.flops.values()),
                step.transcendentals,
                step.bytes_read,
                step.bytes_written,
                seconds,
            )
            if seconds > longest:
                bound, longest = slowest, seconds
            unknown = unknown or step.unknown
        return total, bound, unknown

    def step_cost(self, step: Step) -> tuple[Cost, str, str]:
        """Returns the cost of one step, like :meth:`cost`; calls of a function share it."""
        known = self._known.get(id(step))
        if known is None:
            known = self._known[id(step)] = (step, self.cost((step,)))
        return known[1]

    def side_taken(self, functions: Mapping[str, FunctionSteps], branch: Step) -> Body:
        """Returns the side of a branch that takes longer; the first of equal ones."""
        return max(branch.branches, key=lambda side: self._seconds_of(functions, side))

    def _seconds_of(self, functions: Mapping[str, FunctionSteps], body: Body) -> float:
        total = 0.0
        for step in body.steps:
            if step.branches:
                total += max(self._seconds_of(functions, branch) for branch in step.branches)
            elif step.kind == "call":
                key = (id(functions), step.callee)
                if key not in self._seconds:
                    callee = functions[step.callee].body
                    self._seconds[key] = self._seconds_of(functions, callee)
                total += self._seconds[key]
            elif step.kind == "collective":
                total += step.seconds
            else:
                total += self.step_cost(step)[0].seconds
        return total


def not_exact(reasons: Iterable[str]) -> Iterator[str]:
    """A note that lists why costs are not exact, each reason once; none where they are."""
    different = dict.fromkeys(reasons)
    if different:
        yield f"not counted exactly: {'; '.join(different)}"
