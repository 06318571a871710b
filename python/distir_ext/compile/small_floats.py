"""Floats of 8 bits in kernels for CPUs, and conversions to bfloat16, as in ml_dtypes.

Here a conversion to or from 8 bits is written in integers, and what is computed of float8 is
computed of float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from distir_ext.compile.kernels.dtypes import is_float

__all__ = ["LAST", "REWRITES"]


@dataclass(frozen=True)
class _Format:
    """A float of 8 bits.

    Attributes:
        mantissa: Its bits.
        bias: Of the exponent.
        above: The bits of what is above all numbers: an infinity, or NaN where there is none.
        nan: The bits of a NaN.
    """

    mantissa: int
    bias: int
    above: int
    nan: int


_FORMATS = {
    "float8_e4m3fn": _Format(3, 7, 0x7F, 0x7F),
    "float8_e5m2": _Format(2, 15, 0x7C, 0x7E),
}

_SMALL = (*_FORMATS, "bfloat16")

_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div),
    *(tirx.Max, tirx.Min, tirx.FloorDiv, tirx.FloorMod),
)

_MANTISSA, _BIAS, _INFINITY, _MAGNITUDE = 23, 127, 0x7F800000, 0x7FFFFFFF


def _dtype(value: Any) -> str:
    return str(value.ty.dtype)


def _bits(value: int) -> Any:
    return tirx.const(value, "uint32")


def _let(value: Any, function: Callable[[Any], Any]) -> Any:
    variable = tirx.Var("value", value.ty)
    return tirx.Let(variable, value, function(variable))


def _wide(value: Any) -> Any:
    """A smaller float as float32, which has all of them.

    What is computed of bfloat16 is computed of float32, and rounded where it is stored, as TVM has
    it.
    """
    dtype = _dtype(value)
    if isinstance(value, tirx.FloatImm):
        number = np.asarray(value.value, getattr(ml_dtypes, dtype)).astype("float32")
        return tirx.const(float(number), "float32")
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, _wide(value.body))
    if isinstance(value, tirx.Select):
        branches = map(_wide, (value.true_value, value.false_value))
        return tirx.Select(value.condition, *branches)
    if dtype == "bfloat16" and isinstance(value, tirx.Cast):
        return _as(value.value, "float32")
    if dtype == "bfloat16" and isinstance(value, _ARITHMETIC):
        return type(value)(_wide(value.a), _wide(value.b))
    name = getattr(value.op, "name", "") if isinstance(value, tvm.ir.Call) else ""
    if name == "tirx.if_then_else":
        condition, *branches = value.args
        return tirx.if_then_else(condition, *map(_wide, branches))
    if dtype == "bfloat16":
        return tirx.Cast("float32", value)
    is_made_of_bits = name == "tirx.reinterpret" and _dtype(value.args[0]) == "uint8"
    bits = value.args[0] if is_made_of_bits else tirx.reinterpret("uint8", value)
    return _let(bits.astype("uint32"), lambda bits: _of_bits(bits, dtype))


def _of_bits(bits: Any, dtype: str) -> Any:
    if dtype == "float8_e5m2":  # the first half of a float16
        half = tirx.reinterpret("float16", (bits << _bits(8)).astype("uint16"))
        return tirx.Cast("float32", half)
    magnitude = bits & _bits(0x7F)
    shift = _MANTISSA - _FORMATS[dtype].mantissa
    scale = tirx.const(2.0 ** (_BIAS - _FORMATS[dtype].bias), "float32")
    number = tirx.reinterpret("float32", magnitude << _bits(shift)) * scale
    nan = tirx.reinterpret("float32", _bits(0x7FC00000))
    number = tirx.Select(magnitude == _bits(0x7F), nan, number)
    sign = (bits & _bits(0x80)) << _bits(24)
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", number) | sign)


def _narrow(value: Any, dtype: str) -> Any:
    """The nearest number to a float32, the even one of two."""
    to = _FORMATS[dtype]
    shift = _MANTISSA - to.mantissa

    def of_bits(bits: Any) -> Any:
        return _let(bits & _bits(_MAGNITUDE), lambda magnitude: of(bits, magnitude))

    def of(bits: Any, magnitude: Any) -> Any:
        half = ((magnitude >> _bits(shift)) & _bits(1)) + _bits((1 << (shift - 1)) - 1)
        number = ((magnitude + half) >> _bits(shift)) - _bits((_BIAS - to.bias) << to.mantissa)
        # The last bit of this sum is the least number of the type.
        base = float(2.0 ** (_MANTISSA - to.mantissa + 1 - to.bias))
        subnormal = tirx.reinterpret("float32", magnitude) + tirx.const(base, "float32")
        base_bits = int(np.float32(base).view("uint32"))
        subnormal = tirx.reinterpret("uint32", subnormal) - _bits(base_bits)
        least = int(np.float32(2.0 ** (1 - to.bias)).view("uint32"))
        number = tirx.Select(magnitude < _bits(least), subnormal, number)
        number = tirx.Select(number > _bits(to.above), _bits(to.above), number)
        number = tirx.Select(magnitude > _bits(_INFINITY), _bits(to.nan), number)
        sign = (bits & _bits(1 << 31)) >> _bits(24)
        return tirx.reinterpret(dtype, (number | sign).astype("uint8"))

    return _let(value, lambda value: _let(tirx.reinterpret("uint32", value), of_bits))


def _odd(value: Any) -> Any:
    """A float64 as float32, with the last bit set where it is none: rounding it again is right."""

    def of(value: Any) -> Any:
        return _let(tirx.Cast("float32", value), lambda near: of_near(value, near))

    def of_near(value: Any, near: Any) -> Any:
        back = tirx.Cast("float64", near)
        bits = tirx.reinterpret("uint32", near)
        below = tirx.Select(tirx.abs(back) > tirx.abs(value), bits - _bits(1), bits)
        is_same = tirx.Or(back == value, tirx.isnan(value))
        return tirx.reinterpret("float32", tirx.Select(is_same, bits, below | _bits(1)))

    return _let(value, of)


def _cast(node: Any) -> Any:
    source, wanted = _dtype(node.value), _dtype(node)
    if source == wanted or (source not in _SMALL and wanted not in _FORMATS):
        return node
    value = _wide(node.value) if source in _SMALL else node.value
    if wanted not in _FORMATS:
        return _as(value, wanted)
    value = _odd(value) if source == "float64" else value
    return _narrow(_as(value, "float32"), wanted)


def _let_value(node: Any) -> Any:
    """TVM's passes for bfloat16 leave out the values of variables, which are therefore of bits."""

    def by_bits(cast: Any) -> Any:
        if _dtype(cast.value) != "bfloat16" or _dtype(cast) != "float32":
            return cast
        bits = tirx.reinterpret("uint16", cast.value).astype("uint32")
        return tirx.reinterpret("float32", bits << _bits(16))

    value = tvm_ffi.structural_map(node.value, (tirx.Cast, by_bits))
    return node if value.same_as(node.value) else tirx.Let(node.var, value, node.body)


