"""Attention with and without bias, masks and grouped queries."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import relax, tirx
from tvm.relax.op import nn

from ..case import Case, Operand

# Batch, sequence of the query, of the key, heads of the query, of the key, depth, depth of values.
SIZES = [
    (4, 6, 8, 4, 4, 8, 8),
    (2, 8, 8, 6, 6, 3, 4),
    (1, 4, 7, 8, 8, 4, 2),
    (2, 4, 5, 8, 4, 4, 4),
    (2, 4, 4, 8, 1, 4, 6),
]


def cases() -> Iterator[Case]:
    for batch, queries, keys, heads, key_heads, depth, value_depth in SIZES:
        grouped = heads != key_heads
        query_heads = "(hr)" if grouped else "h"
        for mask in (None, "TopLeft", "BottomRight"):
            if mask is not None and queries > keys:
                continue
            operands = (
                Operand((batch, queries, heads, depth), f"bs{query_heads}."),
                Operand((batch, keys, key_heads, depth), "bth."),
                Operand((batch, keys, key_heads, value_depth), "bthe"),
            )
            result = f"bs{query_heads}e"
            sizes = {"h": key_heads, "r": heads // key_heads}
            yield Case(
                "relax.nn.attention",
                f"mask={mask} ",
                operands,
                (result,),
                lambda q, k, v, mask=mask: nn.attention(q, k, v, causal_mask=mask),
                decomposed="t",
                sizes=sizes,
            )
            for bias, letters in (
                ((batch, heads, queries, keys), f"b{query_heads}st"),
                ((1, 1, queries, keys), "..st"),
                ((batch, 1, 1, keys), "b..t"),
            ):
                if mask is not None and bias[1] == 1:
                    continue
                letters = "." + letters[1:] if bias[0] == 1 else letters
                yield Case(
                    "relax.nn.attention_bias",
                    f"mask={mask} ",
                    (*operands, Operand(bias, letters)),
                    (result,),
                    lambda q, k, v, b, mask=mask: nn.attention(
                        q, k, v, b, scale=tirx.FloatImm("float32", 0.3), causal_mask=mask
                    ),
                    decomposed="t",
                    sizes=sizes,
                )
    for heads, key_heads, depth in ((4, 4, 6), (8, 4, 2)):
        names = "(hr)" if heads != key_heads else "h"
        yield Case(
            "relax.nn.attention_var_len",
            "",
            (
                Operand((1, 9, heads, 4), f"..{names}."),
                Operand((1, 9, key_heads, 4), "..h."),
                Operand((1, 9, key_heads, depth), "..he"),
                Operand((4,), ".", "int32", "starts 9"),
            ),
            (f"..{names}e",),
            lambda q, k, v, starts: nn.attention_var_len(q, k, v, starts, relax.const(9, "int32")),
            sizes={"h": key_heads, "r": heads // key_heads},
        )
