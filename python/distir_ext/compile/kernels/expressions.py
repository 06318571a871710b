"""Functions that write TIR expressions of kernels: let bindings, casts, tests for NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from distir_ext.compile.kernels.legalizations.dtypes import is_small_float

__all__ = ["bind", "convert", "is_nan", "static_sizes", "unknown_number", "widened"]


def bind(value: Any, function: Callable[[Any], Any]) -> Any:
    """The function of a value, which is computed once however often the function uses it."""
    if isinstance(value, te.TensorSlice):
        value = value.asobject()
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return function(value)
    variable = tirx.Var("value", value.ty)
    return tirx.Let(variable, value, function(variable))


def convert(dtype: str, value: Any) -> Any:
    """A number, or a vector of them, as another type."""
    lanes = int(value.ty.dtype.lanes)
    return tirx.Cast(dtype if lanes == 1 else f"{dtype}x{lanes}", value)


def is_nan(value: Any) -> Any:
    """Returns the expression that a float of any dtype is NaN."""
    return tirx.isnan(widened(value))


def unknown_number(value: float, dtype: Any) -> Any:
    """A number as an expression that only LLVM, or another compiler, computes."""
    bits = "64" if str(dtype) == "float64" else "32"
    number = np.asarray(-abs(value), f"float{bits}").view(f"int{bits}")
    negative = tirx.reinterpret(f"float{bits}", tirx.const(int(number), f"int{bits}"))
    is_negative = math.copysign(1, value) < 0
    return (negative if is_negative else tirx.abs(negative)).astype(dtype)


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
