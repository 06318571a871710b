"""Lists the kernels, collectives and calls of a program, with the memory that each step needs.

The list is read from the program after TVM's fusion and memory planning. If functions are equal but
for device groups and names, as the stages of a pipeline are, TVM plans only the first one. The
other functions copy its steps, with names and collectives of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import tvm
import tvm_ffi

from distir_ext.analysis.programs.planned_program import PlannedProgram, plan
from distir_ext.analysis.programs.steps import FunctionSteps, Step, StepReader, read_steps
from distir_ext.communication.collectives import CollectiveCall
from distir_ext.compile.fusion import is_unfused
from distir_ext.structure.equal_functions import FunctionComparer, FunctionOnDevices

_Seconds = Callable[[str, str, float, float], float]


class PlannedSteps(Protocol):
    """The steps of the functions of a module, by name."""

    @property
    def program(self) -> tvm.IRModule:
        """The module that has the kernels that run."""

    @property
    def kernels(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with the kernels that run."""

    @property
    def operators(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with an operator each, before fusion."""


def planned_steps(
    mod: tvm.IRModule, target: tvm.target.Target, cluster: Mapping[str, Any]
) -> PlannedSteps:
    """Plans a module.

    Args:
        mod: After LowerCCL.
        target: Target that ``dx.build`` would compile for.
        cluster: Cluster whose figures give the times of collectives.
    """
    return _shared(mod, target, cluster) or StepsOfModule(plan(mod, target), cluster)


class StepsOfModule:
    """Steps of a module that was planned as it is."""

    def __init__(self, planned: PlannedProgram, cluster: Mapping[str, Any]) -> None:
        self._planned = planned
        self._cluster = cluster

    @property
    def program(self) -> tvm.IRModule:
        """The module that has the kernels that run."""
        return self._planned.kernels

    @cached_property
    def kernels(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with the kernels that run."""
        return read_steps(self._planned.kernels, self._cluster)

    @cached_property
    def operators(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with an operator each, before fusion."""
        return read_steps(self._planned.operators, self._cluster)


def _shared(
    mod: tvm.IRModule, target: tvm.target.Target, cluster: Mapping[str, Any]
) -> PlannedSteps | None:
    """None where no functions are equal, or what TVM does with one depends on others."""
    found = FunctionComparer()(mod)
    if found is None:
        return None
    functions, others = found
    first: dict[str, FunctionOnDevices] = {}
    for each in functions:
        first.setdefault(each.like, each)
    if len(first) == len(functions):
        return None
    names: dict[str, Mapping[str, str]] = {}
    for each in functions:
        renaming = _renaming(first[each.like], each)
        if renaming is None:
            return None
        names[each.name] = renaming
    planned = plan(others, target)
    if is_unfused(planned.kernels):
        return None  # one that TVM cannot fuse leaves all of its module unfused
    return _SharedSteps(planned, functions, names, cluster)


def _renaming(first: FunctionOnDevices, other: FunctionOnDevices) -> dict[str, str] | None:
    """Maps variable names to those of an equal function; None if a name would have two."""
    found: dict[str, str] = {}
    for name, renamed in zip(map(str, first.variables), map(str, other.variables), strict=True):
        if found.setdefault(name, renamed) != renamed:
            return None
    return found


class _SharedSteps:
    """Steps of a module of which one of several equal functions was planned."""

    def __init__(
        self,
        planned: PlannedProgram,
        functions: list[FunctionOnDevices],
        names: Mapping[str, Mapping[str, str]],
        cluster: Mapping[str, Any],
    ) -> None:
        self._planned = planned
        self._functions = functions
        self._names = names
        self._seconds: _Seconds = tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(
            cluster
        )

    @property
    def program(self) -> tvm.IRModule:
        """The module that has the kernels that run."""
        return self._planned.kernels

    @cached_property
    def kernels(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with the kernels that run."""
        return self._steps(self._planned.kernels)

    @cached_property
    def operators(self) -> Mapping[str, FunctionSteps]:
        """Steps by function, with an operator each, before fusion."""
        return self._steps(self._planned.operators)

    def _steps(self, mod: tvm.IRModule) -> dict[str, FunctionSteps]:
        read = StepReader()(mod)
        likes = {each.like for each in self._functions}
        found = {name: steps for name, steps in read.items() if name not in likes}
        for each in self._functions:
            found[each.name] = self._of(each, read[each.like])
        return found

    def _of(self, function: FunctionOnDevices, steps: FunctionSteps) -> FunctionSteps:
        names, callees = self._names[function.name], function.callees
        in_calls = {f"in {like}": f"in {callee}" for like, callee in callees.items()}
        renamed = {**names, **in_calls}
        body = replace(
            steps.body,
            steps=tuple(self._step(function, each, names) for each in steps.body.steps),
            alive=tuple((renamed.get(name, name), size) for name, size in steps.body.alive),
        )
        params = tuple((names[name], size) for name, size in steps.params)
        return FunctionSteps(function.name, steps.operator, params, body)

    def _step(self, function: FunctionOnDevices, step: Step, names: Mapping[str, str]) -> Step:
        changed: dict[str, Any] = {
            "name": names.get(step.name, step.name),
            "reads": tuple(names.get(name, name) for name in step.reads),
        }
        if step.kind == "call":
            changed["callee"] = function.callees.get(step.callee, step.callee)
        if step.kind == "collective":
            text = function.communications[place_of(step)]
            changed["plan" if step.plan else "groups"] = text
            if step.place >= 0:
                changed |= {
                    "collective": CollectiveCall.of(function.notes[step.place]),
                    "place": -1,
                }
            changed["seconds"] = float(
                self._seconds(step.callee, text, step.given_bytes, step.made_bytes)
            )
        return replace(step, **changed)


def place_of(step: Step) -> int:
    """Returns the index of a collective among the distinct communications of its function."""
    return int((step.plan or step.groups)[1:-1])
