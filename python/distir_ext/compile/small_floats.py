"""Computes 8-bit floats in kernels for CPUs, and converts to bfloat16, as ml_dtypes does.

Here a conversion to or from 8 bits is written in integers, and what is computed of float8 is
computed of float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.expr import TensorLoad

from distir_ext.compile.kernels.expressions import bind, convert
from distir_ext.compile.kernels.legalizations.dtypes import is_float
from distir_ext.compile.kernels.opaque import OpaqueFunction

__all__ = ["LAST", "REWRITES", "bits_in_buffers"]


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


def _bits(value: int, like: Any) -> Any:
    return tirx.const(value, like.ty)


def _like(dtype: str, value: Any) -> str:
    """A dtype with as many lanes as a value has."""
    lanes = int(value.ty.dtype.lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _reinterpret(dtype: str, value: Any) -> Any:
    return tirx.reinterpret(_like(dtype, value), value)


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
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "prim.if_then_else":
        condition, *branches = value.args
        return tirx.if_then_else(condition, *map(_wide, branches))
    if dtype == "bfloat16":
        return tirx.Cast("float32", value)
    is_made_of_bits = _is_reinterpreted(value) and _dtype(value.args[0]) == "uint8"
    bits = value.args[0] if is_made_of_bits else tirx.reinterpret("uint8", value)
    return _WIDE[dtype]("float32", bits)


def _of_bits(dtype: str, bits: Any) -> Any:
    """The float32 of a float of 8 bits."""
    return bind(convert("uint32", bits), lambda bits: _of_wide_bits(dtype, bits))


def _of_wide_bits(dtype: str, bits: Any) -> Any:
    if dtype == "float8_e5m2":  # the first half of a float16
        half = _reinterpret("float16", convert("uint16", bits << _bits(8, bits)))
        return convert("float32", half)
    magnitude = bits & _bits(0x7F, bits)
    shift = _MANTISSA - _FORMATS[dtype].mantissa
    number = _reinterpret("float32", magnitude << _bits(shift, bits))
    number = number * tirx.const(2.0 ** (_BIAS - _FORMATS[dtype].bias), number.ty)
    nan = _reinterpret("float32", _bits(0x7FC00000, bits))
    number = tirx.Select(tirx.EQ(magnitude, _bits(0x7F, bits)), nan, number)
    sign = (bits & _bits(0x80, bits)) << _bits(24, bits)
    return _reinterpret("float32", _reinterpret("uint32", number) | sign)


def _nearest(dtype: str, value: Any) -> Any:
    """The bits of the nearest number to a float32, the even one of two."""

    def of_bits(bits: Any) -> Any:
        magnitude = bits & _bits(_MAGNITUDE, bits)
        return bind(magnitude, lambda magnitude: _nearest_of_bits(dtype, bits, magnitude))

    return bind(_reinterpret("uint32", value), of_bits)


def _nearest_of_bits(dtype: str, bits: Any, magnitude: Any) -> Any:
    to = _FORMATS[dtype]
    shift = _MANTISSA - to.mantissa

    def of(value: int) -> Any:
        return _bits(value, bits)

    half = ((magnitude >> of(shift)) & of(1)) + of((1 << (shift - 1)) - 1)
    number = ((magnitude + half) >> of(shift)) - of((_BIAS - to.bias) << to.mantissa)
    # The last bit of this sum is the least number of the type.
    base = float(2.0 ** (_MANTISSA - to.mantissa + 1 - to.bias))
    subnormal = _reinterpret("float32", magnitude)
    subnormal = _reinterpret("uint32", subnormal + tirx.const(base, subnormal.ty))
    subnormal = subnormal - of(int(np.float32(base).view("uint32")))
    least = int(np.float32(2.0 ** (1 - to.bias)).view("uint32"))
    number = tirx.Select(magnitude < of(least), subnormal, number)
    number = tirx.min(number, of(to.above))
    number = tirx.Select(magnitude > of(_INFINITY), of(to.nan), number)
    sign = (bits & of(1 << 31)) >> of(24)
    return convert("uint8", number | sign)


def _odd(value: Any) -> Any:
    """A float64 as float32, with the last bit set where it is none: rounding it again is right."""
    return bind(convert("float32", value), lambda near: _odd_of_near(value, near))


def _odd_of_near(value: Any, near: Any) -> Any:
    back = convert("float64", near)
    bits = _reinterpret("uint32", near)
    below = tirx.Select(tirx.abs(back) > tirx.abs(value), bits - _bits(1, bits), bits)
    is_same = tirx.Or(tirx.EQ(back, value), tirx.isnan(value))
    return _reinterpret("float32", tirx.Select(is_same, bits, below | _bits(1, bits)))


def _keep_nan(value: Any) -> Any:
    """A float32 that is NaN in bfloat16, too, if it is one.

    TVM rounds a NaN as a number, and the carry of its bits ends in the sign. A NaN that bfloat16
    has, of which no bits are cut off, stays as it is.
    """
    bits = _reinterpret("uint32", value)
    is_cut = tirx.NE(bits & _bits(0xFFFF, bits), _bits(0, bits))
    is_lost = tirx.And(tirx.isnan(value), is_cut)
    return tirx.Select(is_lost, tirx.const(math.nan, value.ty), value)


_WIDE = {
    dtype: OpaqueFunction(f"of_{dtype}", functools.partial(_of_bits, dtype)) for dtype in _FORMATS
}
_NEAREST = {
    dtype: OpaqueFunction(f"to_{dtype}", functools.partial(_nearest, dtype)) for dtype in _FORMATS
}
_ODD = OpaqueFunction("to_odd_float32", _odd)
_KEEP_NAN = OpaqueFunction("keep_nan", _keep_nan)


def _narrow(value: Any, dtype: str) -> Any:
    return tirx.reinterpret(dtype, _NEAREST[dtype]("uint8", value))


def _cast(node: Any) -> Any:
    source, wanted = _dtype(node.value), _dtype(node)
    if source == wanted or (source not in _SMALL and wanted not in _FORMATS):
        return node
    value = _wide(node.value) if source in _SMALL else node.value
    if wanted not in _FORMATS:
        return _as(value, wanted)
    value = _ODD("float32", value) if source == "float64" else value
    return _narrow(_as(value, "float32"), wanted)


def _let_value(node: Any) -> Any:
    """TVM's passes for bfloat16 leave out the values of variables, which are therefore of bits."""

    def by_bits(cast: Any) -> Any:
        if _dtype(cast.value) != "bfloat16" or _dtype(cast) != "float32":
            return cast
        bits = tirx.reinterpret("uint16", cast.value).astype("uint32")
        return tirx.reinterpret("float32", bits << _bits(16, bits))

    value = tvm_ffi.structural_map(node.value, (tirx.Cast, by_bits))
    return node if value.same_as(node.value) else tirx.Let(node.var, value, node.body)


