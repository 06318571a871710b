"""Counts the work of a program's operators on one device, before anything is sharded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.analysis.programs.steps import FunctionSteps, Step, StepReader
from distir_ext.compile import cpu, gpu
from distir_ext.compile.fusion import fuse_kernels
from distir_ext.compile.kernels.legalizations.legalize import OUTLINE
from distir_ext.compile.memory_plan import in_dataflow
from distir_ext.mesh.device import Device
from distir_ext.native import tvm_log
from distir_ext.native.machine import cpu_target

_OPAQUE = 8
_OPERATOR = "distir.operator"


@dataclass(frozen=True)
class CountedModule:
    """A module whose operators were counted.

    Attributes:
        outlined: The module, with a function for each distinct call of an operator.
        counts: Of each of these functions its kernels: the seconds of a kernel's operations, the
            bytes that it reads and writes, and how TVM fuses it (``TOpPattern``).
    """

    outlined: tvm.IRModule
    counts: dict[str, list[list[float | int]]]


@tvm_log.captured()
def count(mod: tvm.IRModule, device: Device, target: tvm.target.Target) -> CountedModule:
    """Legalises each distinct operator once, and counts its kernels.

    Args:
        mod: A module without anything distributed.
        device: Whose rates give seconds.
        target: The target that ``dx.build`` would compile for.
    """
    outlined = tvm_ffi.get_global_func("distir.analysis.OutlineAllOperators")(mod)
    known = {name.name_hint for name in mod.functions}
    made = {
        # Fusion drops private functions; those of operators count no bytes between kernels.
        name: function.without_attr(_OPERATOR).with_attr("global_symbol", name.name_hint)
        if isinstance(function, relax.Function)
        else function
        for name, function in outlined.functions_items()
        if name.name_hint not in known or not isinstance(function, relax.Function)
    }
    operators = {name.name_hint for name, each in made.items() if isinstance(each, relax.Function)}
    passes = cpu.passes(target) if cpu_target.is_cpu(target) else gpu.passes(target)
    names = [each.info.name for each in passes]
    # Before operators become kernels, products are left to libraries.
    until = passes[: names.index("LegalizeOps") + 1]
    # Operators are functions already.
    legalize = tvm.transform.Sequential([each for each in until if each.info.name != OUTLINE])
    with target:
        legalized = legalize(tvm.IRModule(made))
        legalized = in_dataflow(relax.transform.AnnotateTIROpPattern()(legalized))
        # An operator on small floats is computed by a kernel in float32, and casts.
        fused = fuse_kernels()(legalized)
    patterns = _patterns(legalized)
    counts: dict[str, list[list[float | int]]] = {}
    for name, steps in StepReader()(fused).items():
        if name not in operators:
            continue
        kernels = [each for each in steps.body.flat() if each.kind in ("kernel", "packed")]
        counts[name] = [
            [
                device.seconds_of(each.flops, each.transcendentals, each.kind == "kernel"),
                each.bytes_read,
                each.bytes_written,
                pattern,
            ]
            for each, pattern in zip(kernels, _fusing(steps, kernels, patterns[name]), strict=True)
        ]
    return CountedModule(outlined, counts)


def _fusing(
    steps: FunctionSteps, kernels: Sequence[Step], patterns: Mapping[str, int]
) -> list[int]:
    """Returns the patterns by which kernels of an operator fuse with those of others."""
    if len(kernels) == 1:  # if it is fused of several, as the one of them that does so least
        return [max(patterns.values(), default=_OPAQUE)]
    found = [patterns.get(each.callee, _OPAQUE) for each in kernels]
    params = {param for param, _ in steps.params}
    if any(params.intersection(each.reads) for each in kernels[1:]):
        found[0] = _OPAQUE  # what makes an operand has several readers
    return found


def _patterns(mod: tvm.IRModule) -> dict[str, dict[str, int]]:
    """The patterns of the kernels of each operator, by their names."""
    of_kernel = {
        name.name_hint: int(function.attrs["op_pattern"])
        for name, function in mod.functions_items()
        if function.attrs is not None and "op_pattern" in function.attrs
    }
    return {
        name: {each.callee: of_kernel.get(each.callee, _OPAQUE) for each in steps.body.flat()}
        for name, steps in StepReader()(mod).items()
    }
