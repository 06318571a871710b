"""Converts StableHLO regions on scalars (combine, compare, select) to kernel expressions.

    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %0 = stablehlo.maximum %a, %b : tensor<f32>
      %1 = stablehlo.exponential %0 : tensor<f32>
      stablehlo.return %1 : tensor<f32>

is ``lambda a, b: [T.exp(max(a, b))]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import tirx

from distir_ext.interop.jax.hlo_shardings import only_states
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    array_of,
    dtype_of,
    enumerator,
    only_block,
    operations_of,
    shape_of,
    symbol,
)

Expression = Any
"""A ``tirx.PrimExpr``."""

# Of scalars these change nothing.
_PASSED = (
    "stablehlo.broadcast_in_dim",
    "stablehlo.optimization_barrier",
    "stablehlo.reshape",
)


class ScalarFunction:
    """A region of StableHLO whose arguments and results are scalars.

    Args:
        block: The region's.
        functions: The module's, which it may call.

    Raises:
        UnsupportedError: One of its operations is none of scalars.
    """

    def __init__(self, block: Any, functions: Mapping[str, Operation]) -> None:
        self._block = block
        self._functions = functions
        self.dtypes = [dtype_of(each) for each in block.arguments]
        self(*(tirx.Var("x", dtype) for dtype in self.dtypes))

    def __call__(self, *arguments: Expression) -> list[Expression]:
        """Its results for these arguments."""
        return self._results(self._block, arguments)

    def _results(self, block: Any, arguments: Sequence[Expression]) -> list[Expression]:
        values: dict[Any, Expression] = dict(zip(block.arguments, arguments, strict=True))
        for op in operations_of(block):
            if op.name in ("stablehlo.return", "func.return"):
                return [self._value(each, values) for each in op.operands]
            if op.name == "stablehlo.constant":
                continue
            operands = [self._value(each, values) for each in op.operands]
            if op.name == "func.call":
                callee = self._functions[symbol(op, "callee")]
                results = self._results(only_block(callee), operands)
            elif op.name in _PASSED or only_states(op):
                results = operands
            else:
                results = [_expression(op, operands)]
            values.update(zip(op.results, results, strict=True))
        raise UnsupportedError("has a region that returns nothing")

    def _value(self, value: Any, values: Mapping[Any, Expression]) -> Expression:
        if value in values:
            return values[value]
        owner = getattr(value.owner, "operation", value.owner)
        if getattr(owner, "name", "") == "stablehlo.constant" and not shape_of(value):
            return constant(array_of(owner.attributes["value"]), dtype_of(value))
        raise UnsupportedError("has a region that reads values from outside of it")


def constant(number: Any, dtype: str) -> Expression:
    """A number in a kernel."""
    if dtype.startswith(("float", "bfloat")):
        return tirx.const(float(number), dtype)
    return tirx.const(bool(number) if dtype == "bool" else int(number), dtype)


def _expression(op: Operation, operands: list[Expression]) -> Expression:
    dtype, result = dtype_of(op.operands[0]), dtype_of(op.results[0])
    if op.name == "stablehlo.compare":
        if dtype == "bool":
            operands = [each.astype("int8") for each in operands]
        direction = enumerator(op, "comparison_direction")
        if is_float(operands[0]) and operands[0].same_as(operands[1]):
            # TVM takes a value for equal to itself, also NaN.
            is_nan = tirx.isnan(operands[0])
            if direction in ("NE", "EQ"):
                return is_nan if direction == "NE" else tirx.Not(is_nan)
        return _COMPARISONS[direction](*operands)
    if op.name == "stablehlo.convert":
        if result == dtype:
            return operands[0]
        if result == "bool":
            return operands[0] != tirx.const(0, dtype)
        return operands[0].astype(result)
    for table in (_OF_BOOLEANS if dtype == "bool" else _OF_NUMBERS, _OF_ALL):
        if op.name in table:
            return table[op.name](*operands)
    if op.name in _OF_FLOATS and dtype.startswith(("float", "bfloat")):
        return _OF_FLOATS[op.name](*operands)
    raise UnsupportedError(f"has a region with {op.name}, which kernels do not compute of {dtype}")


def is_float(x: Expression) -> bool:
    """Returns whether an expression is a float."""
    return str(x.ty.dtype).startswith(("float", "bfloat"))


def _larger(a: Expression, b: Expression) -> Expression:
    """The larger one; NaN if either is NaN."""
    first = a > b
    return tirx.Select(tirx.any(first, tirx.isnan(a)) if is_float(a) else first, a, b)


def _smaller(a: Expression, b: Expression) -> Expression:
    first = a < b
    return tirx.Select(tirx.any(first, tirx.isnan(a)) if is_float(a) else first, a, b)


def _divide(a: Expression, b: Expression) -> Expression:
    """A quotient; all bits of an integer are set where it is by 0."""
    if is_float(a):
        return a / b
    all_bits = tirx.bitwise_not(tirx.const(0, a.ty))
    return _by_zero(b, all_bits, lambda b: tirx.Div(a, b))


def _remainder(a: Expression, b: Expression) -> Expression:
    """Computes a remainder; an integer divided by 0 is its own remainder."""
    if is_float(a):
        return tirx.fmod(a, b)
    return _by_zero(b, a, lambda b: tirx.Mod(a, b))


def _by_zero(
    b: Expression, of_zero: Expression, of: Callable[[Expression], Expression]
) -> Expression:
    zero = tirx.const(0, b.ty)
    if isinstance(b, tirx.IntImm):
        return of_zero if b.value == 0 else of(b)
    return tirx.Select(tirx.EQ(b, zero), of_zero, of(b))


def _sign(x: Expression) -> Expression:
    zero, one = (constant(number, str(x.ty.dtype)) for number in (0, 1))
    return tirx.Select(x > zero, one, tirx.Select(x < zero, zero - one, x))


def _logistic(x: Expression) -> Expression:
    one = constant(1, str(x.ty.dtype))
    return one / (one + tirx.exp(-x))


def _expm1(x: Expression) -> Expression:
    """Kahan's form near 0, where e^x - 1 would lose all digits."""
    one, half = (constant(number, str(x.ty.dtype)) for number in (1, 0.5))
    power = tirx.exp(x)
    near = tirx.Select(power == one, x, (power - one) * x / tirx.log(power))
    return tirx.Select(tirx.abs(x) < half, near, power - one)


