"""Parts of the expressions of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from distir_ext.compile.kernels.dtypes import is_small_float

__all__ = ["bind", "is_nan", "static_sizes", "widened"]


def bind(value: Any, function: Callable[[Any], Any]) -> Any:
    """The function of a value, which is computed once however often the function uses it."""
    if isinstance(value, te.TensorSlice):
        value = value.asobject()
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return function(value)
    variable = tirx.Var("value", value.ty)
    return tirx.Let(variable, value, function(variable))


def is_nan(value: Any) -> Any:
    """Returns the expression that a float of any dtype is NaN."""
    return tirx.isnan(widened(value))


def widened(value: Any) -> Any:
    """Returns a float with fewer bits as float32, and others as they are."""
    dtype = value.ty.dtype
    lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    scalar = str(dtype).removesuffix(lanes)
    return value.astype(f"float32{lanes}") if is_small_float(scalar) else value


def static_sizes(tensor: relax.Expr) -> list[int]:
    """Lists the sizes of a tensor, -1 for one that is symbolic; empty if none are known."""
    shape = tensor.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return []
    return [int(each) if isinstance(each, tirx.IntImm) else -1 for each in shape.values]
