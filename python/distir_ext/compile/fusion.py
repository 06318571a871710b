"""Fuses operators into kernels, for CPUs and GPUs alike."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.compile.checked_sizes import hide_checks, show_checks

__all__ = ["fuse_kernels", "is_unfused"]

_UNFUSED_ATTR = "distir.unfused"


def fuse_kernels() -> tvm.transform.Pass:
    """Fuses operators into kernels; a module that TVM cannot fuse is compiled unfused.

    Variables have their names of before, which TVM's FuseOps numbers anew.
    """
    fuse = tvm.transform.Sequential([_fuse_operators(), relax.transform.FuseTIR()])

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        try:
            return show_checks(fuse(hide_checks(mod)))
        except tvm.error.InternalError:
            # FuseTIR of TVM 0.27 fails where FuseOps has put nothing but tuples in a function, as
            # it does with nested ones; such a module is compiled unfused.
            return mod.with_attr(_UNFUSED_ATTR, True)

    return tvm.transform.module_pass(apply, opt_level=0, name="FuseKernels")


def is_unfused(mod: tvm.IRModule) -> bool:
    """Returns whether TVM could not fuse the operators of a module."""
    return mod.attrs is not None and _UNFUSED_ATTR in mod.attrs


def _fuse_operators() -> tvm.transform.Pass:
    with_names_of = tvm_ffi.get_global_func("distir.analysis.WithNamesOf")

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        return with_names_of(mod, relax.transform.FuseOps()(mod))

    return tvm.transform.module_pass(apply, opt_level=0, name="FuseOperators")
