"""Quotients and remainders of floats, rounded down, as in NumPy and torch.

TVM's are floor(x / y) and x - floor(x / y) * y. Where x / y is rounded up to a whole number, both
are wrong (1 // 0.1 is 9, and not 10), and infinities give NaN. Here they are made of the exact
remainder of the truncated quotient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.dtypes import is_float
from distir_ext.compile.kernels.expressions import bind

__all__ = ["legalizations"]

# Its product with a float32 has as many bits as a float64.
_LARGEST_QUOTIENT = 2.0**29

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also divisions of floats that are rounded down.

    Args:
        others: Legalisations by operator, of integers.
    """
    made = dict(others)
    for name, make in (("relax.floor_mod", _remainder), ("relax.floor_divide", _quotient)):
        other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
        made[name] = _of_floats(make, other)
    return made


def _of_floats(make: Callable[[Any, Any], Any], other: Legalization) -> Legalization:
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
            return bind(x(*i), lambda x: bind(y(*i), lambda y: make(x, y)))

        return te.compute(shape, element, name="compute")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        name = call.op.name.removeprefix("relax.")
        return builder.call_te(broadcast, *call.args, primfunc_name_hint=name)

    return legalize


def _number(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty)


def _fast(x: Any, y: Any, exact: Any, result: Callable[[Any, Any, Any], Any]) -> Any:
    """The result of a whole quotient and of operands in float64, where their product is exact.

    Elsewhere it is the one that is exact always, and slow.
    """
    dtype = x.ty.dtype
    if str(dtype) == "float64":
        return exact
    x, y = x.astype("float64"), y.astype("float64")

    def of_quotient(quotient: Any) -> Any:
        is_exact = tirx.And(
            tirx.abs(quotient) < _number(_LARGEST_QUOTIENT, quotient),
            tirx.abs(y) < tirx.const(math.inf, "float64"),
        )
        return tirx.if_then_else(is_exact, result(quotient, x, y).astype(dtype), exact)

    return bind(tirx.floor(x / y), of_quotient)


def _remainder(x: Any, y: Any) -> Any:
    """Rounding may take the quotient to a whole number above, but to none below."""

    def fast(quotient: Any, x: Any, y: Any) -> Any:
        return bind(
            x - quotient * y,
            lambda found: tirx.Select(_is_opposite(found, y), found + y, found),
        )

    exact = bind(
        tirx.truncmod(x, y),
        lambda found: tirx.Select(_is_opposite(found, y), found + y, found),
    )
    return _fast(x, y, exact, fast)


def _quotient(x: Any, y: Any) -> Any:
    def fast(quotient: Any, x: Any, y: Any) -> Any:
        is_above = _is_opposite(x - quotient * y, y)
        return tirx.Select(is_above, quotient - _number(1, quotient), quotient)

    def of_remainder(remainder: Any) -> Any:
        # A whole number, but for the rounding of this division.
        quotient = (x - remainder) / y
        above = quotient - tirx.Select(_is_opposite(remainder, y), _number(1, y), _number(0, y))
        return tirx.floor(above + _number(0.5, y))

    exact = bind(tirx.truncmod(x, y), of_remainder)
    return tirx.Select(y == _number(0, y), x / y, _fast(x, y, exact, fast))


def _is_opposite(remainder: Any, y: Any) -> Any:
    """Returns the expression that a remainder and its divisor have different signs."""
    zero = _number(0, y)
    return tirx.Or(
        tirx.And(remainder < zero, y > zero),
        tirx.And(remainder > zero, y < zero),
    )
