"""Products over merged dimensions are sharded where their operands are."""

from __future__ import annotations

import pytest
import tvm
from tests.propagation.stacked_products import (
    MESH,
    Attention,
    Chain,
    Einsum,
    MergedAttention,
    Symbolic,
    UsedMerged,
    annotated,
)
from tvm import relax

import distir_ext as dx


@pytest.mark.parametrize("mod", [Attention, Einsum, Symbolic, Chain, MergedAttention])
def test_nothing_is_communicated(mod):
    assert dx.analysis.collectives(dx.lower(annotated(mod))) == []


def test_product_is_sharded_even_where_its_result_is_needed_merged():
    (product,) = matmuls(dx.transform.PropagateSharding()(annotated(UsedMerged))["main"])
    assert [int(spec.axis) for spec in product.ty.placement.dim_specs] == [1]


def test_merged_operands_are_dropped_where_nothing_needs_them():
    main = dx.transform.PropagateSharding()(annotated(Attention))["main"]
    names = [binding.var.name for block in main.body.blocks for binding in block.bindings]
    assert names == ["scores", "divided", "shares", "out", "y"]


@pytest.mark.parametrize(
    ("a", "b", "merged_a", "merged_b"),
    [
        ((2, 4, 3, 5), (4, 2, 5, 6), (8, 3, 5), (8, 5, 6)),  # other dimensions in each
        ((8, 3, 5), (2, 4, 5, 6), (8, 3, 5), (8, 5, 6)),  # one operand only
        ((2, 6, 5), (2, 2, 15), (4, 3, 5), (4, 5, 3)),  # dimensions that are divided, not merged
    ],
)
def test_other_products_stay_as_they_are(a, b, merged_a, merged_b):
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("a", a), ("b", b))]
    with builder.function("main", params):
        merged = (
            builder.emit(relax.op.reshape(param, shape))
            for param, shape in zip(params, (merged_a, merged_b), strict=True)
        )
        builder.emit_func_output(builder.emit(relax.op.matmul(*merged)))
    plan = {"a": None, "b": None}
    mod = dx.transform.PropagateSharding()(dx.annotate(builder.get(), MESH, plan))
    (product,) = matmuls(mod["main"])
    assert tuple(product.ty.tensor_ty.shape.values) == (merged_a[0], merged_a[1], merged_b[2])


def matmuls(function):
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.matmul"):
            found.append(expr)

    relax.analysis.post_order_visit(function, visit)
    return found
