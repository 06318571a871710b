"""Plans by name shard what a function computes, of whatever it is made."""

import logging
import re

import pytest
import tvm
from tvm.relax.frontend import nn
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import named_plan

MESH = dx.Mesh(dp=3, tp=2)


@I.ir_module
class Packed:
    """Weights in a tuple of tuples."""

    @R.function
    def main(
        x: R.Tensor((6, 64), "float32"),
        p: R.Tuple(
            R.Tensor((64, 96), "float32"),
            R.Tuple(R.Tensor((96, 64), "float32"), R.Tensor((64,), "float32")),
        ),
    ) -> R.Tensor((6, 64), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            up = p[0]
            rest = p[1]
            down = rest[0]
            bias = rest[1]
            h = R.nn.gelu(R.matmul(x, up))
            y = R.add(R.matmul(h, down), bias)
            R.output(y)
        return y


@I.ir_module
class Layers:
    """A layer is a function, which calls another."""

    @R.function
    def product(x: R.Tensor((6, 64), "float32"), w: R.Tensor((64, 64), "float32")) -> R.Tensor(
        (6, 64), "float32"
    ):
        y = R.matmul(x, w)
        return y

    @R.function
    def layer(
        x: R.Tensor((6, 64), "float32"),
        up: R.Tensor((64, 64), "float32"),
        down: R.Tensor((64, 64), "float32"),
    ) -> R.Tensor((6, 64), "float32"):
        cls = Layers
        h = R.nn.relu(cls.product(x, up))
        y = R.add(x, cls.product(h, down))
        return y

    @R.function
    def main(
        x: R.Tensor((6, 64), "float32"),
        w0: R.Tensor((64, 64), "float32"),
        w1: R.Tensor((64, 64), "float32"),
    ) -> R.Tensor((6, 64), "float32"):
        R.func_attr({"num_input": 1})
        cls = Layers
        y = cls.layer(x, w0, w1)
        return y


@I.ir_module
class Branches:
    """The pair of products is in a branch, and the last product behind it."""

    @R.function
    def main(
        x: R.Tensor((6, 64), "float32"),
        c: R.Tensor((), "bool"),
        up: R.Tensor((64, 96), "float32"),
        down: R.Tensor((96, 64), "float32"),
        head: R.Tensor((64, 80), "float32"),
    ) -> R.Tensor((6, 80), "float32"):
        R.func_attr({"num_input": 2})
        if c:
            h = R.nn.silu(R.matmul(x, up))
            y = R.matmul(h, down)
        else:
            y = x
        z = R.matmul(y, head)
        return z


@I.ir_module
class Heads:
    """Weights with a dimension for heads, as of flax."""

    @R.function
    def main(
        x: R.Tensor((6, "n", 64), "float32"),
        v: R.Tensor((64, 4, 24), "float32"),
        o: R.Tensor((4, 24, 64), "float32"),
    ) -> R.Tensor((6, "n", 64), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            h = R.nn.relu(R.einsum((x, v), "bsd,dhk->bshk"))
            y = R.add(x, R.einsum((h, o), "bshk,hkd->bsd"))
            R.output(y)
        return y


class FeedForward(nn.Module):
    def __init__(self):
        self.up = nn.Linear(64, 96)
        self.down = nn.Linear(96, 64, bias=False)

    def forward(self, x):
        return x + self.down(nn.op.gelu(self.up(x)))


def feed_forward():
    mod, _ = FeedForward().export_tvm({"forward": {"x": nn.spec.Tensor([6, 64], "float32")}})
    return mod


TP = {
    "packed": (Packed, "main", {"p.0": (None, "tp"), "p.1.0": ("tp", None), "p.1.1": (None,)}),
    "layers": (Layers, "main", {"w0": (None, "tp"), "w1": ("tp", None)}),
    "branches": (
        Branches,
        "main",
        {"up": (None, "tp"), "down": ("tp", None), "head": (None, "tp")},
    ),
    "heads": (Heads, "main", {"v": (None, "tp", None), "o": ("tp", None, None)}),
    "frontend": (
        feed_forward(),
        "forward",
        {"up.weight": ("tp", None), "up.bias": ("tp",), "down.weight": (None, "tp")},
    ),
}


@pytest.mark.every_case
@pytest.mark.parametrize("case", TP)
def test_pairs_of_products_send_one_sum(case):
    mod, func, weights = TP[case]
    for mesh in (MESH, dx.Mesh(dp=2, fsdp=2, tp=2)):
        found = named_plan(mod, "tp", Axes(mesh, {}), func, None).dims
        assert found.pop("x")[0] == "dp"
        assert found == weights
        lowered = dx.lower(dx.annotate(mod, mesh, "tp", func))
        sent = dx.analysis.collectives(lowered)
        assert [(each.kind, each.axes, each.count) for each in sent] == [("all_reduce", ("tp",), 1)]


def test_fsdp_shards_fields_of_tuples():
    found = named_plan(Packed, "fsdp", Axes(MESH, {}), "main", None)
    assert found.dims == {"p.0": (None, "dp"), "p.1.0": ("dp", None), "x": ("dp", None)}
    assert "p.1.1: left to propagation, 64 elements are fewer than min_elements=1024" in found.notes


def test_kernels_count_as_the_operators_that_they_were(caplog):
    mod = tvm.relax.transform.LegalizeOps()(Layers)
    with caplog.at_level(logging.INFO, "distir_ext.annotate"):
        found = named_plan(mod, "tp", Axes(MESH, {}), "main", None)
    assert found.dims["w0"] == (None, "tp")
    assert "tp: w1: ('tp', None) by rows, after the columns of w0" in caplog.messages


@pytest.mark.parametrize(
    ("plan", "mesh", "message"),
    [
        ("tp", dx.Mesh(tp=8), "the plan 'tp' finds nothing to shard in main: v: left to .* 4 col"),
        ("hf", MESH, "'hf' is what a model of transformers brings .* by name are 'tp', 'fsdp'"),
        ("search", MESH, "'search' is called 'auto' for modules"),
    ],
)
@pytest.mark.every_case
def test_plans_that_do_not_fit(plan, mesh, message):
    with pytest.raises(ValueError, match=message):
        dx.annotate(Heads, mesh, plan)


def test_names_are_no_patterns():
    found = named_plan(Packed, "tp", Axes(MESH, {}), "main", None)
    assert re.escape("p.1.0") in found.patterns
