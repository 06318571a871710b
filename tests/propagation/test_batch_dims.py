"""Products over merged dimensions are sharded where their operands are."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2,), ("tp",))


@I.ir_module
class Attention:
    @R.function
    def main(
        q: R.Tensor((2, 4, 3, 8), "float32"),
        k: R.Tensor((2, 4, 8, 3), "float32"),
        v: R.Tensor((2, 4, 3, 8), "float32"),
    ) -> R.Tensor((2, 4, 3, 8), "float32"):
        with R.dataflow():
            q1 = R.reshape(q, (8, 3, 8))
            k1 = R.reshape(k, (8, 8, 3))
            scores = R.matmul(q1, k1)
            divided = R.reshape(scores, (2, 4, 3, 3))
            shares = R.nn.softmax(divided, axis=-1)
            s1 = R.reshape(shares, (8, 3, 3))
            v1 = R.reshape(v, (8, 3, 8))
            out = R.matmul(s1, v1)
            y = R.reshape(out, (2, 4, 3, 8))
            R.output(y)
        return y


@I.ir_module
class Einsum:
    """The dimensions behind the batch are merged too, and some have size 1."""

    @R.function
    def main(
        a: R.Tensor((2, 4, 3, 5, 1), "float32"), b: R.Tensor((2, 1, 4, 5, 2, 3), "float32")
    ) -> R.Tensor((2, 4, 3, 1, 2, 3), "float32"):
        a1 = R.reshape(a, (8, 3, 5))
        b1 = R.reshape(b, (8, 5, 6))
        c1 = R.matmul(a1, b1)
        return R.reshape(c1, (2, 4, 3, 1, 2, 3))


@I.ir_module
class Symbolic:
    @R.function
    def main(
        a: R.Tensor(("n", 4, 3, 5), "float32"), b: R.Tensor(("n", 4, 5, 6), "float32")
    ) -> R.Tensor(("n", 4, 3, 6), "float32"):
        n = T.int64()
        a1 = R.reshape(a, (n * 4, 3, 5))
        b1 = R.reshape(b, (n * 4, 5, 6))
        c1 = R.matmul(a1, b1)
        return R.reshape(c1, (n, 4, 3, 6))


@I.ir_module
class UsedMerged:
    """The product and an operand are needed merged too."""

    @R.function
    def main(a: R.Tensor((2, 4, 3, 5), "float32"), b: R.Tensor((2, 4, 5, 6), "float32")) -> R.Tuple(
        R.Tensor((8, 3, 6), "float32"), R.Tensor((8, 3, 5), "float32")
    ):
        a1 = R.reshape(a, (8, 3, 5))
        b1 = R.reshape(b, (8, 5, 6))
        c1 = R.matmul(a1, b1)
        c2 = R.nn.relu(c1)
        a2 = R.nn.relu(a1)
        return (c2, a2)


@I.ir_module
class Chain:
    """A product of a product, and a reshape of what is merged to another merged shape."""

    @R.function
    def main(
        a: R.Tensor((2, 4, 3, 3), "float32"), b: R.Tensor((2, 4, 3, 3), "float32")
    ) -> R.Tensor((2, 4, 9), "float32"):
        a1 = R.reshape(a, (8, 3, 3))
        b1 = R.reshape(b, (8, 3, 3))
        c1 = R.matmul(a1, b1)
        b2 = R.reshape(b1, (8, 3, 3))
        d1 = R.matmul(c1, b2)
        return R.reshape(d1, (2, 4, 9))


@I.ir_module
class MergedAttention:
    """Scaled, masked and normalised with batch and heads merged, as torch's own attention is."""

    @R.function
    def main(
        q: R.Tensor((2, 4, 3, 8), "float32"),
        k: R.Tensor((2, 4, 8, 3), "float32"),
        v: R.Tensor((2, 4, 3, 8), "float32"),
        mask: R.Tensor((2, 4, 3, 3), "float32"),
        causal: R.Tensor((1, 3, 3), "float32"),
        bias: R.Tensor((3,), "float32"),
    ) -> R.Tensor((2, 4, 3, 8), "float32"):
        with R.dataflow():
            q1 = R.reshape(q, (8, 3, 8))
            k1 = R.reshape(k, (8, 8, 3))
            v1 = R.reshape(v, (8, 3, 8))
            scores = R.matmul(q1, k1)
            scaled = R.multiply(scores, R.const(0.25, "float32"))
            m1 = R.reshape(mask, (8, 3, 3))
            masked = R.add(R.add(R.add(m1, scaled), causal), bias)
            shares = R.nn.softmax(masked, axis=2)
            kept = R.clip(shares, 0.05, 1)
            out = R.matmul(kept, v1)
            y = R.reshape(out, (2, 4, 3, 8))
            R.output(y)
        return y


