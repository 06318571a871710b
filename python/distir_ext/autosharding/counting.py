"""Counts the work of a program's operators on one device, before anything is sharded."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.analysis.programs.steps import StepReader
from distir_ext.analysis.roofline import Roofline
from distir_ext.compile import cpu, gpu
from distir_ext.compile.fusion import fuse_kernels
from distir_ext.compile.kernels.legalizations.legalize import OUTLINE
from distir_ext.compile.memory_plan import in_dataflow
from distir_ext.mesh.device import Device
from distir_ext.native import tvm_log
from distir_ext.native.machine import cpu_target

_OPAQUE = 8


@dataclass(frozen=True)
class CountedModule:
    """A module whose operators were counted.

    Attributes:
        outlined: The module, with a function for each distinct call of an operator.
        counts: Of each of these functions the seconds of its operations, the bytes that it reads
            and writes, and how TVM fuses it (``TOpPattern``).
    """

    outlined: tvm.IRModule
    counts: dict[str, list[float | int]]


@tvm_log.captured()
def count(mod: tvm.IRModule, device: Device, target: tvm.target.Target) -> CountedModule:
    """Legalises each distinct operator once, and counts its kernels.

    Args:
        mod: A module without anything distributed.
        device: Whose rates give seconds.
        target: The target that ``dx.build`` would compile for.
    """
    outlined = tvm_ffi.get_global_func("distir.analysis.OutlineOperators")()(mod)
    known = {name.name_hint for name in mod.functions}
    made = {
        # Fusion drops private functions.
        name: function.with_attr("global_symbol", name.name_hint)
        if isinstance(function, relax.Function)
        else function
        for name, function in outlined.functions_items()
        if name.name_hint not in known or not isinstance(function, relax.Function)
    }
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
    roofline = Roofline(device)
    counts: dict[str, list[float | int]] = {}
    for name, steps in StepReader()(fused).items():
        if not steps.operator:
            continue
        kernels = [each for each in steps.body.flat() if each.kind in ("kernel", "packed")]
        seconds = sum(
            roofline.device.seconds_of(each.flops, each.transcendentals, each.kind == "kernel")
            for each in kernels
        )
        counts[name] = [
            seconds,
            sum(each.bytes_read for each in kernels),
            sum(each.bytes_written for each in kernels),
            patterns.get(name, _OPAQUE) if len(kernels) == 1 else _OPAQUE,
        ]
    return CountedModule(outlined, counts)


def _patterns(mod: tvm.IRModule) -> dict[str, int]:
    """The pattern of each operator: that of its kernel which fuses least."""
    of_kernel = {
        name.name_hint: int(function.attrs["op_pattern"])
        for name, function in mod.functions_items()
        if function.attrs is not None and "op_pattern" in function.attrs
    }
    return {
        name: max(
            (of_kernel.get(each.callee, _OPAQUE) for each in steps.body.flat()), default=_OPAQUE
        )
        for name, steps in StepReader()(mod).items()
    }
