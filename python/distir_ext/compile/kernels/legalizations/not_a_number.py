"""Legalisations that keep NaN in maxima, minima and comparisons, as NumPy, JAX and torch do.

TVM takes x != y for x < y or y < x, and max(x, y) for y unless x > y, so that NaN is lost; its
simplifier takes x == x for true, and y <= x for not (x < y), which NaN is an exception to; x * 0
and 0 / x and x - x are 0 to it, (x + y) - y is x, and x + 0 is x, also for -0. Here

- comparisons, products, quotients and sums in all kernels, of operators and of users, are written
  so that the simplifier sees nothing to fold (``FOLDED``), just before kernels are lowered, so
  that schedules see what they know;
- maxima and minima become selections (``EXTREMES_OF_TWO``) once all else is lowered;
- numbers that are folded while a kernel is written are unknown to TVM, and extremes of tensors and
  windows begin at an infinity, and not at the least finite number (:func:`legalizations`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from distir_ext.compile.kernels import opaque
from distir_ext.compile.kernels.expressions import unknown_number, widened
from distir_ext.compile.kernels.legalizations.dtypes import is_float
from distir_ext.compile.kernels.legalizations.kernel_builder import KernelBuilder

__all__ = ["EXTREMES_OF_TWO", "FOLDED", "legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_EXTREMES = (
    *("relax.max", "relax.min"),
    *(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3)),
)


def _is_zero(value: float) -> bool:
    return value == 0


# TVM folds these where one operand is a constant of these values, whatever the other one is.
_FOLDED: dict[str, Callable[[float], bool]] = {
    "relax.add": _is_zero,
    "relax.subtract": _is_zero,
    "relax.multiply": _is_zero,
    "relax.divide": _is_zero,
    "relax.floor_divide": _is_zero,
    "relax.floor_mod": _is_zero,
    "relax.maximum": math.isinf,
    "relax.minimum": math.isinf,
}


# ---- operators


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also operators whose kernels would lose NaN.

    Args:
        others: Legalisations by operator, which are used within these.
    """
    made = dict(others)
    for name in _EXTREMES:
        made[name] = _from_infinity(_default(made, name))
    for name, folds in _FOLDED.items():
        made[name] = _with_unknown_numbers(_default(made, name), folds)
    made["relax.sign"] = _sign(_default(made, "relax.sign"))
    made["relax.nn.leakyrelu"] = _leaky_relu
    return made


def _default(made: Mapping[str, Legalization], name: str) -> Legalization:
    return made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")


def _from_infinity(other: Legalization) -> Legalization:
    """An extreme that begins at an infinity: that of infinities is one."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        return other(KernelBuilder(builder, edit=_begin_at_infinity), call)

    return legalize


def _begin_at_infinity(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of an extreme: it has no constants but that at which it begins."""

    def infinite(value: tirx.FloatImm) -> Any:
        dtype = str(value.ty.dtype)
        if not is_float(dtype) or abs(value.value) != tirx.max_value(dtype).value:
            return value
        return tirx.FloatImm(dtype, math.copysign(math.inf, value.value))

    return tvm_ffi.structural_map(function, (tirx.FloatImm, infinite))


