"""Numbers of what `defer_reductions` has changed."""

import numpy as np
import pytest
from tests.numerical.optimize.checks import assert_same_numbers
from tests.optimize.checks import tally
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

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
