"""Plans the functions of many modules, equal ones once (``src/analysis/equal_functions.h``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi

from distir_ext._analysis.planned_program import plan
from distir_ext._analysis.steps import FunctionSteps, StepReader
from distir_ext._compile.fusion import is_unfused


@dataclass(frozen=True)
class FunctionOnDevices:
    """A function of a module."""

    name: str
    like: str
    """The function that it is equal to but for the devices that communicate."""

    steps: FunctionSteps
    """Those of that one. Collectives have a place, as ``"[0]"``, instead of groups or a plan."""

    communications: Sequence[str]
    """Groups and plans, by place."""

    callees: Mapping[str, str]
    """The functions that it calls, by the names that the steps have for them."""


class FunctionPlanner:
    """Has TVM fuse and plan the functions of modules.

    Args:
        target: What ``dx.build`` would compile for.
    """

    def __init__(self, target: tvm.target.Target) -> None:
        self._target = target
        self._compare = tvm_ffi.get_global_func("distir.analysis.EqualFunctions")()
        self._read = StepReader()
        self._steps: dict[str, FunctionSteps] = {}
        self._unfused: set[str] = set()

    def __call__(self, mod: tvm.IRModule) -> dict[str, FunctionOnDevices] | None:
        """The functions of a module after LowerCCL, callees first.

        Returns:
            By name; None where what TVM does with one of them depends on others.
        """
        found = self._compare(mod)
        if found is None:
            return None
        functions, others = found
        if len(others.functions):
            planned = plan(others, self._target).kernels
            new = self._read(planned)
            self._steps |= new
            if is_unfused(planned):
                self._unfused |= set(new)
        rows = [
            (str(name), str(like), tuple(map(str, communications)), callees)
            for name, like, communications, callees in functions
        ]
        if any(like in self._unfused for _, like, _, _ in rows):
            return None  # one that TVM cannot fuse leaves all of its module unfused
        return {
            name: FunctionOnDevices(
                name,
                like,
                self._steps[like],
                communications,
                {str(key): str(value) for key, value in callees.items()},
            )
            for name, like, communications, callees in rows
        }
