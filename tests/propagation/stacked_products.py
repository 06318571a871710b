"""Products of stacks of matrices whose batch dimensions are merged."""

from __future__ import annotations

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


def annotated(mod):
    plan = {}
    for param in mod["main"].params:
        if param.ty.ndim > 3:
            plan[param.name] = (None, "tp", *[None] * (param.ty.ndim - 2))
    if mod is Einsum:
        plan["b"] = (None, None, "tp", None, None, None)
    return dx.annotate(mod, MESH, plan)
