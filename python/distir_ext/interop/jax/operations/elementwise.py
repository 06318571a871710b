"""Translates elementwise StableHLO operations: arithmetic, comparisons, conversions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.compile.kernels.legalizations.random_bits import ERF_INV_FAR, ERF_INV_NEAR
from distir_ext.interop.jax.known import Known, constant_of
from distir_ext.interop.jax.stablehlo import (
    Operation,
    dtype_of,
    enumerator,
    numpy_dtype,
)
from distir_ext.interop.jax.table import enter_all, translates
from distir_ext.interop.jax.writer import Writer

Build = Callable[..., relax.Expr]


def _number(value: float, like: relax.Expr) -> relax.Expr:
    dtype = str(like.ty.dtype)
    return relax.const(np.asarray(value).astype(numpy_dtype(dtype)), dtype)


# ---- one function of Relax for one operation

_SAME: dict[str, Build] = {
    "stablehlo.abs": relax_op.abs,
    "stablehlo.atan2": relax_op.atan2,
    "stablehlo.ceil": relax_op.ceil,
    "stablehlo.cosine": relax_op.cos,
    "stablehlo.exponential": relax_op.exp,
    "stablehlo.floor": relax_op.floor,
    "stablehlo.is_finite": relax_op.isfinite,
    "stablehlo.log": relax_op.log,
    "stablehlo.logistic": relax_op.sigmoid,
    "stablehlo.negate": relax_op.negative,
    "stablehlo.power": relax_op.power,
    "stablehlo.round_nearest_even": relax_op.round,
    "stablehlo.rsqrt": relax_op.rsqrt,
    "stablehlo.select": relax_op.where,
    "stablehlo.sign": relax_op.sign,
    "stablehlo.sine": relax_op.sin,
    "stablehlo.sqrt": relax_op.sqrt,
    "stablehlo.subtract": relax_op.subtract,
    "stablehlo.tan": relax_op.tan,
    "stablehlo.tanh": relax_op.tanh,
    "chlo.acos": relax_op.acos,
    "chlo.acosh": relax_op.acosh,
    "chlo.asin": relax_op.asin,
    "chlo.asinh": relax_op.asinh,
    "chlo.atan": relax_op.atan,
    "chlo.atanh": relax_op.atanh,
    "chlo.cosh": relax_op.cosh,
    "chlo.erf": relax_op.erf,
    "chlo.is_inf": relax_op.isinf,
    "chlo.sinh": relax_op.sinh,
    "chlo.square": lambda x: relax_op.multiply(x, x),
    "chlo.tan": relax_op.tan,
}

for _name, _build in _SAME.items():

    def _same(writer: Writer, op: Operation, build: Build = _build) -> Known:
        return writer.elementwise(op, build)

    enter_all([_name], _same)

# ---- of booleans and of numbers

_BY_KIND: dict[str, tuple[Build, Build]] = {
    "stablehlo.add": (relax_op.logical_or, relax_op.add),
    "stablehlo.and": (relax_op.logical_and, relax_op.bitwise_and),
    "stablehlo.maximum": (relax_op.logical_or, relax_op.maximum),
    "stablehlo.minimum": (relax_op.logical_and, relax_op.minimum),
    "stablehlo.multiply": (relax_op.logical_and, relax_op.multiply),
    "stablehlo.not": (relax_op.logical_not, relax_op.bitwise_not),
    "stablehlo.or": (relax_op.logical_or, relax_op.bitwise_or),
    "stablehlo.xor": (relax_op.logical_xor, relax_op.bitwise_xor),
}


def combiner(name: str, dtype: str) -> Build | None:
    """The operator of Relax for an operation of two elements; None if there is none."""
    if name in _BY_KIND:
        of_booleans, of_numbers = _BY_KIND[name]
        return of_booleans if dtype == "bool" else of_numbers
    return _SAME.get(name)


def _by_kind(writer: Writer, op: Operation) -> Known:
    build = combiner(op.name, dtype_of(op.operands[0]))
    assert build is not None
    return writer.elementwise(op, build)


enter_all(_BY_KIND, _by_kind)


# ---- others

_COMPARISONS: dict[str, Build] = {
    "EQ": relax_op.equal,
    "NE": relax_op.not_equal,
    "LT": relax_op.less,
    "LE": relax_op.less_equal,
    "GT": relax_op.greater,
    "GE": relax_op.greater_equal,
}


@translates("stablehlo.compare")
def _compare(writer: Writer, op: Operation) -> Known:
    build = _COMPARISONS[enumerator(op, "comparison_direction")]
    if dtype_of(op.operands[0]) != "bool":
        return writer.elementwise(op, build)
    # TVM compares no booleans.
    return writer.elementwise(
        op, lambda a, b: build(*(writer.emit(relax_op.astype(x, "int8")) for x in (a, b)))
    )


@translates("chlo.is_neg_inf", "chlo.is_pos_inf")
def _is_infinity(writer: Writer, op: Operation) -> Known:
    infinity = -np.inf if op.name.endswith("neg_inf") else np.inf
    return writer.elementwise(op, lambda x: relax_op.equal(x, _number(infinity, x)))


@translates("stablehlo.clamp")
def _clamp(writer: Writer, op: Operation) -> Known:
    def build(low: Any, value: Any, high: Any) -> relax.Expr:
        return relax_op.minimum(writer.emit(relax_op.maximum(value, low)), high)

    return writer.elementwise(op, build)


@translates("stablehlo.convert")
def _convert(writer: Writer, op: Operation) -> Known:
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    if source == target:
        return writer.known(op.operands[0])
    if target == "bool":
        return writer.elementwise(op, lambda x: relax_op.not_equal(x, _number(0, x)))
    number = writer.constant(op.operands[0])
    if number is not None and number.dtype.kind in "biu":
        return constant_of(number, target, writer.shape(writer.known(op.operands[0])))
    return writer.elementwise(op, lambda x: relax_op.astype(x, target))


@translates("stablehlo.exponential_minus_one")
def _expm1(writer: Writer, op: Operation) -> Known:
    """Kahan's form near 0, where e^x - 1 would lose all digits."""

    def build(x: Any) -> relax.Expr:
        emit, one = writer.emit, _number(1, x)
        power = emit(relax_op.exp(x))
        less_one = emit(relax_op.subtract(power, one))
        product = emit(relax_op.multiply(less_one, x))
        corrected = emit(relax_op.divide(product, emit(relax_op.log(power))))
        is_one = emit(relax_op.equal(power, one))
        small = emit(relax_op.where(is_one, x, corrected))
        is_small = emit(relax_op.less(emit(relax_op.abs(x)), _number(0.5, x)))
        return relax_op.where(is_small, small, less_one)

    return writer.elementwise(op, build)


