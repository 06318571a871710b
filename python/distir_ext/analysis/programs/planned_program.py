"""Runs TVM's fusion and memory planning on a worker's program, without scheduling kernels."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi

from distir_ext.compile import cpu, gpu
from distir_ext.compile.memory_plan import in_dataflow, memory_plan_context
from distir_ext.native import tvm_log
from distir_ext.native.machine import cpu_target
from distir_ext.native.machine import nvidia as _nvidia

# What changes neither arithmetic nor memory, and takes time for every kernel.
_SCHEDULES = (
    "MergeKernels",
    "ScheduleKernels",
    "ApplyDefaultSchedule",
    "LoadTensorIntrinsics",
    "NameSteps",
)


@dataclass(frozen=True)
class PlannedProgram:
    """Two states of one module."""

    operators: tvm.IRModule
    """Every call of an operator is a call of a function with the attribute ``distir.operator``,
    which computes it by kernels."""

    kernels: tvm.IRModule
    """Kernels are fused and write to tensors in planned storages."""


def resolve_target(name: str) -> tvm.target.Target:
    """The target that a device of a cluster names, as ``dx.build`` resolves it.

    ``"llvm"`` is this host's CPU. ``"cuda"`` is the GPU of this machine, and without one the
    architecture that ``dx.build`` compiles for then.
    """
    if name == "llvm":
        return cpu_target.host_target()
    return tvm.target.Target(_nvidia.resolve_target(name) if name == "cuda" else name)


class LegalizedOperators:
    """Kernels into which TVM legalised operators of earlier modules, for reuse with one target."""

    def __init__(self) -> None:
        made = tvm_ffi.get_global_func("distir.analysis.LegalizedOperators")()
        self._with_known, self._learn = made

    def legalized(self, outlined: tvm.IRModule, legalize: tvm.transform.Pass) -> tvm.IRModule:
        """A module of operators as functions, legalised."""
        found = legalize(self._with_known(outlined))
        self._learn(outlined, found)
        return found


@tvm_log.captured()
def plan(
    mod: tvm.IRModule, target: tvm.target.Target, known: LegalizedOperators | None = None
) -> PlannedProgram:
    """Runs the passes of ``dx.build`` up to TVM's memory plan.

    Equal calls of operators are legalised once, which gives the same kernels. TVM's warnings are
    logged, as those of ``dx.build`` are.

    Args:
        mod: A module after LowerCCL.
        target: Target that ``dx.build`` would compile for.
        known: Kernels of earlier modules, for reuse under their names.
    """
    passes = cpu.passes(target) if cpu_target.is_cpu(target) else gpu.passes(target)
    mod = in_dataflow(mod)
    operators = mod
    with memory_plan_context(mod), target:
        for each in passes:
            name = each.info.name
            if name in _SCHEDULES:
                continue
            if name == "LegalizeOps":
                mod = operators = known.legalized(mod, each) if known else each(mod)
            else:
                mod = each(mod)
            if name == "StaticPlanBlockMemory":
                break
    return PlannedProgram(operators, mod)