@I.ir_module
class AcrossTheBatch:
    """A softmax over what is merged keeps it so, and what has it by itself."""

    @R.function
    def main(
        a: R.Tensor((2, 4, 3, 3), "float32"),
        b: R.Tensor((2, 4, 3, 3), "float32"),
        c: R.Tensor((8, 3, 3), "float32"),
    ) -> R.Tuple(R.Tensor((8, 3, 3), "float32"), R.Tensor((8, 3, 3), "float32")):
        a1 = R.reshape(a, (8, 3, 3))
        b1 = R.reshape(b, (8, 3, 3))
        d = R.matmul(a1, b1)
        return (R.nn.softmax(d, axis=0), R.add(R.nn.relu(d), c))


@I.ir_module
class Branches:
    @R.function
    def main(
        flag: R.Tensor((), "bool"),
        a: R.Tensor((2, 4, 3, 3), "float32"),
        b: R.Tensor((2, 4, 3, 3), "float32"),
    ) -> R.Tensor((2, 4, 3, 3), "float32"):
        a1 = R.reshape(a, (8, 3, 3))
        if flag:
            b1 = R.reshape(b, (8, 3, 3))
            c1 = R.matmul(a1, b1)
            r = R.reshape(c1, (2, 4, 3, 3))
        else:
            b2 = R.reshape(b, (8, 3, 3))
            b3 = R.reshape(a, (8, 3, 3))
            c2 = R.matmul(b3, b2)
            r = R.reshape(c2, (2, 4, 3, 3))
        return r


def annotated(mod):
    plan = {}
    for param in mod["main"].params:
        if param.ty.ndim > 3:
            plan[param.name] = (None, "tp", *[None] * (param.ty.ndim - 2))
    if mod is Einsum:
        plan["b"] = (None, None, "tp", None, None, None)
    return dx.annotate(mod, MESH, plan)


def arguments(mod):
    generator = np.random.default_rng(5)
    values = []
    for param in mod["main"].params:
        shape = [int(d) if isinstance(d, tvm.tirx.IntImm) else 3 for d in param.ty.shape.values]
        values.append(generator.standard_normal(shape).astype(str(param.ty.dtype)))
    return values


def arrays(result):
    fields = result if isinstance(result, (list, tuple, tvm.ir.Array)) else [result]
    return [np.array(field.numpy()) for field in fields]


def unpartitioned(mod, values):
    with tvm.transform.PassContext(disabled_pass=["StaticPlanBlockMemory"]):
        machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    return arrays(machine["main"](*map(tvm.runtime.tensor, values)))


@pytest.mark.parametrize(
    "mod",
    [
        Attention,
        Einsum,
        Symbolic,
        UsedMerged,
        Chain,
        Branches,
        MergedAttention,
        AcrossTheBatch,
    ],
    ids=lambda mod: "",
)
def test_results_are_those_of_the_original(mod):
    values = arguments(mod)
    expected = unpartitioned(mod, values)
    with dx.Session(MESH) as session:
        actual = arrays(session.load(dx.build(annotated(mod), QUICK))["main"](*values))
    assert len(actual) == len(expected)
    for got, want in zip(actual, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


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
