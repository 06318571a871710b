"""Fusion of operators into kernels, for CPUs and GPUs alike."""

from __future__ import annotations

import tvm
from tvm import relax

__all__ = ["fuse_kernels"]


def fuse_kernels(fuse_operators: tvm.transform.Pass | None = None) -> tvm.transform.Pass:
    """Fuses operators into kernels; a module that TVM cannot fuse is compiled unfused.

    Args:
        fuse_operators: In place of TVM's FuseOps.
    """
    operators = fuse_operators or relax.transform.FuseOps()
    fuse = tvm.transform.Sequential([operators, relax.transform.FuseTIR()])

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        try:
            return fuse(mod)
        except tvm.error.InternalError:
            # FuseTIR of TVM 0.27 fails where FuseOps has put nothing but tuples in a function, as
            # it does with nested ones; such a module is compiled unfused.
            return mod

    return tvm.transform.module_pass(apply, opt_level=0, name="FuseKernels")
