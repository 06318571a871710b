"""Translates stablehlo.rng_bit_generator (Threefry, Philox), with the bits that XLA makes.

The algorithms are those of J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
XLA says which counter each element has. The state is replicated; what is computed of counters may
be sharded as any other elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.operations.shapes import joined, numbers, reshaped, sliced
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    enumerator,
    numpy_dtype,
    shape_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)

Pair = tuple[relax.Expr, relax.Expr]


class _Integers:
    """Arithmetic of unsigned integers, modulo their size.

    Args:
        writer: Writes it.
    """

    def __init__(self, writer: Writer) -> None:
        self.emit = writer.emit

    def _made(self, build: Callable[..., relax.Expr], a: relax.Expr, b: Any) -> relax.Expr:
        other = b if isinstance(b, relax.Expr) else relax.const(b, str(a.ty.dtype))
        return self.emit(build(a, other))

    def add(self, a: relax.Expr, b: Any) -> relax.Expr:
        return self._made(relax_op.add, a, b)

    def multiply(self, a: relax.Expr, b: Any) -> relax.Expr:
        return self._made(relax_op.multiply, a, b)

    def xor(self, a: relax.Expr, *more: Any) -> relax.Expr:
        for b in more:
            a = self._made(relax_op.bitwise_xor, a, b)
        return a

    def rotated(self, a: relax.Expr, count: int) -> relax.Expr:
        left = self._made(relax_op.left_shift, a, count)
        return self._made(
            relax_op.bitwise_or, left, self._made(relax_op.right_shift, a, 32 - count)
        )

    def cast(self, a: relax.Expr, dtype: str) -> relax.Expr:
        return self.emit(relax_op.astype(a, dtype))

    def halves(self, a: relax.Expr) -> Pair:
        """The low and the high 32 bits."""
        high = self._made(relax_op.right_shift, a, 32)
        return self.cast(a, "uint32"), self.cast(high, "uint32")

    def whole(self, low: relax.Expr, high: relax.Expr) -> relax.Expr:
        """64 bits of two halves."""
        upper = self._made(relax_op.left_shift, self.cast(high, "uint64"), 32)
        return self._made(relax_op.bitwise_or, upper, self.cast(low, "uint64"))

    def carried(self, total: relax.Expr, part: relax.Expr, high: relax.Expr) -> relax.Expr:
        """The upper bits of a sum whose lower ones are ``total``, of ``part`` and another."""
        overflow = self.emit(relax_op.less(total, part))
        return self.add(high, self.cast(overflow, "uint64"))


def _threefry(of: _Integers, counter: Pair, key: Pair) -> Pair:
    keys = [*key, of.xor(key[0], key[1], _PARITY)]
    a, b = of.add(counter[0], keys[0]), of.add(counter[1], keys[1])
    for step in range(5):
        for place in range(4):
            a = of.add(a, b)
            b = of.xor(of.rotated(b, _ROTATIONS[step % 2 * 4 + place]), a)
        a = of.add(a, keys[(step + 1) % 3])
        b = of.add(of.add(b, keys[(step + 2) % 3]), step + 1)
    return a, b


def _philox(of: _Integers, state: Sequence[relax.Expr], key: Pair) -> list[relax.Expr]:
    found, keys = list(state), list(key)
    for _ in range(10):
        (low_0, high_0), (low_1, high_1) = (
            of.halves(of.multiply(of.cast(found[place], "uint64"), factor))
            for place, factor in zip((0, 2), _MULTIPLIERS, strict=True)
        )
        found = [
            of.xor(high_1, found[1], keys[0]),
            low_1,
            of.xor(high_0, found[3], keys[1]),
            low_0,
        ]
        keys = [of.add(each, step) for each, step in zip(keys, _WEYL, strict=True)]
    return found


@translates("stablehlo.rng_bit_generator")
def _bits(writer: Writer, op: Operation) -> list[Known]:
    algorithm, sizes = enumerator(op, "rng_algorithm"), shape_of(op.operands[0])
    if algorithm == "DEFAULT":  # as XLA on CPUs
        algorithm = "PHILOX"
    if dtype_of(op.operands[0]) != "uint64" or sizes != (2,):
        raise UnsupportedError(f"with a state of {dtype_of(op.operands[0])} {sizes}")
    state = writer.full(op.operands[0])
    key, start = (
        reshaped(writer, sliced(writer, state, [place], [place + 1]), []) for place in range(2)
    )
    shape, dtype = shape_of(op.results[1]), dtype_of(op.results[1])
    generate = {"PHILOX": _by_philox, "THREE_FRY": _by_threefry}.get(algorithm)
    if generate is None:
        raise UnsupportedError(f"by {algorithm}")
    of = _Integers(writer)
    made, count = generate(writer, of, key, start, shape, numpy_dtype(dtype).itemsize == 8)
    if str(made.ty.dtype) != dtype:
        made = of.cast(made, dtype)
    ends = [reshaped(writer, each, [1]) for each in (key, of.add(start, count))]
    return [joined(writer, ends, 0), made]


def _by_threefry(
    writer: Writer,
    of: _Integers,
    key: relax.Expr,
    start: relax.Expr,
    shape: tuple[int, ...],
    is_double: bool,
) -> tuple[relax.Expr, int]:
    """Threefry's bits, and how many counters they take.

    A counter gives 64 bits: one element, or two that are neighbours along one dimension, the first
    even one or else the longest.
    """
    even = [dim for dim, size in enumerate(shape) if size % 2 == 0]
    longest = max(range(len(shape)), key=lambda dim: shape[dim], default=0)
    split = None if is_double or not shape else (even or [longest])[0]
    halved = [-(-size // 2) if dim == split else size for dim, size in enumerate(shape)]
    count = math.prod(halved)
    counters = of.add(reshaped(writer, numbers(writer, count, "uint64"), halved), start)
    pair = _threefry(of, of.halves(counters), of.halves(key))
    if is_double:
        return of.whole(*pair), count
    if split is None:
        return pair[0], count
    wide = [
        reshaped(writer, each, [*halved[: split + 1], 1, *halved[split + 1 :]]) for each in pair
    ]
    both = [2 * size if dim == split else size for dim, size in enumerate(halved)]
    made = reshaped(writer, joined(writer, wide, split + 1), both)
    return sliced(writer, made, [0] * len(shape), shape), count


def _by_philox(
    writer: Writer,
    of: _Integers,
    key: relax.Expr,
    start: relax.Expr,
    shape: tuple[int, ...],
    is_double: bool,
) -> tuple[relax.Expr, int]:
    """Philox's bits, and how many counters they take: each gives 128 bits to the next elements."""
    total = math.prod(shape)
    count = -(-total // (2 if is_double else 4))
    counters = of.add(numbers(writer, count, "uint64"), start)
    upper = of.carried(counters, start, key)
    parts = _philox(of, [*of.halves(counters), *of.halves(upper)], of.halves(key))
    if is_double:
        parts = [of.whole(*parts[:2]), of.whole(*parts[2:])]
    columns = [reshaped(writer, each, [count, 1]) for each in parts]
    row = reshaped(writer, joined(writer, columns, 1), [count * len(parts)])
    return reshaped(writer, sliced(writer, row, [0], [total]), shape), count
