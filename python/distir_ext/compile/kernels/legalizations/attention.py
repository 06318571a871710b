"""Legalises grouped-query attention, and rewrites attention as two products and a softmax.

TVM's kernels for ``R.nn.attention`` take as many key heads as query heads, and read beyond the keys
where there are fewer: with 8 query heads and 2 key heads, query head 5 reads key head 5. It should
read key head 1, of 5 // (8 / 2). The heads are repeated first, so that the kernels are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from distir_ext.compile.kernels.expressions import static_sizes
from distir_ext.compile.kernels.legalizations.dtypes import is_float
from distir_ext.compile.kernels.legalizations.rewrite_calls import rewrite_calls

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
    sizes = static_sizes(tensor)
    return sizes[_HEADS] if sizes and sizes[_HEADS] >= 0 else None


def has_plain_length(call: relax.Call) -> bool:
    """Returns whether the number of keys is a number or a variable.

    TVM's kernel compares sizes by identity, so that ``m + 1`` keys are not ``m + 1`` values to it.
    """
    shape = call.args[1].ty.shape
    plain = tirx.IntImm | tirx.Var
    return not isinstance(shape, relax.ShapeExpr) or isinstance(shape.values[1], plain)


def as_products(is_one_kernel: Callable[[relax.Call], bool]) -> tvm.transform.Pass:
    """Attention as two products and a softmax, which have schedules and libraries of their own.

    Args:
        is_one_kernel: True for calls that stay.
    """

    def rewrite(call: relax.Call) -> relax.Expr:
        is_left = _heads(call.args[0]) is None or _heads(call.args[1]) is None
        is_left = is_left or not is_float(call.args[0].ty.dtype)  # refused by its legalization
        if is_left or call.attrs.window_size is not None or is_one_kernel(call):
            return call
        return _products(call)

    operators = {"relax.nn.attention": 3, "relax.nn.attention_bias": 4}
    return rewrite_calls(operators, rewrite, "AttentionAsProducts")


def _products(call: relax.Call) -> relax.Expr:
    """Returns softmax(query keys^T) values: heads of queries are (key head, query of its group)."""
    query, key, value, *bias = call.args
    batch, queries, heads, depth = query.ty.shape.values
    keys, key_heads = key.ty.shape.values[1:3]
    value_depth = value.ty.shape.values[-1]
    group = int(heads) // int(key_heads)
    rows = [batch, key_heads, group, queries]
    wide = "float64" if str(query.ty.dtype) == "float64" else "float32"

    query = relax.op.permute_dims(query, [0, 2, 1, 3])
    query = relax.op.reshape(query, [*rows, depth])
    key, value = (
        relax.op.expand_dims(relax.op.permute_dims(each, axes), [2])
        for each, axes in ((key, [0, 2, 3, 1]), (value, [0, 2, 1, 3]))
    )
    scale = 1 / math.sqrt(int(depth)) if call.attrs.scale is None else float(call.attrs.scale)
    scores = relax.op.matmul(query, key, out_dtype=wide)
    scores = relax.op.multiply(scores, relax.const(scale, wide))
    scores = relax.op.reshape(scores, [batch, heads, queries, keys])
    for each in bias:
        scores = relax.op.add(scores, relax.op.astype(each, wide))
    if call.attrs.causal_mask is not None:
        offset = tirx.abs(keys - queries) if call.attrs.causal_mask == "BottomRight" else 0
        ones = relax.op.full([queries, keys], relax.const(1, "int32"), "int32")
        seen = relax.op.astype(relax.op.tril(ones, offset), "bool")
        scores = relax.op.where(seen, scores, relax.const(-math.inf, wide))
    weights = relax.op.reshape(relax.op.nn.softmax(scores), [*rows, keys])
    mixed = relax.op.matmul(weights, relax.op.astype(value, wide))
    mixed = relax.op.reshape(
        relax.op.astype(mixed, str(call.ty.dtype)), [batch, heads, queries, value_depth]
    )
    return relax.op.permute_dims(mixed, [0, 2, 1, 3])
