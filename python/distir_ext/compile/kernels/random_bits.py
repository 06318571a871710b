"""Legalises random_bits to a kernel of Threefry 2x32, with 20 rounds.

Source: J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.expressions import bind
from distir_ext.compile.kernels.opaque import OpaqueFunction
from distir_ext.native.random_bits import OPERATOR

__all__ = ["install"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_WORD = 32


def install() -> None:
    """Registers the kernel for ``relax.transform.LegalizeOps``."""
    tvm.ir.register_op_attr(OPERATOR, "FLegalize", _legalized)


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    dtype = str(call.attrs["dtype"])

    def random_bits(key: te.Tensor, rows: te.Tensor, columns: te.Tensor) -> te.Tensor:
        counters = topi.add(rows, columns)

        def element(*place: Any) -> Any:
            bits = _threefry(_unsigned(key()), _unsigned(counters(*place)))
            if dtype == "uint32":
                return _FOLD(dtype, bits)
            return bits if dtype == "uint64" else tirx.reinterpret(dtype, bits)

        return te.compute(counters.shape, element, name="random_bits")

    return builder.call_te(random_bits, *call.args, primfunc_name_hint="random_bits")


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
