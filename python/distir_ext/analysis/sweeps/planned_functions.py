"""Runs TVM's fusion and memory planning on the functions of many modules, once for equal ones.

Functions are equal if they differ only in names and in the devices that they communicate with
(``src/analysis/equal_functions.h``).
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from distir_ext.analysis.programs.planned_program import LegalizedOperators, plan
from distir_ext.analysis.programs.steps import FunctionSteps, StepReader
from distir_ext.compile.fusion import is_unfused
from distir_ext.structure.equal_functions import FunctionComparer, FunctionOnDevices


@dataclass(frozen=True)
class PlannedFunction:
    """A function of a module."""

    function: FunctionOnDevices
    steps: FunctionSteps
    """Those of the one that it is equal to. Collectives have places instead of groups or a plan."""


class FunctionPlanner:
    """Runs TVM's fusion and memory planning on the functions of modules.

    Args:
        target: Target that ``dx.build`` would compile for.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self._target = target
        self._compare = FunctionComparer()
        self._operators = LegalizedOperators()
        self._read = StepReader()
        self._steps: dict[str, FunctionSteps] = {}
        self._unfused: set[str] = set()

    def __call__(self, mod: tvm.IRModule) -> dict[str, PlannedFunction] | None:
        """The functions of a module after LowerCCL, callees first.

        Returns:
            By name; None where what TVM does with one of them depends on others.
        """
        found = self._compare(mod)
        if found is None:
            return None
        functions, others = found
        if len(others.functions):
            planned = plan(others, self._target, self._operators).kernels
            new = self._read(planned)
            self._steps |= new
            if is_unfused(planned):
                self._unfused |= set(new)
        if any(each.like in self._unfused for each in functions):
            return None  # one that TVM cannot fuse leaves all of its module unfused
        return {each.name: PlannedFunction(each, self._steps[each.like]) for each in functions}
