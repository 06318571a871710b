"""Schedules bfloat16 products for tensor cores with TVM's schedule for float16.

The schedule moves tiles to shared memory and from there to fragments; nothing in it depends on
which 16 bits these are. It takes float16 only, so that products of bfloat16 are said to be some
while it looks at them: the intrinsics that it gets have fragments of bfloat16, and accumulators of
float32. TVM's CUDA source for both is the same but for the type (nvcuda::wmma has bfloat16 from
sm_80 on).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir.dlight.gpu import matmul
from tvm.s_tir.dlight.gpu.base import GPUScheduleRule

_OPERAND = "bfloat16"
_SUM = "float32"

# The first architecture whose tensor cores take bfloat16 (CUDA's programming guide, WMMA).
_OLDEST_ARCHITECTURE = 80

_lock = threading.Lock()


class Bfloat16Products(GPUScheduleRule):
    """The schedule of a product of bfloat16 that is summed in float32; None for all else."""

    def apply(self, func: Any, target: tvm.target.Target, _: bool) -> Any:
        """As the rules of TVM.

        Args:
            func: A kernel.
            target: Target to compile for.
            _: Whether a space of schedules is wanted, which there is not.
        """
        arch = re.fullmatch(r"sm_(\d+)", str(target.attrs.get("arch", "")))
        if target.kind.name != "cuda" or arch is None or int(arch[1]) < _OLDEST_ARCHITECTURE:
            return None
        if not isinstance(func, tirx.PrimFunc) or not _takes_bfloat16(func):
            return None
        with _taken_for_float16():
            return matmul.Matmul().apply(func, target, False)


def _takes_bfloat16(func: Any) -> bool:
    return any(str(getattr(param.ty, "dtype", "")) == _OPERAND for param in func.params)


@contextlib.contextmanager
def _taken_for_float16() -> Iterator[None]:
    """Lets TVM's schedule take bfloat16 for float16 in this thread, until the block ends."""
    from tvm.s_tir.tensor_intrin import cuda

    with _lock:
        dtypes_of, intrinsics_of = matmul.get_in_out_dtypes, cuda.get_wmma_intrin_group
        replaced = _Replaced(dtypes_of, intrinsics_of)
        matmul.get_in_out_dtypes = replaced.get_in_out_dtypes
        cuda.get_wmma_intrin_group = replaced.get_wmma_intrin_group
        try:
            yield
        finally:
            matmul.get_in_out_dtypes = dtypes_of
            cuda.get_wmma_intrin_group = intrinsics_of


class _Replaced:
    """Replaces functions that TVM's schedule calls, in this thread; other threads get TVM's own."""

    def __init__(self, dtypes_of: Any, intrinsics_of: Any) -> None:
        self._thread = threading.get_ident()
        self._dtypes_of = dtypes_of
        self._intrinsics_of = intrinsics_of
        self._is_of_bfloat16 = False

    def get_in_out_dtypes(self, block: Any) -> Any:
        dtypes = self._dtypes_of(block)
        if threading.get_ident() != self._thread:
            return dtypes
        self._is_of_bfloat16 = tuple(map(str, dtypes)) == (_OPERAND, _SUM)
        return ("float16", _SUM) if self._is_of_bfloat16 else dtypes

    def get_wmma_intrin_group(self, *args: Any, **options: Any) -> Any:
        group = self._intrinsics_of(*args, **options)
        if threading.get_ident() != self._thread or not self._is_of_bfloat16:
            return group
        return {
            key: re.sub("(?<![a-z])f16|(?<=f16)f16", "bf16", name) for key, name in group.items()
        }