@translates("stablehlo.divide", "stablehlo.remainder")
def _divide(writer: Writer, op: Operation) -> Known:
    """A quotient or remainder; by 0 all bits of an integer quotient are set, and all is left."""
    is_quotient, dtype = op.name == "stablehlo.divide", dtype_of(op.results[0])
    plain = relax_op.divide if is_quotient else relax_op.mod
    divisor = writer.constant(op.operands[1])
    kind = numpy_dtype(dtype).kind
    if kind not in "iu" or (divisor is not None and np.all(divisor != 0)):
        return writer.elementwise(op, plain)

    def build(x: Any, y: Any) -> relax.Expr:
        is_zero = writer.emit(relax_op.equal(y, _number(0, y)))
        all_bits = relax.const(-1 if kind == "i" else np.iinfo(dtype).max, dtype)
        of_zero = all_bits if is_quotient else x
        return relax_op.where(is_zero, of_zero, writer.emit(plain(x, y)))

    return writer.elementwise(op, build)


@translates("stablehlo.log_plus_one")
def _log1p(writer: Writer, op: Operation) -> Known:
    """Kahan's form near 0, where log(1 + x) would lose all digits."""

    def build(x: Any) -> relax.Expr:
        emit, one = writer.emit, _number(1, x)
        sum_ = emit(relax_op.add(x, one))
        log = emit(relax_op.log(sum_))
        ratio = emit(relax_op.divide(x, emit(relax_op.subtract(sum_, one))))
        corrected = emit(relax_op.multiply(log, ratio))
        small = emit(relax_op.where(emit(relax_op.equal(sum_, one)), x, corrected))
        is_small = emit(relax_op.less(emit(relax_op.abs(x)), _number(0.5, x)))
        return relax_op.where(is_small, small, log)

    return writer.elementwise(op, build)


@translates("chlo.erfc")
def _erfc(writer: Writer, op: Operation) -> Known:
    def build(x: Any) -> relax.Expr:
        return relax_op.subtract(_number(1, x), writer.emit(relax_op.erf(x)))

    return writer.elementwise(op, build)


