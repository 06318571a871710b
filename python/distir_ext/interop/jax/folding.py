"""Folds constant scalars of StableHLO, such as counters of loops, while a program is read.

Only integers and booleans are folded: a float of NumPy need not be the float of a target. The
same evaluation, with floats too, tells what a comparator of a sort or a reducer does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from distir_ext.interop.jax.hlo_shardings import only_states
from distir_ext.interop.jax.stablehlo import (
    Operation,
    array_of,
    dtype_of,
    enumerator,
    numpy_dtype,
    operations_of,
    shape_of,
)

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _not(value: Any) -> Any:
    return ~value


def _divide(one: Any, other: Any) -> Any:
    """Divides; integers are rounded towards 0, and by 0 all bits are set."""
    if one.dtype.kind == "f":
        return one / other
    all_bits = ~np.zeros_like(one)
    return np.where(other == 0, all_bits, (one - np.fmod(one, other)) // other)


def _remainder(one: Any, other: Any) -> Any:
    """Computes the remainder of a division; an integer divided by 0 is its own remainder."""
    left = np.fmod(one, other)
    return left if one.dtype.kind == "f" else np.where(other == 0, one, left)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.negate": np.negative,
    "stablehlo.abs": np.abs,
    "stablehlo.sign": np.sign,
    "stablehlo.divide": _divide,
    "stablehlo.remainder": _remainder,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
    "stablehlo.not": _not,
    "stablehlo.select": np.where,
    "stablehlo.clamp": lambda low, value, high: np.minimum(np.maximum(value, low), high),
    "stablehlo.exponential": np.exp,
    "stablehlo.exponential_minus_one": np.expm1,
    "stablehlo.log": np.log,
    "stablehlo.log_plus_one": np.log1p,
    "stablehlo.convert": lambda value: value,
    "stablehlo.reshape": lambda value: value,
    "stablehlo.broadcast_in_dim": lambda value: value,
}


def fold(op: Operation, operands: Sequence[np.ndarray | None]) -> Any | None:
    """The one number that all elements of the result are; None if that is not known.

    Args:
        op: An operation.
        operands: The number that each operand is; None where it is not known.
    """
    if not operands or any(each is None for each in operands):
        return None
    if any(each.dtype.kind not in "biu" for each in operands if each is not None):
        return None
    if len(op.results) != 1 or numpy_dtype(dtype_of(op.results[0])).kind not in "biu":
        return None
    return evaluate(op, operands)


def evaluate(op: Operation, operands: Sequence[Any]) -> Any | None:
    """Computes an elementwise operation on numbers; None if it is another operation."""
    if op.name == "stablehlo.compare":
        return _COMPARISONS[enumerator(op, "comparison_direction")](*operands)
    function = _FUNCTIONS.get(op.name)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        return np.asarray(function(*operands)).astype(numpy_dtype(dtype_of(op.results[0])))


def evaluate_block(block: Any, arguments: Sequence[Any]) -> list[Any] | None:
    """Computes the results of a block of scalars; None if it has operations that are not known."""
    values: dict[Any, Any] = {}
    for argument, number in zip(block.arguments, arguments, strict=True):
        values[argument] = np.asarray(number).astype(numpy_dtype(dtype_of(argument)))
    for op in operations_of(block):
        if op.name == "stablehlo.constant":
            values[op.results[0]] = array_of(op.attributes["value"])
            continue
        operands = [_number_of(each, values) for each in op.operands]
        if any(each is None for each in operands):
            return None
        if op.name in ("stablehlo.return", "func.return"):
            return operands
        result = operands[0] if only_states(op) else evaluate(op, operands)
        if result is None:
            return None
        values[op.results[0]] = result
    return None


def _number_of(value: Any, values: dict[Any, Any]) -> Any | None:
    """A value in a block, or a constant outside of it."""
    if value in values:
        return values[value]
    owner = getattr(value.owner, "operation", value.owner)
    if getattr(owner, "name", "") == "stablehlo.constant" and not shape_of(value):
        return array_of(owner.attributes["value"])
    return None
