"""Dispatches the matrix products of GPU programs to cuBLASLt, where the target has it."""

from __future__ import annotations

import tvm
import tvm_ffi

from distir_ext.native.machine import nvidia as _nvidia

__all__ = ["LIBRARIES_FUNCTION", "dispatch_products", "uses_cublaslt"]

_LIBRARY = "cublaslt"

LIBRARIES_FUNCTION = ("distir_libraries", _LIBRARY)
"""Function of an executable that says which library its workers load, and what it returns."""


def uses_cublaslt(target: tvm.target.Target, blas: bool) -> bool:
    """Returns whether products of a program are left to cuBLASLt.

    They are if the target is for CUDA, and this machine has the library or the target asks for it:
    ``{"kind": "cuda", "arch": "sm_90", "libs": ["cublaslt"]}``, as for a machine that is not this
    one.
    """
    is_cuda = target.get_target_device_type() == tvm.cuda().dlpack_device_type()
    is_asked = _LIBRARY in (target.attrs.get("libs") or ())
    return blas and is_cuda and (is_asked or _nvidia.has_cublaslt())


def dispatch_products() -> tvm.transform.Pass:
    """The pass that makes calls of cuBLASLt of products."""
    return tvm_ffi.get_global_func("distir.target.DispatchCublasLt")()
