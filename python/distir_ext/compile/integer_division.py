"""Defines integer division by 0, and of the least integer by -1, which crash on most CPUs.

Here they are what NumPy gives: by 0, quotient and remainder are 0; the least number by -1 is
itself, and leaves 0. Only divisions of data are guarded: those of the indices and sizes of a
kernel are as they were, so that they cost nothing and TVM proves of them what it did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir.expr import TensorLoad
from tvm.tirx.buffer import BufferType

from distir_ext.compile.kernels.legalizations.dtypes import is_float
from distir_ext.compile.kernels.legalizations.kernel_builder import KernelBuilder
from distir_ext.compile.kernels.opaque import OpaqueFunction

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

__all__ = ["guard_divisions", "legalizations"]

_QUOTIENTS = (tirx.Div, tirx.FloorDiv)
_DIVISIONS = (*_QUOTIENTS, tirx.Mod, tirx.FloorMod)
_OPERATORS = ("relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod")


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also divisions by the number 0, which TVM refuses.

    Args:
        others: Legalisations by operator.
    """
    made = dict(others)
    for name in _OPERATORS:
        other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
        made[name] = _with_unknown_zero(other)
    return made


def _with_unknown_zero(other: Legalization) -> Legalization:
    """A kernel that is written with a zero of which TVM does not know the value."""

    def hidden(value: Any) -> Any:
        if not isinstance(value, tirx.IntImm) or value.value != 0:
            return value
        one = tirx.const(1, value.ty)
        return _hidden(_hidden(one)) - one  # LLVM takes a reinterpreted 0 for a pointer

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        return other(KernelBuilder(builder, operand=hidden), call)

    return legalize


def guard_divisions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose divisions of data have a value for all numbers.

    Data is what is read from a buffer, and what is computed of it; as a divisor also a number that
    a loop counts, a scalar argument that is no size of a buffer, and what a function returns.
    """
    data: set[Any] = set()
    divisors: set[Any] = set()
    sizes: set[Any] = set()
    found: list[Any] = []

    def bound(node: Any) -> None:
        if _reads(node.value, data):
            data.add(node.var)

    tvm_ffi.structural_walk(function, (_DIVISIONS, found.append))
    if all(_is_plain(node) for node in found):
        return function
    tvm_ffi.structural_walk(
        function,
        (
            ((tirx.Let, tirx.Bind), bound),
            (tirx.For, lambda node: divisors.add(node.loop_var)),
            (tirx.IterVar, lambda node: divisors.add(node.var)),
            (BufferType, lambda each: tvm_ffi.structural_walk(each.shape, (tirx.Var, sizes.add))),
        ),
        order="pre",
    )
    divisors |= {each for each in function.params if each not in sizes} | data

    def guard(node: Any) -> Any:
        if _is_plain(node):
            return node
        is_data = _reads(node.a, data) or _reads(node.b, divisors, calls=True)
        return _guarded(node) if is_data else node

    return tvm_ffi.structural_map(function, (_DIVISIONS, guard))


def _is_plain(node: Any) -> bool:
    """Returns True for a division of floats, or by a constant that always has a quotient."""
    if is_float(node.a.ty.dtype):
        return True
    divisor = node.b.value if isinstance(node.b, tirx.Broadcast) else node.b
    return isinstance(divisor, tirx.IntImm) and divisor.value not in (0, -1)


def _reads(value: Any, variables: set[Any], *, calls: bool = False) -> bool:
    """Returns True if an expression reads a buffer or one of the variables, or has a call."""
    found = False

    def see(node: Any) -> None:
        nonlocal found
        found = found or not isinstance(node, tirx.Var) or node in variables

    kinds = (tirx.Var, TensorLoad, *([tvm.ir.Call] if calls else []))
    tvm_ffi.structural_walk(value, (kinds, see))
    return found


def _guarded(node: Any) -> Any:
    return _GUARDED[type(node)](node.ty, node.a, node.b)


def _hidden(value: Any) -> Any:
    """Its bits as an integer with a sign or without one, of which TVM knows nothing."""
    dtype = str(value.ty.dtype)
    return tirx.reinterpret(dtype[1:] if dtype.startswith("u") else f"u{dtype}", value)


def _divided(division: Any, x: Any, y: Any) -> Any:
    """A division by 1 in place of what has no quotient; it leaves 0.

    It stays so where a kernel asks for zeros itself: TVM leaves out what a condition around it has
    decided, and computes both sides of a selection.
    """
    dtype, bits = x.ty, _hidden(y)
    zero = tirx.const(0, bits.ty)
    is_zero = tirx.EQ(bits, zero)
    has_none = is_zero
    if not str(dtype.dtype).startswith("uint"):
        is_minus_one = tirx.EQ(tirx.bitwise_not(bits), zero)
        is_least_or_zero = tirx.EQ(tirx.shift_left(_hidden(x), tirx.const(1, bits.ty)), zero)
        has_none = tirx.Or(is_zero, tirx.And(is_minus_one, is_least_or_zero))
    found = division(x, tirx.Select(has_none, tirx.const(1, dtype), y))
    if division not in _QUOTIENTS:
        return found
    return tirx.Mul(found, tirx.Cast(dtype, tirx.Not(is_zero)))


_GUARDED = {
    division: OpaqueFunction(division.__name__, functools.partial(_divided, division))
    for division in _DIVISIONS
}
