"""Quotients and remainders of floats, rounded down, as in NumPy and torch.

TVM's are floor(x / y) and x - floor(x / y) * y. Where x / y is rounded up to a whole number, both
are wrong (1 // 0.1 is 9, and not 10), and infinities give NaN. Here they are made of the exact
remainder of the truncated quotient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext._compile.dtypes import is_float

__all__ = ["legalizations"]

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


def _of_floats(make: Callable[..., te.Tensor], other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        return builder.call_te(make, *call.args, primfunc_name_hint=call.op.name.split(".")[-1])

    return legalize


def _number(value: float, like: te.Tensor) -> Any:
    return tirx.const(value, like.dtype)


def _is_above(remainder: te.Tensor, y: te.Tensor) -> te.Tensor:
    """Whether the truncated quotient is above the one that is rounded down."""
    zero = _number(0, y)
    differ = topi.logical_xor(topi.less(remainder, zero), topi.less(y, zero))
    return topi.logical_and(topi.not_equal(remainder, zero), differ)


def _remainder(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    remainder = topi.mod(x, y)
    return topi.where(_is_above(remainder, y), topi.add(remainder, y), remainder)


def _quotient(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    remainder = topi.mod(x, y)
    # A whole number, but for the rounding of this division.
    quotient = topi.divide(topi.subtract(x, remainder), y)
    one = _number(1, y)
    quotient = topi.where(_is_above(remainder, y), topi.subtract(quotient, one), quotient)
    below = topi.floor(quotient)
    is_next = topi.greater(topi.subtract(quotient, below), _number(0.5, y))
    rounded = topi.where(is_next, topi.add(below, one), below)
    return topi.where(topi.equal(y, _number(0, y)), topi.divide(x, y), rounded)
