"""Numbers of what `defer_reductions` has changed."""

import numpy as np
import pytest
from tests.numerical.optimize.checks import assert_keeps_numbers, assert_same_numbers
from tests.optimize.checks import tally
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.passes.transform import LegalizeRedistribute, PropagateSharding, SetCluster

NAME = "defer_reductions"


@I.ir_module
class Products:
    @R.function
    def main(
        r: R.Tensor((8, 8), "float32"),
        x: R.Tensor((8, 8), "float32"),
        w: R.Tensor((8, 8), "float32"),
        v: R.Tensor((8, 8), "float32"),
        g: R.Tensor((8, 1), "float32"),
    ):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.multiply(a, g)
            c = R.matmul(x, v)
            d = R.reshape(c, (4, 2, 8))
            e = R.reshape(d, (8, 8))
            f = R.subtract(b, e)
            h = R.add(r, f)
            i = R.matmul(x, w)
            j = R.matmul(x, v)
            k = R.add(h, i)
            m = R.add(k, j)
            n = R.max(R.add(R.max(x, axis=[1]), g), axis=[0])
            R.output(m, n)
        return (m, n)


@pytest.mark.parametrize(
    ("shape", "plan"),
    [
        ((4,), {"r": (None, None), "x": (None, "x"), "w": ("x", None), "v": ("x", None)}),
        ((2, 2), {"r": ("x", None), "x": ("x", "y"), "w": ("y", None), "v": ("y", None)}),
        (
            (2, 2),
            {
                "r": (None, None),
                "x": (None, ("x", "y")),
                "w": (("x", "y"), None),
                "v": (("x", "y"), None),
            },
        ),
        ((2, 2), {"r": (None, "x"), "x": (None, "y"), "w": ("y", "x"), "v": ("y", "x")}),
    ],
)
def test_numbers(shape, plan):
    rng = np.random.default_rng(0)
    r, x, w, v = (rng.standard_normal((8, 8), "float32") for _ in range(4))
    g = rng.standard_normal((8, 1), "float32")
    m = r + (x @ w) * g - x @ v + x @ w + x @ v
    n = (x.max(1) + g).max(0)
    mesh = dx.Mesh(shape, ("x", "y")[: len(shape)])
    result = assert_same_numbers(Products, mesh, plan, (m, n), (r, x, w, v, g), NAME)
    assert tally(result, NAME).matched >= 1
    counts = {
        each.kind: each.count
        for each in dx.analysis.collectives(dx.transform.LowerDistIR()(result))
    }
    assert counts["all_reduce"] <= 2


@I.ir_module
class LargeSum:
    @R.function
    def main(x: R.Tensor((256, 64), "float32"), w: R.Tensor((64, 256), "float32")):
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.multiply(a, R.const(2.0, "float32"))
            R.output(b)
        return b


@pytest.mark.parametrize(
    ("shape", "devices", "hosts", "per_host"),
    [
        ((1, 8), range(8), 2, 4),
        ((1, 8), range(0, 16, 2), 2, 8),
        ((8,), range(8), 4, 2),
        ((4,), range(2, 6), 2, 4),
        ((2, 4), range(8), 4, 2),
    ],
)
def test_numbers_of_a_sum_within_hosts_and_then_between_them(shape, devices, hosts, per_host):
    """A reduce-scatter, an all-reduce of what it gives, and an all-gather."""
    names = ("dp", "tp")[-len(shape) :]
    mesh = dx.Mesh(shape, names, device_ids=devices)
    link = dx.Link(latency=0.0, bandwidth=1e9), dx.Link(latency=0.0, bandwidth=1e8)
    cluster = dx.Cluster.of_hosts(hosts, per_host, within=link[0], between=link[1], launch=0.0)
    annotated = dx.annotate(LargeSum, mesh, {"x": (None, "tp"), "w": ("tp", None)})
    legal = LegalizeRedistribute()(PropagateSharding()(SetCluster(cluster)(annotated)))
    assert "reduce_scatter" in legal.script()
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(size).astype("float32") for size in ((256, 64), (64, 256)))
    assert_keeps_numbers(legal, mesh, 2 * (x @ w), (x, w))
