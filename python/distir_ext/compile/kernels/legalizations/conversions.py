"""Legalises conversions of floats to integers, defined for all values as in JAX.

NaN becomes 0, and what lies outside of the integers' range the nearest one of them. LLVM leaves
these values open, and a CPU's instruction gives the least integer for all of them (what torch has).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from distir_ext.compile.kernels.legalizations.dtypes import constant_array, is_float, is_small_float

__all__ = ["legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_NAME = "relax.astype"


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also conversions of floats to integers.

    Args:
        others: Legalisations by operator, of all other conversions.
    """
    other = others.get(_NAME) or tvm.ir.Op.get(_NAME).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, wanted = call.args[0], str(call.attrs.dtype)
        dtype = str(getattr(x.ty, "dtype", ""))
        if not is_float(dtype) or not wanted.startswith(("int", "uint")):
            return other(builder, call)
        known = constant_array(x)
        if known is not None:
            return relax.const(_converted_array(known, wanted), wanted)

        def make(x: te.Tensor) -> te.Tensor:
            return te.compute(x.shape, lambda *i: _converted(x(*i), wanted), name="compute")

        return builder.call_te(make, x, primfunc_name_hint="cast")

    return {**others, _NAME: legalize}


def _converted(value: Any, dtype: str) -> Any:
    value = value.astype("float32") if is_small_float(value.ty.dtype) else value
    least, greatest = tirx.min_value(dtype), tirx.max_value(dtype)
    # Both are powers of two, which floats have.
    above, below = (tirx.const(float(each), value.ty) for each in _bounds(dtype))
    least_or_nan = tirx.Select(tirx.isnan(value), tirx.const(0, dtype), least)
    inside = tirx.Select(value > below, value.astype(dtype), least_or_nan)
    return tirx.Select(value >= above, greatest, inside)


def _bounds(dtype: str) -> tuple[int, int]:
    """The first integer above the range, and the least one in it."""
    info = np.iinfo(dtype)
    return int(info.max) + 1, int(info.min)


def _converted_array(values: np.ndarray, dtype: str) -> np.ndarray:
    info = np.iinfo(dtype)
    wide = values.astype(np.longdouble)
    clipped = np.clip(np.trunc(wide), np.longdouble(info.min), np.longdouble(info.max))
    return np.where(np.isnan(wide), 0, clipped).astype(dtype)
