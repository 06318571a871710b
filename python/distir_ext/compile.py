"""From an annotated module to an executable for all workers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from distir_ext import _nvidia, transform
from distir_ext._compile import cpu, gpu, tvm_log
from distir_ext._compile.memory_plan import in_dataflow, memory_plan_context
from distir_ext._compile.program_check import check_programs
from distir_ext._compile.steps import steps_until
from distir_ext._modules import check_module
from distir_ext._signature import parse_signature
from distir_ext._signature_attr import signature_for_executable
from distir_ext._tracebacks import short_tracebacks
from distir_ext.communication.collectives import collectives, to_data
from distir_ext.dump import dumped
from distir_ext.lowering import lower_for, run_steps

if TYPE_CHECKING:
    from distir_ext.cluster import Cluster

_PARTITIONS_ATTR = "distir.partitions"
_SIGNATURE_FUNCTION = "distir_signature"


@short_tracebacks
def lower(
    mod: tvm.IRModule,
    cluster: Cluster | None = None,
    *,
    until: str = "lowered",
    dump_dir: str | os.PathLike[str] | None = None,
) -> tvm.IRModule:
    """Runs what is still missing up to per-worker Relax, with ``R.ccl`` collectives.

    The passes are PropagateSharding, PadShards, DecomposeSharded, LegalizeRedistribute,
    OptimizeCollectives and LowerDistIR, in this order; :func:`distir_ext.phase` tells how far a
    module has come.

    Args:
        mod: A module in any phase: annotated, propagated, legalized or already lowered. One that
            OptimizeCollectives has been run on is not optimised again.
        cluster: What the devices are joined by; the module's own, or NVLink, if left out.
        until: Where to stop: behind a phase, as ``"propagated"``, ``"legalized"``, ``"lowered"`` or
            ``"runtime"``, or behind a pass, as ``"PadShards"``.
        dump_dir: A folder that gets the module before and after each pass, and ``index.html`` with
            the differences (:class:`distir_ext.DumpPasses`).

    Returns:
        The module after the last pass.

    Raises:
        ValueError: the module has no sharding annotations, a pass refuses it, or ``until`` is
            unknown.
        TypeError: ``mod`` is no module.
        OSError: ``dump_dir`` cannot be written to.
    """
    check_module(mod)
    steps = steps_until(until)
    with dumped(dump_dir):
        return run_steps(mod, cluster, steps, transform.OptimizeCollectives())


@short_tracebacks
@tvm_log.captured()
def build(
    mod: tvm.IRModule,
    target: str | Mapping[str, Any] | tvm.target.Target = "llvm",
    cluster: Cluster | None = None,
    *,
    blas: bool = True,
    dump_dir: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Any:
    """Builds one executable that every worker loads, from a module in any phase.

    TVM's own warnings while it compiles go to the logger ``distir_ext.tvm``, those that say nothing
    of the program at level INFO: ``logging.basicConfig(level=logging.INFO)`` shows them.

    Args:
        mod: A module in any phase.
        target: What each worker runs on: ``"llvm"``, ``"cuda"``, ``"nvidia/nvidia-h100"``,
            ``{"kind": "cuda", "arch": "sm_90"}``, or a Target. ``"llvm"`` alone means this
            machine's CPU with all its instructions; for another one state a target with ``mcpu``.
            No GPU is needed to build for one; the kernels are compiled where one is.
        cluster: What the devices are joined by, as for :func:`lower`.
        blas: Whether CPUs compute products of matrices by OpenBLAS; without it, and where it is not
            installed, by TVM's loops, which are slow.
        dump_dir: A folder that gets the module before and after each pass, as for :func:`lower`;
            those of TVM are among them.
        options: Passed on to ``tvm.compile``.

    Returns:
        The executable of ``tvm.compile``. ``Session.load`` loads it; it tells its signature
        (parameters, placements, which function which device runs) through its function
        ``distir_signature``.

    Raises:
        ValueError: the module has no sharding annotations, a pass refuses it, or one that ran
            behind LowerDistIR has changed what programs take or return; the CUDA compiler that is
            installed does not know the target's architecture, or TVM is to make CUDA graphs.
        TypeError: ``mod`` is no module.
    """
    check_module(mod)
    target = _nvidia.resolve_target(target)
    if cpu.is_cpu(target):
        resolved = cpu.host_target() if target == "llvm" else tvm.target.Target(target)
        tail = cpu.pipeline(resolved, blas)
    else:
        gpu.check_options()
        resolved = tvm.target.Target(target)
        tail = gpu.pipeline(resolved)
    options.setdefault("relax_pipeline", tail)
    with dumped(dump_dir):
        program = lower_for(mod, cluster, resolved)
        lowered = transform.LowerCCL()(program)
        described = signature_for_executable(lowered)
        check_programs(lowered, parse_signature(json.dumps(described)))
        described |= _listed(program) | {
            "device_type": resolved.get_target_device_type(),
            "partitions": json.loads(str(lowered.attrs.get(_PARTITIONS_ATTR, "[]"))),
        }
        signature = json.dumps(described, separators=(",", ":"))
        workers = _with_signature_function(lowered, signature)
        with memory_plan_context(workers):
            executable = tvm.compile(workers, target=resolved, **options)
    executable.distir_signature = signature  # for who cannot run it
    return executable


def _listed(program: tvm.IRModule) -> dict[str, Any]:
    """The collectives of a program, unless they have become runtime calls already."""
    if program.attrs is not None and _PARTITIONS_ATTR in program.attrs:
        return {}
    return {"collectives": to_data(collectives(program))}


def _with_signature_function(mod: tvm.IRModule, text: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function(_SIGNATURE_FUNCTION, []):
        builder.emit_func_output(builder.emit(tvm.ir.StringImm(text)))
    function = builder.get()[_SIGNATURE_FUNCTION]
    result = in_dataflow(mod)
    result.update_func(tvm.ir.GlobalVar(_SIGNATURE_FUNCTION), function)
    return result