def _log1p(x: Expression) -> Expression:
    """Kahan's form near 0, where log(1 + x) would lose all digits."""
    one, half = (constant(number, str(x.ty.dtype)) for number in (1, 0.5))
    total = x + one
    near = tirx.Select(total == one, x, tirx.log(total) * (x / (total - one)))
    return tirx.Select(tirx.abs(x) < half, near, tirx.log(total))


_COMPARISONS: dict[str, Callable[..., Expression]] = {
    "EQ": tirx.EQ,
    "NE": tirx.NE,
    "LT": tirx.LT,
    "LE": tirx.LE,
    "GT": tirx.GT,
    "GE": tirx.GE,
}
_OF_BOOLEANS: dict[str, Callable[..., Expression]] = {
    "stablehlo.add": tirx.any,
    "stablehlo.and": tirx.all,
    "stablehlo.maximum": tirx.any,
    "stablehlo.minimum": tirx.all,
    "stablehlo.multiply": tirx.all,
    "stablehlo.not": tirx.Not,
    "stablehlo.or": tirx.any,
    "stablehlo.xor": lambda a, b: tirx.NE(a.astype("int8"), b.astype("int8")),
}
_OF_NUMBERS: dict[str, Callable[..., Expression]] = {
    "stablehlo.abs": tirx.abs,
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.and": tirx.bitwise_and,
    "stablehlo.clamp": lambda low, x, high: _smaller(_larger(x, low), high),
    "stablehlo.divide": _divide,
    "stablehlo.maximum": _larger,
    "stablehlo.minimum": _smaller,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.negate": lambda a: -a,
    "stablehlo.not": tirx.bitwise_not,
    "stablehlo.or": tirx.bitwise_or,
    "stablehlo.remainder": _remainder,
    "stablehlo.sign": _sign,
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.xor": tirx.bitwise_xor,
}
_OF_FLOATS: dict[str, Callable[..., Expression]] = {
    "stablehlo.atan2": tirx.atan2,
    "stablehlo.ceil": tirx.ceil,
    "stablehlo.cosine": tirx.cos,
    "stablehlo.exponential": tirx.exp,
    "stablehlo.exponential_minus_one": _expm1,
    "stablehlo.floor": tirx.floor,
    "stablehlo.is_finite": tirx.isfinite,
    "stablehlo.log": tirx.log,
    "stablehlo.log_plus_one": _log1p,
    "stablehlo.logistic": _logistic,
    "stablehlo.power": tirx.pow,
    "stablehlo.rsqrt": tirx.rsqrt,
    "stablehlo.sine": tirx.sin,
    "stablehlo.sqrt": tirx.sqrt,
    "stablehlo.tanh": tirx.tanh,
    "chlo.is_inf": tirx.isinf,
    "chlo.square": lambda x: x * x,
}
_OF_ALL: dict[str, Callable[..., Expression]] = {"stablehlo.select": tirx.Select}