def _store(node: Any) -> Any:
    """TVM rounds a NaN to bfloat16 as a number, and the carry of its bits ends in the sign.

    A NaN that bfloat16 has, of which no bits are cut off, stays as it is.
    """
    value = node.value
    if not isinstance(value, tirx.Cast) or _dtype(value) != "bfloat16":
        return node
    if not is_float(_dtype(value.value)):
        return node
    wide = _as(value.value, "float32")
    is_cut = (tirx.reinterpret("uint32", wide) & _bits(0xFFFF)) != _bits(0)
    is_lost = tirx.And(tirx.isnan(wide), is_cut)
    kept = tirx.Select(is_lost, tirx.FloatImm("float32", math.nan), wide)
    kept = tirx.Cast("bfloat16", kept)
    return tirx.BufferStore(node.buffer, kept, node.indices)


def _as(value: Any, dtype: str) -> Any:
    return value if _dtype(value) == dtype else tirx.Cast(dtype, value)


def _immediate(node: Any) -> Any:
    dtype = _dtype(node)
    if dtype not in _FORMATS:
        return node
    bits = np.asarray(node.value, getattr(ml_dtypes, dtype)).view("uint8")
    return tirx.reinterpret(dtype, tirx.const(int(bits), "uint8"))


def _arithmetic(node: Any) -> Any:
    dtype = _dtype(node.a)
    if dtype not in _FORMATS:
        return node
    return _narrow(type(node)(_wide(node.a), _wide(node.b)), dtype)


def _comparison(node: Any) -> Any:
    return type(node)(_wide(node.a), _wide(node.b)) if _dtype(node.a) in _SMALL else node


_MOVES = ("tirx.reinterpret", "tirx.if_then_else")


def _call(node: tvm.ir.Call) -> Any:
    """A function of numbers."""
    name = getattr(node.op, "name", "")
    small = [_has(arg) and _dtype(arg) in _SMALL for arg in node.args]
    if name in _MOVES or not any(small) or not _has(node):
        return node
    args = [_wide(arg) if each else arg for arg, each in zip(node.args, small, strict=True)]
    dtype = _dtype(node)
    if dtype not in _SMALL:
        return tirx.call_intrin(dtype, name, *args)
    found = tirx.call_intrin("float32", name, *args)
    return _narrow(found, dtype) if dtype in _FORMATS else tirx.Cast(dtype, found)


def _has(value: Any) -> bool:
    """Returns whether a value is an expression that has a dtype."""
    return hasattr(getattr(value, "ty", None), "dtype")


REWRITES = (
    (tirx.Cast, _cast),
    (_ARITHMETIC, _arithmetic),
    ((tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE), _comparison),
    (tvm.ir.Call, _call),
    (tirx.BufferStore, _store),
)
"""For ``tvm_ffi.structural_map``: kernels whose operations on these types are exact."""

LAST = ((tirx.FloatImm, _immediate), (tirx.Let, _let_value))
"""To be run behind those: constants that are left, and variables."""
