"""Calls of the operators that make random numbers, which do not depend on the mesh."""

from __future__ import annotations

import math

import tvm
from tvm import relax

BITS = "relax.dist.random_bits"
"""Threefry 2x32 of a key and counters."""

NORMAL = "relax.dist.random_normal"
"""Numbers of the normal distribution, by these bits."""


def random_bits(
    key: relax.Expr, rows: relax.Expr, columns: relax.Expr, dtype: str = "uint32"
) -> relax.Call:
    """Random bits, each element from its counter alone, as ``jax.random.bits``.

    Args:
        key: A scalar of 64 bits, which is two words of Threefry, the upper one first.
        rows: Counters of 64 bits; their upper word is the first one of Threefry.
        columns: Counters that are added, broadcast as operands of a sum.
        dtype: ``"uint32"``, the exclusive or of Threefry's two words, or ``"uint64"`` or
            ``"int64"``, which have both, the first one above.

    Returns:
        The call.
    """
    attrs = tvm.ir.make_node("ir.DictAttrs", dtype=dtype)
    return relax.Call(tvm.ir.Op.get(BITS), [key, rows, columns], attrs)


def random_normal(
    key: relax.Expr,
    rows: relax.Expr,
    columns: relax.Expr,
    low: float = -math.inf,
    high: float = math.inf,
) -> relax.Call:
    """Numbers of float32 of the normal distribution between two bounds, as ``jax.random.normal``.

    Args:
        key: As of :func:`random_bits`, as counters are.
        rows: Counters.
        columns: Counters that are added.
        low: The least number.
        high: The highest number.

    Returns:
        The call.
    """
    attrs = tvm.ir.make_node("ir.DictAttrs", low=float(low), high=float(high))
    return relax.Call(tvm.ir.Op.get(NORMAL), [key, rows, columns], attrs)
