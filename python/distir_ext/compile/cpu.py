"""Relax pass pipeline for CPUs: BLAS, legalised kernels, fusion and CPU schedules.

It takes a worker's program to what TVM's virtual machine runs; ``building`` passes it on as
``relax_pipeline``.
"""

from __future__ import annotations

from collections.abc import Collection

import tvm
from tvm import relax
from tvm.relax.backend.cpu_generic import pipeline as cpu_generic

from distir_ext.compile.fusion import fuse_kernels
from distir_ext.compile.kernel_values import fold_constants
from distir_ext.compile.kernels.cpu.cpu_kernels import schedule_kernels
from distir_ext.compile.kernels.cpu.cpu_math import legalizations
from distir_ext.compile.kernels.cpu.equal_kernels import merge_kernels
from distir_ext.compile.kernels.legalizations.attention import as_products, has_plain_length
from distir_ext.compile.kernels.legalizations.legalize import legalize_operators, prepare_operators
from distir_ext.compile.step_names import name_steps
from distir_ext.native.machine import blas_library
from distir_ext.native.steps import native_pass


def pipeline(
    target: tvm.target.Target, blas: bool = True, without: Collection[str] = ()
) -> tvm.transform.Pass:
    """The pass from a worker's Relax program to what TVM's virtual machine runs.

    TVM's pipeline for CPUs, with attention over a computed number of keys as products,
    :func:`distir_ext.transform.DispatchMatmul` and
    :func:`distir_ext.transform.DispatchConvolution` before it,
    :func:`distir_ext.transform.AppendInPlace`, a schedule for every kernel,
    :func:`distir_ext.transform.ShareResults`,
    :func:`distir_ext.transform.ShareOperands` and
    :func:`distir_ext.transform.WriteInPlace`.

    Args:
        target: Target to compile for.
        blas: Whether products and convolutions are left to a BLAS library, where one is installed.
        without: Names of passes of this package that do not run.
    """
    return tvm.transform.Sequential(passes(target, blas, without), name="distir_cpu")


def passes(
    target: tvm.target.Target, blas: bool = True, without: Collection[str] = ()
) -> list[tvm.transform.Pass]:
    """The passes of :func:`pipeline`."""

    def own(name: str) -> list[tvm.transform.Pass]:
        return [] if name in without else [native_pass(name)]

    passes: list[tvm.transform.Pass] = [_keep_functions(), as_products(has_plain_length)]
    if blas and blas_library.LIBRARY is not None:
        passes += own("DispatchMatmul") + own("DispatchConvolution")
    passes += own("AppendInPlace")
    passes += prepare_operators()
    passes += cpu_generic.library_dispatch_passes(target)
    passes += [
        *legalize_operators(legalizations()),
        relax.transform.AnnotateTIROpPattern(),
        fold_constants(),
        fuse_kernels(),
        merge_kernels(),
        _schedule_kernels(),
    ]
    passes += [
        relax.transform.RewriteDataflowReshape(),
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        *own("ShareResults"),
        name_steps(),
        relax.transform.CallTIRRewrite(),
        *own("ShareOperands"),
        *own("WriteInPlace"),
    ]
    passes += cpu_generic.finalize_passes(target)
    return passes


def _keep_functions() -> tvm.transform.Pass:
    """Relax functions become public: fusion drops private ones, which sessions may run."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        result = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for name, function in mod.functions_items():
            if isinstance(function, relax.Function):
                named = function.with_attr("global_symbol", name.name_hint)
                result.update_func(name, named)
        return result

    return tvm.transform.module_pass(apply, opt_level=0, name="KeepFunctions")


def _schedule_kernels() -> tvm.transform.Pass:
    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        return schedule_kernels(mod)

    return tvm.transform.module_pass(apply, opt_level=0, name="ScheduleKernels")
