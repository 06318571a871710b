"""Legalises floor division and remainders of floats, with the values of NumPy and torch.

TVM has floor(x / y) and x - floor(x / y) * y. Where x / y is rounded up to a whole number, both
are wrong (1 // 0.1 is 9, and not 10), and infinities give NaN. Here both are exact up to the
rounding of the result. Those of float32, and of floats with fewer bits, have no branches, so that
LLVM vectorises them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.expressions import bind, convert, unknown_number
from distir_ext.compile.kernels.legalizations.dtypes import is_float
from distir_ext.compile.kernels.opaque import OpaqueFunction

__all__ = ["legalizations"]

# Above all numbers of float32; its products with these are numbers of float64.
_LARGE = 2.0**200

# All whole numbers up to this one are numbers of float64.
_MOST_EXACT = 2.0**53

# Quotients of two float32 are below 2 ** 277, and a reduction leaves at least 50 bits fewer.
_REDUCTIONS = 6

Expression = Callable[[Any, Any], Any]
Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also divisions of floats that are rounded down.

    Args:
        others: Legalisations by operator, of integers.
    """
    made = dict(others)
    for name, make in (("relax.floor_mod", _REMAINDER), ("relax.floor_divide", _QUOTIENT)):
        other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
        made[name] = _of_floats(make, other)
    return made


def _of_floats(function: OpaqueFunction, other: Legalization) -> Legalization:
    def broadcast(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        shape = topi.add(x, y).shape
        # An operand may be a number, which is no tensor.
        x, y = (
            topi.broadcast_to(each, shape)
            if isinstance(each, te.Tensor)
            else topi.full(shape, str(each.ty.dtype), each)
            for each in (x, y)
        )

        def element(*i: Any) -> Any:
            return function(x.dtype, x(*i), y(*i))

        return te.compute(shape, element, name="compute")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        name = call.op.name.removeprefix("relax.")
        return builder.call_te(broadcast, *call.args, primfunc_name_hint=name)

    return legalize


def _number(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty)


def _multiply_add(x: Any, y: Any, z: Any) -> Any:
    """X * y + z, which is rounded once."""
    target = tvm.target.Target.current(allow_none=True)
    if target is None or target.kind.name == "llvm":
        return tirx.call_llvm_pure_intrin(x.ty, "llvm.fma", x, y, z)
    return tirx.call_pure_extern(x.ty, "fma", x, y, z)


def _function(name: str, function: Expression, *, narrow: Expression) -> OpaqueFunction:
    """An opaque function of two float64, or of two float32, which it converts to float64."""

    def expression(x: Any, y: Any) -> Any:
        x, y = map(_hidden, (x, y))
        if str(x.ty.dtype).startswith("float64"):
            return function(x, y)
        wide = bind(
            convert("float64", x), lambda x: bind(convert("float64", y), lambda y: narrow(x, y))
        )
        return convert("float32", wide)

    return OpaqueFunction(name, expression)


def _hidden(value: Any) -> Any:
    """An operand; TVM does not take the value of a variable whose number it knows."""
    if isinstance(value, tirx.Broadcast):
        return tirx.Broadcast(_hidden(value.value), value.lanes)
    is_number = isinstance(value, tirx.FloatImm)
    return unknown_number(value.value, value.ty.dtype) if is_number else value


def _bounded(value: Any) -> Any:
    """A number in place of an infinity."""
    most = _number(_LARGE, value)
    return bind(
        tirx.Select(value > most, most, value),
        lambda value: tirx.Select(value < -most, -most, value),
    )


def _remainder_of_float32(x: Any, y: Any) -> Any:
    """The remainder of two float32 that are float64 here."""
    return bind(_bounded(y), lambda y: _reduced(x, y))


def _reduced(x: Any, y: Any) -> Any:
    """Takes multiples of y from x until at most half of y is left.

    Their number has 53 bits, and y has 24: what their product leaves of x is a number of float64.
    """

    def left_after(times: int, left: Any, inverse: Any) -> Any:
        if times == 0:
            return _with_sign_of(y, left)
        whole = tirx.nearbyint(left * inverse)
        return bind(
            _multiply_add(-whole, y, left), lambda left: left_after(times - 1, left, inverse)
        )

    return bind(_number(1, y) / y, lambda inverse: left_after(_REDUCTIONS, x, inverse))


def _remainder_of_float64(x: Any, y: Any) -> Any:
    """Takes a whole quotient from x, where it is exact; elsewhere the C library does, slowly."""

    def of_quotient(quotient: Any) -> Any:
        is_exact = tirx.And(
            tirx.abs(quotient) < _number(_MOST_EXACT, y), tirx.abs(y) < _number(math.inf, y)
        )
        exact = _multiply_add(-quotient, y, x)
        choose = tirx.if_then_else if y.ty.dtype.lanes == 1 else tirx.Select
        left = choose(is_exact, exact, tirx.call_pure_extern(x.ty, "fmod", x, y))
        return bind(left, lambda left: _with_sign_of(y, left))

    return bind(tirx.trunc(x / y), of_quotient)


def _with_sign_of(y: Any, left: Any) -> Any:
    """The remainder of what is left, a number that is no multiple of y."""
    zero = _number(0, y)
    not_zero = tirx.Select(_is_opposite(left, y), left + y, left)
    return tirx.Select(tirx.EQ(left, zero), tirx.Select(y < zero, -zero, zero), not_zero)


def _quotient(x: Any, y: Any) -> Any:
    zero, infinity = _number(0, y), _number(math.inf, y)

    def of_floor(quotient: Any) -> Any:
        # Rounding may take a quotient to a whole number above, and one of an infinity to zero.
        left = tirx.Select(tirx.EQ(tirx.abs(y), infinity), x, _multiply_add(-quotient, y, x))
        is_above = tirx.And(
            tirx.abs(quotient) < _number(_MOST_EXACT, y),
            bind(left, lambda left: _is_opposite(left, y)),
        )
        return tirx.Select(is_above, quotient - _number(1, y), quotient)

    quotient = bind(tirx.floor(x / y), of_floor)
    is_undefined = tirx.And(tirx.EQ(tirx.abs(x), infinity), tirx.NE(y, zero))
    return tirx.Select(is_undefined, x - x, quotient)


def _is_opposite(remainder: Any, y: Any) -> Any:
    """Returns the expression that a remainder and its divisor have different signs."""
    zero = _number(0, y)
    return tirx.Or(
        tirx.And(remainder < zero, y > zero),
        tirx.And(remainder > zero, y < zero),
    )


_REMAINDER = _function("floor_mod", _remainder_of_float64, narrow=_remainder_of_float32)
_QUOTIENT = _function("floor_divide", _quotient, narrow=_quotient)