def _with_unknown_numbers(other: Legalization, folds: Callable[[float], bool]) -> Legalization:
    """A kernel that is written with numbers of which TVM does not know the value."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        dtype = str(getattr(call.args[0].ty, "dtype", ""))
        if not is_float(dtype):
            return other(builder, call)

        def operand(value: Any) -> Any:
            number = value.value if isinstance(value, tirx.FloatImm) else value
            return (
                unknown_number(number, dtype)
                if isinstance(number, float) and folds(number)
                else value
            )

        return other(KernelBuilder(builder, operand=operand), call)

    return legalize


def _sign(other: Legalization) -> Legalization:
    def make(x: te.Tensor) -> te.Tensor:
        def sign(value: Any) -> Any:
            zero, one = tirx.const(0, value.ty), tirx.const(1, value.ty)
            below = tirx.Select(value < zero, -one, value)  # 0, or NaN
            return tirx.Select(value > zero, one, below)

        return te.compute(x.shape, lambda *i: sign(x(*i)), name="compute")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        return builder.call_te(make, call.args[0], primfunc_name_hint="sign")

    return legalize


def _leaky_relu(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    """TVM folds the product with a slope of zero."""
    slope = float(call.attrs.alpha)

    def make(x: te.Tensor) -> te.Tensor:
        factor = unknown_number(slope, x.dtype) if slope == 0 else tirx.const(slope, x.dtype)
        zero = tirx.const(0, x.dtype)
        return te.compute(
            x.shape, lambda *i: tirx.Select(x(*i) > zero, x(*i), x(*i) * factor), name="compute"
        )

    return builder.call_te(make, call.args[0], primfunc_name_hint="leaky_relu")


# ---- what TVM folds


def _of_floats(rewrite: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda node: rewrite(node) if is_float(node.a.ty.dtype) else node


def _hide_zeros(value: Any) -> Any:
    """An operand whose zeros the simplifier does not know, if it may become one of them."""
    if isinstance(value, tirx.FloatImm):
        return unknown_number(value.value, value.ty.dtype) if value.value == 0 else value
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(_hide_zeros(value.value), value.lanes)
    if isinstance(value, tirx.Cast) and is_float(value.value.ty.dtype):
        return tirx.Cast(value.ty.dtype, _hide_zeros(value.value))
    if isinstance(value, tirx.Select):
        branches = map(_hide_zeros, (value.true_value, value.false_value))
        return tirx.Select(value.condition, *branches)
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, _hide_zeros(value.body))
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "prim.if_then_else":
        condition, *branches = value.args
        return tirx.if_then_else(condition, *map(_hide_zeros, branches))
    return value


def _keep_zeros(node: Any) -> Any:
    a, b = map(_hide_zeros, (node.a, node.b))
    return node if a is node.a and b is node.b else type(node)(a, b)


def _keep_difference(node: Any) -> Any:
    """The sum with what is negative, which is as exact, and neither x - x nor (x + y) - y."""
    a, b = map(_hide_zeros, (node.a, node.b))
    if isinstance(b, tirx.FloatImm):
        return tirx.Add(a, tirx.FloatImm(b.ty.dtype, -b.value))
    return tirx.Add(a, tirx.Mul(b, tirx.FloatImm(b.ty.dtype, -1.0)))


def _equal(a: Any, b: Any) -> Any:
    """A comparison of operands that TVM does not take for one and the same."""
    dtype = b.ty.dtype
    bits = str(dtype).replace("float", "uint")
    return tirx.EQ(a, tirx.reinterpret(dtype, tirx.reinterpret(bits, b)))


_EQUAL = opaque.OpaqueFunction("equal", _equal, repeats=False)


def _keep_equality(node: Any) -> Any:
    a, b = (widened(opaque.hide_selections(value)) for value in (node.a, node.b))
    equal = _EQUAL(node.ty, a, b)
    return equal if isinstance(node, tirx.EQ) else tirx.Not(equal)


def _keep_order(node: Any) -> Any:
    """A comparison of which the simplifier does not take the contrary for one."""
    ordered = type(node)(*map(opaque.hide_selections, (node.a, node.b)))
    return tirx.Select(ordered, tirx.const(True, "bool"), tirx.const(False, "bool"))


def _keep_bound_zero(node: Any) -> Any:
    """A variable that the simplifier would replace by its value."""
    if not isinstance(node.value, tirx.FloatImm) or node.value.value != 0:
        return node
    hidden = _hide_zeros(node.value)
    if isinstance(node, tirx.Let):
        return tirx.Let(node.var, hidden, node.body)
    return tirx.Bind(node.var, hidden)


FOLDED = (
    ((tirx.Add, tirx.Mul, tirx.Div, tirx.FloorDiv), _of_floats(_keep_zeros)),
    (tirx.Sub, _of_floats(_keep_difference)),
    ((tirx.Let, tirx.Bind), _keep_bound_zero),
    (
        (tirx.LT, tirx.LE, tirx.GT, tirx.GE),
        _of_floats(_keep_order),
    ),
    ((tirx.EQ, tirx.NE), _of_floats(_keep_equality)),
)
"""For ``tvm_ffi.structural_map`` before kernels are lowered."""


# ---- maxima and minima


def _extreme(compare: Callable[..., Any]) -> Callable[[Any], Callable[..., Any] | None]:
    def select(a: Any, b: Any) -> Any:
        """One of two by a comparison, which is false for NaN: then it is the second one."""
        if _is_number(b):
            a, b = b, a
        if _is_number(a):
            return tirx.Select(compare(a, b), a, b)
        # TVM writes isnan, != and ! of vectors for CUDA as such of numbers.
        value = widened(a)
        return tirx.Select(compare(a, b), a, tirx.Select(tirx.EQ(value, value), b, a))

    return lambda node: select if is_float(node.a.ty.dtype) else None


def _is_number(value: Any) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)


EXTREMES_OF_TWO = {tirx.Max: _extreme(tirx.GT), tirx.Min: _extreme(tirx.LT)}
"""Operators and what they are, for :func:`opaque.expanded` behind all that simplifies kernels."""
