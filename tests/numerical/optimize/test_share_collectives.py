"""Numbers of what `share_collectives` has changed."""

import numpy as np
from tests.numerical.optimize.checks import assert_same_numbers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def test_numbers():
    @I.ir_module
    class Program:
        @R.function
        def main(
            x: R.Tensor((8, 8), "float32"),
            a: R.Tensor((8, 8), "float32"),
            b: R.Tensor((8, 8), "float32"),
        ):
            with R.dataflow():
                p = R.matmul(x, a)
                q = R.matmul(x, b)
                r = R.add(p, q)
                R.output(r)
            return r

    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal((8, 8), "float32") for _ in range(3))
    plan = {"x": ("x", None), "a": (None, "x"), "b": (None, "x")}
    assert_same_numbers(
        Program,
        dx.Mesh((4,), ("x",)),
        plan,
        x @ a + x @ b,
        (x, a, b),
        "share_collectives",
    )
