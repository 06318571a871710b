"""Numbers of what `move_once` has changed."""

import numpy as np
from tests.numerical.optimize.checks import assert_same_numbers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def test_numbers():
    @I.ir_module
    class Program:
        @R.function
        def main(x: R.Tensor((8, 12), "float32")):
            with R.dataflow():
                p = R.nn.relu(x)
                q = R.exp(R.negative(x))
                R.output(p, q)
            return (p, q)

    x = np.random.default_rng(0).standard_normal((8, 12), "float32")
    plan = {"x": ("x", None), "return.0": (None, "x"), "return.1": (None, "x")}
    expected = (np.maximum(x, 0), np.exp(-x))
    assert_same_numbers(Program, dx.Mesh((4,), ("x",)), plan, expected, (x,), "move_once")
