"""Attention whose key heads serve several query heads each, for ``relax.transform.LegalizeOps``.

TVM's kernels for ``R.nn.attention`` take as many key heads as query heads, and read beyond the keys
where there are fewer: with 8 query heads and 2 key heads, query head 5 reads key head 5. It should
read key head 1, of 5 // (8 / 2). The heads are repeated first, so that the kernels are right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_HEADS = 2
"""The dimension of heads in query, key and value: [batch, sequence, heads, depth]."""


def repeat_shared_heads(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """Legalisations by operator, with those of attention after shared heads are repeated."""
    names = ("relax.nn.attention", "relax.nn.attention_bias")
    return {**others, **{name: _legalize(name, others.get(name)) for name in names}}


def _legalize(name: str, other: Legalization | None) -> Legalization:
    default = other or tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        query, key, value, *bias = call.args
        query_heads, key_heads = _heads(query), _heads(key)
        if query_heads is None or key_heads is None or query_heads == key_heads:
            return default(builder, call)
        repeats = query_heads // key_heads
        key, value = (builder.emit(relax.op.repeat(x, repeats, _HEADS)) for x in (key, value))
        wide = relax.Call(call.op, [query, key, value, *bias], call.attrs)
        return default(builder, builder.normalize(wide))

    return legalize


def _heads(tensor: relax.Expr) -> int | None:
    """Returns the number of heads; None if it is symbolic or unknown."""
    shape = tensor.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    size = shape.values[_HEADS]
    return int(size) if isinstance(size, tvm.tirx.IntImm) else None