def _store(node: Any) -> Any:
    value = node.value
    if not isinstance(value, tirx.Cast) or _dtype(value) != "bfloat16":
        return node
    if not is_float(_dtype(value.value)):
        return node
    kept = tirx.Cast("bfloat16", _KEEP_NAN("float32", _as(value.value, "float32")))
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


_REINTERPRET = "tirx.reinterpret"
_MOVES = (_REINTERPRET, "prim.if_then_else")


def _is_reinterpreted(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _REINTERPRET


def _call(node: tvm.ir.Call) -> Any:
    """A function of numbers."""
    if _is_reinterpreted(node) and _is_reinterpreted(inner := node.args[0]):
        is_small = _dtype(inner).split("x")[0] in _FORMATS or _dtype(node).split("x")[0] in _FORMATS
        return inner.args[0] if is_small and _dtype(inner.args[0]) == _dtype(node) else node
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


def bits_in_buffers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose own buffers have the bits of floats of 8 bits as uint8.

    TVM makes such buffers float32, also where their bits are read. What the kernel takes and
    returns stays as it is.
    """
    found: dict[Any, Any] = {}

    def see(node: Any) -> None:
        for buffer in node.alloc_buffers if isinstance(node, s_tir.SBlock) else [node.buffer]:
            if str(buffer.dtype) in _FORMATS:
                found[buffer] = _of_bytes(buffer)

    tvm_ffi.structural_walk(function, ((s_tir.SBlock, tirx.AllocBuffer), see))
    if not found:
        return function
    return tvm_ffi.structural_map(
        function,
        (
            (tirx.Var, lambda node: found.get(node, node)),
            (TensorLoad, _load_of_bytes),
            (tirx.BufferStore, _store_of_bytes),
        ),
    )


def _of_bytes(buffer: Any) -> Any:
    return tirx.decl_buffer(buffer.shape, "uint8", buffer.name, scope=buffer.scope())


def _load_of_bytes(node: Any) -> Any:
    if _dtype(node).split("x")[0] not in _FORMATS or str(node.source.dtype) != "uint8":
        return node
    return tirx.reinterpret(_dtype(node), tirx.BufferLoad(node.source, node.indices))


def _store_of_bytes(node: Any) -> Any:
    if str(node.buffer.dtype) != "uint8" or _dtype(node.value).split("x")[0] not in _FORMATS:
        return node
    return tirx.BufferStore(node.buffer, _byte(node.value), node.indices)


def _byte(value: Any) -> Any:
    """The bits of a float of 8 bits; TVM makes a selection of such float32."""
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, *map(_byte, (value.true_value, value.false_value)))
    if isinstance(value, tirx.Let):
        return tirx.Let(value.var, value.value, _byte(value.body))
    if isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == "prim.if_then_else":
        condition, *branches = value.args
        return tirx.if_then_else(condition, *map(_byte, branches))
    return _reinterpret("uint8", value)


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
