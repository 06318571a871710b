"""Translates StableHLO operations on bits: bitcasts, counts of bits, ``next_after``."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from distir_ext.interop.jax.kernels import computed, elements, kernel_call
from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integer,
    numpy_dtype,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


def _bits(dtype: str) -> int:
    return int(numpy_dtype(dtype).itemsize) * 8


def _as(dtype: str, x: Any) -> Any:
    """An element of the same width as another type.

    LLVM does not take bfloat16 for 16 bits: its bits are the upper ones of a float32, rounded to
    the nearest, since a kernel that computes bfloat16 may not have rounded it yet.
    """
    source = str(x.ty.dtype)
    if source == dtype:
        return x
    half = tirx.const(16, "uint32")
    if source == "bfloat16":
        wide = x.astype("float32")
        bits = tirx.reinterpret("uint32", wide)
        upper, one = tirx.shift_right(bits, half), tirx.const(1, "uint32")
        nearest = bits + tirx.const(0x7FFF, "uint32") + tirx.bitwise_and(upper, one)
        nan = tirx.bitwise_or(upper, tirx.const(0x40, "uint32"))
        found = tirx.Select(tirx.isnan(wide), nan, tirx.shift_right(nearest, half))
        return _as(dtype, found.astype("uint16"))
    if dtype == "bfloat16":
        bits = tirx.shift_left(_as("uint16", x).astype("uint32"), half)
        return tirx.reinterpret("float32", bits).astype("bfloat16")
    return tirx.reinterpret(dtype, x)


@translates("stablehlo.bitcast_convert")
def _bitcast(writer: Writer, op: Operation) -> Known:
    """Elements as others of the same width, or each as several along a last dimension, or back."""
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    wide, narrow = _bits(source), _bits(target)
    if source == target:
        return writer.known(op.operands[0])
    if wide == narrow:

        def same(x: te.Tensor) -> Any:
            return elements(x.shape, lambda *i: _as(target, x(*i)), "bits")

        return writer.elementwise(op, lambda x: kernel_call(writer, "bitcast", same, [x]))
    x = writer.full(op.operands[0])
    if wide > narrow:
        return computed(writer, "split_bits", _split(source, target), [x])[0]
    return computed(writer, "join_bits", _joined(source, target), [x])[0]


def _split(source: str, target: str) -> Any:
    """Each element as several, lowest bits first."""
    wide, narrow = _bits(source), _bits(target)

    def make(x: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            whole = _as(f"uint{wide}", x(*index[:-1]))
            place = index[-1].astype(f"uint{wide}") * tirx.const(narrow, f"uint{wide}")
            return _as(target, tirx.shift_right(whole, place).astype(f"uint{narrow}"))

        return elements([*x.shape, wide // narrow], element, "bits")

    return make


def _joined(source: str, target: str) -> Any:
    """Elements along the last dimension as one, lowest bits first."""
    narrow, wide = _bits(source), _bits(target)

    def make(x: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            whole = tirx.const(0, f"uint{wide}")
            for place in range(wide // narrow):
                part = _as(f"uint{narrow}", x(*index, place)).astype(f"uint{wide}")
                shifted = tirx.shift_left(part, tirx.const(place * narrow, f"uint{wide}"))
                whole = tirx.bitwise_or(whole, shifted)
            return _as(target, whole)

        return elements(list(x.shape)[:-1], element, "bits")

    return make


@translates("stablehlo.popcnt", "stablehlo.count_leading_zeros")
def _count(writer: Writer, op: Operation) -> Known:
    dtype = dtype_of(op.operands[0])
    bits, count = _bits(dtype), _ones if op.name.endswith("popcnt") else _leading_zeros

    def make(x: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            plain = _as(f"uint{bits}", x(*index))
            return count(plain.astype(f"uint{max(bits, 32)}"), bits).astype(dtype)

        return elements(x.shape, element, "bits")

    name = op.name.rpartition(".")[2]
    return writer.elementwise(op, lambda x: kernel_call(writer, name, make, [x]))


def _ones(x: Any, _bits: int) -> Any:
    return tirx.popcount(x)


def _leading_zeros(x: Any, bits: int) -> Any:
    """Counts the leading zeros of the low `bits` bits of an unsigned number; `bits` for 0."""
    dtype = str(x.ty.dtype)
    unused = tirx.const(_bits(dtype) - bits, "int32")
    is_zero = x == tirx.const(0, dtype)
    # The instruction has no result for 0.
    found = tirx.clz(tirx.Select(is_zero, tirx.const(1, dtype), x)).astype("int32") - unused
    return tirx.Select(is_zero, tirx.const(bits, "int32"), found)


@translates("chlo.next_after")
def _next_after(writer: Writer, op: Operation) -> Known:
    """The next number towards another: the next bits of the magnitude, up or down."""
    dtype = dtype_of(op.results[0])
    bits = f"uint{_bits(dtype)}"
    one, top = tirx.const(1, bits), tirx.const(1 << (_bits(dtype) - 1), bits)

    def element(x: Any, y: Any) -> Any:
        wide_x, wide_y = (each.astype("float32") if _bits(dtype) < 32 else each for each in (x, y))
        zero = tirx.const(0, wide_x.ty.dtype)
        is_further = tirx.Or(
            tirx.And(wide_x > zero, wide_y > wide_x), tirx.And(wide_x < zero, wide_y < wide_x)
        )
        of_x = _as(bits, x)
        moved = _as(dtype, tirx.Select(is_further, of_x + one, of_x - one))
        least = _as(dtype, tirx.bitwise_or(tirx.bitwise_and(_as(bits, y), top), one))
        found = tirx.Select(tirx.EQ(wide_x, zero), least, moved)
        found = tirx.Select(tirx.EQ(wide_x, wide_y), y, found)
        is_nan = tirx.Or(tirx.isnan(wide_x), tirx.isnan(wide_y))
        return tirx.Select(is_nan, (wide_x + wide_y).astype(dtype), found)

    def make(x: te.Tensor, y: te.Tensor) -> Any:
        return elements(x.shape, lambda *i: element(x(*i), y(*i)), "next")

    operands = [writer.full(each) for each in op.operands]
    return writer.emit(kernel_call(writer, "next_after", make, operands))


@translates("chlo.mulhi")
def _upper_half(writer: Writer, op: Operation) -> Known:
    """The upper half of a product."""
    dtype = dtype_of(op.results[0])
    bits = _bits(dtype)

    def make(x: te.Tensor, y: te.Tensor) -> Any:
        product = _upper_of_64 if bits == 64 else _upper_of_wider
        return elements(x.shape, lambda *i: product(x(*i), y(*i)), "upper")

    operands = [writer.full(each) for each in op.operands]
    return writer.emit(kernel_call(writer, "upper_half", make, operands))


def _upper_of_wider(x: Any, y: Any) -> Any:
    dtype = str(x.ty.dtype)
    wide = dtype.replace(str(_bits(dtype)), "64")
    product = x.astype(wide) * y.astype(wide)
    return tirx.shift_right(product, tirx.const(_bits(dtype), wide)).astype(dtype)


def _upper_of_64(x: Any, y: Any) -> Any:
    """The upper 64 bits, of products of halves."""
    dtype = str(x.ty.dtype)
    half, mask = tirx.const(32, "uint64"), tirx.const(2**32 - 1, "uint64")

    def halves(value: Any) -> tuple[Any, Any]:
        return tirx.bitwise_and(value, mask), tirx.shift_right(value, half)

    (x_low, x_high), (y_low, y_high) = (halves(each.astype("uint64")) for each in (x, y))
    carry, upper = halves(x_high * y_low + tirx.shift_right(x_low * y_low, half))
    found = x_high * y_high + upper + tirx.shift_right(x_low * y_high + carry, half)
    if dtype == "int64":  # of a negative number all 64 bits above are set
        zero = tirx.const(0, "int64")
        for number, other in ((x, y), (y, x)):
            none = tirx.const(0, "uint64")
            found = found - tirx.Select(number < zero, other.astype("uint64"), none)
    return found.astype(dtype)


_FORMATS = {"bfloat16": (8, 7), "float16": (5, 10), "float32": (8, 23), "float64": (11, 52)}
"""Bits of exponent and mantissa."""


@translates("stablehlo.reduce_precision")
def _reduce_precision(writer: Writer, op: Operation) -> Known:
    """Numbers rounded to fewer bits, as XLA does: what has no normal number there becomes 0."""
    exponent, mantissa = integer(op, "exponent_bits"), integer(op, "mantissa_bits")
    dtype = dtype_of(op.operands[0])
    if dtype not in _FORMATS:
        raise UnsupportedError(f"of {dtype}")
    whole = _FORMATS[dtype]
    if exponent >= whole[0] and mantissa >= whole[1]:
        return writer.known(op.operands[0])

    def make(x: te.Tensor) -> Any:
        def element(*index: Any) -> Any:
            return _reduced(x(*index), exponent, mantissa)

        return elements(x.shape, element, "bits")

    return writer.elementwise(op, lambda x: kernel_call(writer, "reduce_precision", make, [x]))


def _reduced(x: Any, exponent: int, mantissa: int) -> Any:
    dtype = str(x.ty.dtype)
    to, (exponents, mantissas) = f"uint{_bits(dtype)}", _FORMATS[dtype]

    def number(value: int) -> Any:
        return tirx.const(value, to)

    bits = _as(to, x)
    if (cut := mantissas - mantissa) > 0:  # to the nearest, the even one of two
        last = tirx.bitwise_and(tirx.shift_right(bits, number(cut)), number(1))
        below = number((1 << (mantissas + exponents + 1)) - (1 << cut))
        bits = tirx.bitwise_and(bits + last + number((1 << (cut - 1)) - 1), below)
    if exponent < exponents:
        sign = tirx.bitwise_and(bits, number(1 << (mantissas + exponents)))
        infinity, bias = ((1 << exponents) - 1) << mantissas, (1 << (exponents - 1)) - 1
        largest = (1 << (exponent - 1)) - 1
        size = tirx.bitwise_and(bits, number(infinity))
        is_above = size > number((bias + largest) << mantissas)
        is_below = size <= number((bias - largest) << mantissas)
        bits = tirx.Select(is_above, tirx.bitwise_or(sign, number(infinity)), bits)
        bits = tirx.Select(is_below, sign, bits)
    return tirx.Select(
        tirx.isnan(x.astype("float32") if dtype == "bfloat16" else x), x, _as(dtype, bits)
    )
