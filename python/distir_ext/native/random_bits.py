"""Calls of the operator ``relax.dist.random_bits``, whose bits do not depend on the mesh."""

from __future__ import annotations

import tvm
from tvm import relax

OPERATOR = "relax.dist.random_bits"
"""Threefry 2x32 of a key and counters."""


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
    return relax.Call(tvm.ir.Op.get(OPERATOR), [key, rows, columns], attrs)
