"""Legalises random_bits and random_normal to kernels of Threefry 2x32, with 20 rounds.

Sources: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); M. Giles,
"Approximating the erfinv function" (2010).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.cpu.float_functions import log
from distir_ext.compile.kernels.expressions import bind
from distir_ext.compile.kernels.opaque import OpaqueFunction
from distir_ext.native.random_bits import BITS, NORMAL

__all__ = ["ERF_INV_FAR", "ERF_INV_NEAR", "install"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Coefficients of Giles for -log(1 - x^2) below 5 and above, the highest power first.
ERF_INV_NEAR = (
    *(2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087),
    *(-0.00125372503, -0.00417768164, 0.246640727, 1.50140941),
)
ERF_INV_FAR = (
    *(-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773),
    *(-0.0076224613, 0.00943887047, 1.00167406, 2.83297682),
)
_FRACTION_BITS = 23
_PARITY = 0x1BD11BDA
_WORD = 32


def install() -> None:
    """Registers the kernels for ``relax.transform.LegalizeOps``."""
    tvm.ir.register_op_attr(BITS, "FLegalize", _bits)
    tvm.ir.register_op_attr(NORMAL, "FLegalize", _normal)


def _bits(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    dtype = str(call.attrs["dtype"])

    def element(words: Any) -> Any:
        if dtype == "uint32":
            return _FOLD(dtype, words)
        return words if dtype == "uint64" else tirx.reinterpret(dtype, words)

    return _by_counters(builder, call, element, "random_bits")


def _normal(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    # Bounds of the error function. None is -1 or 1, so that no number is infinite.
    root = math.sqrt(2)
    low, high = (np.float32(math.erf(float(call.attrs[each]) / root)) for each in ("low", "high"))
    low = max(low, np.nextafter(np.float32(-1), np.float32(0)))
    bounds = [tirx.const(float(each), "float32") for each in (low, high - low)]
    least, most = (tirx.const(float(call.attrs[each]), "float32") for each in ("low", "high"))

    def element(words: Any) -> Any:
        fraction = _FRACTION("float32", _FOLD("uint32", words), *bounds)
        return tirx.min(tirx.max(_NORMAL("float32", fraction), least), most)

    return _by_counters(builder, call, element, "random_normal")


def _by_counters(
    builder: relax.BlockBuilder, call: relax.Call, element: Callable[[Any], Any], name: str
) -> Any:
    def kernel(key: te.Tensor, rows: te.Tensor, columns: te.Tensor) -> te.Tensor:
        counters = topi.add(rows, columns)
        return te.compute(
            counters.shape,
            lambda *place: element(_threefry(_unsigned(key()), _unsigned(counters(*place)))),
            name=name,
        )

    return builder.call_te(kernel, *call.args, primfunc_name_hint=name)


def _unsigned(value: Any) -> Any:
    return value.astype("uint64")


def _like(dtype: str, value: Any) -> str:
    """The dtype with as many lanes as a value."""
    lanes = int(value.ty.dtype.lanes)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _low(value: Any) -> Any:
    return tirx.Cast(_like("uint32", value), value)


def _high(value: Any) -> Any:
    return _low(value >> tirx.const(_WORD, value.ty))


def _packed(first: Any, second: Any) -> Any:
    wide = _like("uint64", first)
    return (tirx.Cast(wide, first) << tirx.const(_WORD, wide)) | tirx.Cast(wide, second)


# TVM's simplifier puts the value of a variable where it is read, so that 20 rounds in one
# expression take minutes. Each round is an opaque function of both words.


def _round(rotation: int) -> OpaqueFunction:
    def expression(words: Any) -> Any:
        second = _low(words)
        left, right = (tirx.const(each, second.ty) for each in (rotation, _WORD - rotation))
        turned = (second << left) | (second >> right)
        return bind(_high(words) + second, lambda first: _packed(first, turned ^ first))

    return OpaqueFunction(f"threefry_round_{rotation}", expression)


def _keys(group: int) -> OpaqueFunction:
    """The two words that are added in front of a group of four rounds, or behind the last one."""

    def expression(key: Any) -> Any:
        first, second = _high(key), _low(key)
        words = [first, second, first ^ second ^ tirx.const(_PARITY, first.ty)]
        words = [words[(group + place) % 3] for place in range(2)]
        return _packed(words[0], words[1] + tirx.const(group, first.ty))

    return OpaqueFunction(f"threefry_keys_{group}", expression)


def _sum(words: Any, more: Any) -> Any:
    return _packed(_high(words) + _high(more), _low(words) + _low(more))


_ROUNDS = [[_round(each) for each in group] for group in _ROTATIONS]
_KEYS = [_keys(group) for group in range(6)]
_FOLD = OpaqueFunction("threefry_fold", lambda words: _low(words) ^ _high(words))
_ADD = OpaqueFunction("threefry_add", _sum)


def _threefry(key: Any, counter: Any) -> Any:
    words = counter
    for group, keys in enumerate(_KEYS):
        words = _ADD("uint64", words, keys("uint64", key))
        if group < 5:
            for each in _ROUNDS[group % 2]:
                words = each("uint64", words)
    return words


def _fraction(bits: Any, low: Any, span: Any) -> Any:
    """Numbers of float32 in a range, as ``jax.random.uniform`` makes them of bits."""
    number = tirx.Cast(_like("float32", bits), bits >> tirx.const(_WORD - _FRACTION_BITS, bits.ty))
    found = number * tirx.const(2.0**-_FRACTION_BITS, number.ty) * _wide(span, number)
    return tirx.max(found + _wide(low, number), _wide(low, number))


def _wide(value: Any, like: Any) -> Any:
    lanes = int(like.ty.dtype.lanes)
    is_scalar = int(value.ty.dtype.lanes) == 1
    return tirx.Broadcast(value, lanes) if lanes > 1 and is_scalar else value


def _normal_of(x: Any) -> Any:
    """The root of 2 times the inverse of the error function."""

    def of_logarithm(w: Any) -> Any:
        near = _polynomial(w - tirx.const(2.5, w.ty), ERF_INV_NEAR)
        far = _polynomial(tirx.sqrt(w) - tirx.const(3.0, w.ty), ERF_INV_FAR)
        found = tirx.Select(w < tirx.const(5.0, w.ty), near, far)
        return found * x * tirx.const(math.sqrt(2), w.ty)

    one = tirx.const(1.0, x.ty)
    return bind(tirx.const(0.0, x.ty) - log((one - x) * (one + x)), of_logarithm)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    def of_bound(x: Any) -> Any:
        value = tirx.const(coefficients[0], x.ty)
        for each in coefficients[1:]:
            value = value * x + tirx.const(each, x.ty)
        return value

    return bind(x, of_bound)


_FRACTION = OpaqueFunction("random_fraction", _fraction)
_NORMAL = OpaqueFunction("random_normal", _normal_of)
