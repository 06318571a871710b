"""Relax pass pipeline for GPUs: TVM's own, with cuBLASLt and float32 accumulation.

It takes a worker's program to what TVM's virtual machine runs; ``building`` passes it on as
``relax_pipeline``. Kernels on float16, bfloat16 and float8 add in float32.
"""

from __future__ import annotations

import re
from typing import Any

import tvm
from tvm import relax
from tvm.relax.backend.adreno import pipeline as adreno
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic
from tvm.relax.backend.cuda import pipeline as cuda
from tvm.relax.backend.gpu_generic import pipeline as gpu_generic
from tvm.relax.backend.rocm import pipeline as rocm
from tvm.s_tir.dlight import ApplyDefaultSchedule

from distir_ext.compile.fusion import fuse_kernels
from distir_ext.compile.gpu_products import dispatch_products, uses_cublaslt
from distir_ext.compile.kernel_values import fold_constants
from distir_ext.compile.kernels.cuda import flash_attention
from distir_ext.compile.kernels.cuda.bfloat16_products import Bfloat16Products
from distir_ext.compile.kernels.cuda.constants import carry_constants
from distir_ext.compile.kernels.cuda.tensor_intrinsics import load_tensor_intrinsics
from distir_ext.compile.kernels.legalizations.attention import as_products
from distir_ext.compile.kernels.legalizations.legalize import legalize_operators, prepare_operators
from distir_ext.compile.step_names import name_steps
from distir_ext.native.collective_records import builtin, records

__all__ = ["check_calls", "check_options", "passes", "pipeline"]

_CUDA_GRAPH = "relax.backend.use_cuda_graph"


def pipeline(target: tvm.target.Target, blas: bool = True) -> tvm.transform.Pass:
    """The pass from a worker's Relax program to what TVM's virtual machine runs.

    TVM's pipeline for the target, but kernels of float16, bfloat16 and float8 add in float32.

    Args:
        target: Target to compile for.
        blas: Whether products are left to cuBLASLt, where the target has it.
    """
    run = tvm.transform.Sequential(passes(target, blas), name="distir_gpu")

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        with _scheduled_target(target):
            return run(mod)

    return tvm.transform.module_pass(apply, opt_level=0, name="distir_gpu")


def passes(target: tvm.target.Target, blas: bool = True) -> list[tvm.transform.Pass]:
    """The passes of :func:`pipeline`."""
    default = _default_pipeline(target)
    passes = [as_products(flash_attention.takes(target))]
    if uses_cublaslt(target, blas):
        passes.append(dispatch_products())
    passes += prepare_operators()
    passes += default.library_dispatch_passes(target)
    for each in default.legalize_passes(target):
        if each.info.name == "LegalizeOps":
            passes += legalize_operators(in_front=flash_attention.legalizations(target))
        elif each.info.name == "FoldConstant":
            passes.append(fold_constants())
        elif each.info.name == "FuseOps":
            passes.append(fuse_kernels())
        elif each.info.name == "FuseTIR":
            continue  # it is in fuse_kernels
        elif each.info.name == "ApplyDefaultSchedule":
            passes += [
                load_tensor_intrinsics(),
                ApplyDefaultSchedule(Bfloat16Products(), *each.rules),
            ]
        else:
            passes.append(each)
    for each in default.dataflow_lower_passes(target):
        passes += [name_steps(), each] if each.info.name == "CallTIRRewrite" else [each]
    passes += default.finalize_passes(target)
    passes.append(carry_constants(target))
    return passes


def check_options() -> None:
    """Raises an error for TVM options that programs with collectives cannot have.

    Raises:
        ValueError: TVM is to capture parts of programs into CUDA graphs. A replay would use memory
            of the call that was captured, and other workers cannot allocate during a capture.
    """
    if tvm.transform.PassContext.current().config.get(_CUDA_GRAPH):
        raise ValueError(
            f"the option {_CUDA_GRAPH} is set in the PassContext; programs of workers cannot be "
            "captured into CUDA graphs, build them without it"
        )


def check_calls(mod: tvm.IRModule) -> None:
    """Checks that GPU workers have what programs call of the runtime.

    Args:
        mod: A module behind LowerCCL.

    Raises:
        ValueError: It dispatches tokens to experts, whose counts the host has to know.
    """
    for name, function in mod.functions_items():
        for called in _packed_functions(function):
            optimization = _optimization_of(called)
            if optimization:
                raise ValueError(
                    f"`{name.name_hint}` dispatches tokens to experts, which CPU workers do only; "
                    f'lower it by dx.transform.OptimizeCollectives(disable="{optimization}"), or '
                    "leave that to dx.build"
                )


def _optimization_of(called: str) -> str:
    """The optimisation that writes a call which needs counts on the host; empty for other calls."""
    for record in records().values():
        if record.family in ("rows", "kernel") and called == builtin(record.name):
            return record.optimization
    return ""


def _packed_functions(function: Any) -> list[str]:
    """Lists the packed functions that a Relax function calls; none for a kernel."""
    found: list[str] = []

    def visit(expr: Any) -> None:
        if isinstance(expr, relax.ExternFunc):
            found.append(str(expr.global_symbol))

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function.body, visit)
    return found


def _default_pipeline(target: tvm.target.Target) -> Any:
    """TVM's module of passes for the target, as ``tvm.compile`` chooses it."""
    if target.kind.name == "opencl" and "adreno" in target.keys:
        return adreno
    return {"cuda": cuda, "rocm": rocm, "llvm": cpu_generic}.get(target.kind.name, gpu_generic)


def _scheduled_target(target: tvm.target.Target) -> tvm.target.Target:
    """The target, without a suffix of its architecture.

    TVM's schedules take ``sm_90a`` for a GPU without tensor cores.
    """
    arch = re.fullmatch(r"(sm_\d+)[af]", str(target.attrs.get("arch", "")))
    if target.kind.name != "cuda" or arch is None:
        return target
    return tvm.target.Target({**target.export(), "arch": arch[1]})