@translates("chlo.erf_inv")
def _erf_inv(writer: Writer, op: Operation) -> Known:
    """Giles' polynomials; of float64 with steps of Newton's method behind them."""
    emit, dtype = writer.emit, dtype_of(op.operands[0])

    def polynomial(w: Any, coefficients: tuple[float, ...]) -> Any:
        found: Any = _number(coefficients[0], w)
        for each in coefficients[1:]:
            found = emit(relax_op.add(emit(relax_op.multiply(found, w)), _number(each, w)))
        return found

    def build(given: Any) -> relax.Expr:
        x = given if dtype == "float64" else emit(relax_op.astype(given, "float32"))
        one = _number(1, x)
        rest = emit(relax_op.multiply(emit(relax_op.subtract(one, x)), emit(relax_op.add(one, x))))
        w = emit(relax_op.negative(emit(relax_op.log(rest))))
        near = polynomial(emit(relax_op.subtract(w, _number(2.5, x))), ERF_INV_NEAR)
        root = emit(relax_op.sqrt(emit(relax_op.maximum(w, _number(5, x)))))
        far = polynomial(emit(relax_op.subtract(root, _number(3, x))), ERF_INV_FAR)
        is_near = emit(relax_op.less(w, _number(5, x)))
        found = emit(relax_op.multiply(emit(relax_op.where(is_near, near, far)), x))
        for _ in range(2 if dtype == "float64" else 0):
            found = _newton(writer, found, x)
        is_end = emit(relax_op.equal(emit(relax_op.abs(x)), one))
        infinite = emit(relax_op.multiply(x, _number(np.inf, x)))
        found = emit(relax_op.where(is_end, infinite, found))
        return relax_op.astype(found, dtype)

    return writer.elementwise(op, build)


def _newton(writer: Writer, y: Any, x: Any) -> Any:
    """A better y of erf(y) = x, whose derivative is 2 / sqrt(pi) e^(-y^2)."""
    emit = writer.emit
    off = emit(relax_op.subtract(emit(relax_op.erf(y)), x))
    square = emit(relax_op.multiply(y, y))
    scale = emit(relax_op.multiply(emit(relax_op.exp(square)), _number(np.sqrt(np.pi) / 2, x)))
    return emit(relax_op.subtract(y, emit(relax_op.multiply(off, scale))))


@translates("stablehlo.cbrt")
def _cbrt(writer: Writer, op: Operation) -> Known:
    def build(x: Any) -> relax.Expr:
        root = writer.emit(relax_op.power(writer.emit(relax_op.abs(x)), _number(1 / 3, x)))
        return relax_op.multiply(writer.emit(relax_op.sign(x)), root)

    return writer.elementwise(op, build)


@translates("stablehlo.round_nearest_afz")
def _round_away(writer: Writer, op: Operation) -> Known:
    def build(x: Any) -> relax.Expr:
        whole = writer.emit(relax_op.trunc(x))
        rest = writer.emit(relax_op.abs(writer.emit(relax_op.subtract(x, whole))))
        further = writer.emit(relax_op.greater_equal(rest, _number(0.5, x)))
        away = writer.emit(relax_op.add(whole, writer.emit(relax_op.sign(x))))
        return relax_op.where(further, away, whole)

    return writer.elementwise(op, build)


@translates(
    "stablehlo.shift_left", "stablehlo.shift_right_arithmetic", "stablehlo.shift_right_logical"
)
def _shift(writer: Writer, op: Operation) -> Known:
    """A shift, also by all bits or more, of which a target makes anything: all are shifted out."""
    dtype = dtype_of(op.operands[0])
    bits, number = numpy_dtype(dtype).itemsize * 8, writer.constant(op.operands[1])
    is_signed, is_arithmetic = dtype.startswith("int"), op.name.endswith("arithmetic")
    is_left = op.name.endswith("left")
    other = dtype if is_left or is_signed == is_arithmetic else _other_sign(dtype)
    shift = relax_op.left_shift if is_left else relax_op.right_shift
    is_inside = number is not None and 0 <= int(number) < bits
    emit = writer.emit

    def build(x: Any, count: Any) -> relax.Expr:
        if other != dtype:
            x, count = (emit(relax_op.astype(each, other)) for each in (x, count))
        last = _number(bits - 1, count)
        if is_inside:
            made = shift(x, count)
        elif is_arithmetic:
            above = emit(_is_above(writer, count, last))
            made = shift(x, emit(relax_op.where(above, last, count)))
        else:
            above = emit(_is_above(writer, count, last))
            kept = emit(shift(x, emit(relax_op.where(above, _number(0, count), count))))
            made = relax_op.where(above, _number(0, x), kept)
        return made if other == dtype else relax_op.astype(emit(made), dtype)

    return writer.elementwise(op, build)


def _is_above(writer: Writer, count: Any, last: Any) -> relax.Expr:
    """Computes whether an unsigned count is above the last index."""
    above = relax_op.greater(count, last)
    if str(count.ty.dtype).startswith("uint"):
        return above
    below = writer.emit(relax_op.less(count, _number(0, count)))
    return relax_op.logical_or(writer.emit(above), below)


def _other_sign(dtype: str) -> str:
    return f"u{dtype}" if dtype.startswith("int") else dtype[1:]
