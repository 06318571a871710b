"""Numbers of what `cancel_collectives` has changed."""

import numpy as np
from tests.numerical.optimize.checks import assert_same_numbers
from tests.optimize.checks import tally
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


def test_numbers():
    @I.ir_module
    class Program:
        @R.function
        def main(x: R.Tensor((8, 12), "float32")):
            with R.dataflow():
                whole = R.nn.relu(x)
                columns = R.negative(whole)
                R.output(columns)
            return columns

    x = np.random.default_rng(0).standard_normal((8, 12), "float32")
    plan = {"x": ("x", None), "whole": (None, None), "columns": (None, "x")}
    result = assert_same_numbers(
        Program,
        dx.Mesh((4,), ("x",)),
        plan,
        -np.maximum(x, 0),
        (x,),
        "cancel_collectives",
    )
    assert tally(result, "cancel_collectives").matched == 1
