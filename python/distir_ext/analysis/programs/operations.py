"""Lists the operations of a program in the order of a device, with calls expanded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distir_ext.analysis.layers import layers_of_steps
from distir_ext.analysis.programs.steps import Body, FunctionSteps, Step
from distir_ext.analysis.roofline import Roofline
from distir_ext.analysis.timelines.events import Operation
from distir_ext.analysis.timelines.timeline import COMMUNICATION, COMPUTE
from distir_ext.native.collective_records import names, records

After = tuple[int, ...]

# Of OperationKind in src/analysis/timeline/timeline.h.
_SIMULATED_KINDS = {"kernel": 0, names.send: 2, names.recv: 3}
_COLLECTIVE = 1


def simulated_kind(kind: str) -> int:
    """Returns the native simulation's number for :attr:`Operation.kind`."""
    return _SIMULATED_KINDS.get(kind, _COLLECTIVE)


def form_of_members(kind: str, plan: str) -> str:
    """Returns the form of a collective's members: groups, or one of two kinds of plans."""
    return records()[kind].members if plan else "groups"


@dataclass(frozen=True)
class Planned:
    """Operation with its communication, if it takes part in one."""

    operation: Operation
    after: After
    """Earlier operations of the program that give what it reads."""

    communication: tuple[str, str] | None
    """``"groups"``, ``"transfer"`` or ``"segments"``, and the text of the groups or the plan."""

    unknown: str = ""
    """Why its time is not exact; empty where it is."""


class OperationReader:
    """Reads the operations of programs.

    Args:
        functions: The steps of the planned program.
        roofline: Gives the times of kernels.
        microbatches: Of a call of them.
    """

    def __init__(
        self,
        functions: Mapping[str, FunctionSteps],
        roofline: Roofline,
        microbatches: int = 1,
    ) -> None:
        self._functions = functions
        self._step_seconds = roofline.device.seconds_of_step(microbatches)
        self._roofline = roofline

    def read(self, program: str, stage: int, weights: Mapping[str, str]) -> list[Planned]:
        """The operations of a program.

        Args:
            program: Its function.
            stage: Its number.
            weights: The layer of each parameter that is a weight, empty for none.
        """
        walk = _Walk(self, stage)
        function = self._functions[program]
        walk.begin(program)
        layers = {name: weights.get(name, "") for name, _ in function.params}
        entry = tuple(range(len(walk.found)))
        walk.function(function, entry, layers, set(weights), "")
        return walk.found

    @property
    def functions(self) -> Mapping[str, FunctionSteps]:
        """Functions by name."""
        return self._functions

    @property
    def roofline(self) -> Roofline:
        """The roofline that gives the times of kernels."""
        return self._roofline

    @property
    def step_seconds(self) -> float:
        """Seconds that a call takes before its first kernel."""
        return self._step_seconds


class _Walk:
    """Walk through a program, and through the functions that it calls."""

    def __init__(self, reader: OperationReader, stage: int) -> None:
        self._reader = reader
        self._stage = stage
        self.found: list[Planned] = []

    def begin(self, program: str) -> None:
        """Adds the overhead that a call has before its first kernel, if there is any."""
        seconds = self._reader.step_seconds
        if seconds:
            step = Operation(
                "step", "kernel", "step", COMPUTE, program, self._stage, "", seconds, 0.0, 0.0
            )
            self._add(step, (), None)

    def function(
        self,
        function: FunctionSteps,
        entry: After,
        layers: Mapping[str, str],
        weights: set[str],
        outer: str,
    ) -> After:
        flat = list(function.body.flat())
        of_step = layers_of_steps(flat, layers, weights)
        by_id = {id(step): layer or outer for step, layer in zip(flat, of_step, strict=True)}
        return self._body(function, function.body, entry, layers, by_id)

    def _body(
        self,
        function: FunctionSteps,
        body: Body,
        entry: After,
        layers: Mapping[str, str],
        layer_of: Mapping[int, str],
    ) -> After:
        """The operations that give the result."""
        given: list[After] = []
        for step in body.steps:
            after = _resolved(step.after, given, entry)
            layer = layer_of[id(step)]
            if step.branches:
                side = self._reader.roofline.side_taken(self._reader.functions, step)
                given.append(self._body(function, side, after, layers, layer_of))
            elif step.kind == "call":
                callee = self._reader.functions[step.callee]
                read = [layers.get(each, "") for each in step.reads]
                inner = {param: "" for param, _ in callee.params}
                inner |= {
                    param: of_argument
                    for (param, _), of_argument in zip(callee.params, read, strict=False)
                }
                given.append(self.function(callee, after, inner, set(), layer))
            else:
                given.append(self._step(function, step, after, layer))
        return _resolved(body.result_after, given, entry)

    def _step(self, function: FunctionSteps, step: Step, after: After, layer: str) -> After:
        """Adds a kernel, a collective, or a collective with a kernel that is fused to it."""
        if step.kind == "collective":
            call = step.collective
            kind = step.callee if call is None else call.kind
            key = None if call is None else call.key
            communication = Operation(
                step.name,
                kind,
                kind,
                COMMUNICATION,
                function.name,
                self._stage,
                layer,
                step.seconds,
                0.0,
                0.0 if key is None else float(math.ceil(key.bytes)),
                () if key is None else key.axes,
                step.plan,
            )
            members = form_of_members(step.callee, step.plan), step.plan or step.groups
            after = self._add(communication, after, members)
            if not step.flops:
                return after
        cost, _, unknown = self._reader.roofline.step_cost(step)
        kernel = Operation(
            step.name,
            "kernel",
            step.callee,
            COMPUTE,
            function.name,
            self._stage,
            layer,
            cost.seconds,
            cost.flops,
            cost.bytes_accessed,
        )
        return self._add(kernel, after, None, unknown)

    def _add(
        self,
        operation: Operation,
        after: After,
        members: tuple[str, str] | None,
        unknown: str = "",
    ) -> After:
        self.found.append(Planned(operation, after, members, unknown))
        return (len(self.found) - 1,)


def _resolved(after: Iterable[int], given: list[After], entry: After) -> After:
    """The operations behind steps, of which -1 is the entry."""
    found: set[int] = set()
    for step in after:
        found.update(entry if step < 0 else given[step])
    return tuple(sorted(found))
