"""Numbers of what `hoist_gathers` has changed."""

import numpy as np
from tests.meshes import meshes
from tests.numerical.optimize.checks import assert_keeps_numbers
from tests.optimize.checks import tally
from tests.optimize.programs import Shared
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

NAME = "hoist_gathers"


@I.ir_module
class Recursive:
    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def grow(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        bound: R.DTensor((), "float32", "mesh[0]", "R"),
    ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
        R.func_attr({"distir.explicit_reductions": True})
        cls = Recursive
        v = R.dist.all_gather(w, "mesh[0]", "R")
        y = R.matmul(x, v)
        p = R.max(y)
        q = R.dist.all_reduce(p, "mesh[0]", "R", reduce_axes=[0], reduction="max")
        c = R.less(q, bound)
        if c:  # noqa: SIM108
            z = cls.grow(y, w, bound)
        else:
            z = R.nn.relu(y)
        return z

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        bound: R.DTensor((), "float32", "mesh[0]", "R"),
    ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
        R.func_attr({"distir.explicit_reductions": True})
        cls = Recursive
        a = cls.grow(x, w, bound)
        return a


def test_recursion_passes_the_gathered_value_on():
    x = np.ones((8, 8), "float32")
    w = np.full((8, 8), 0.25, "float32")
    bound = np.array(100, "float32")
    wanted = x @ w
    while wanted.max() < bound:
        wanted = wanted @ w
    result = assert_keeps_numbers(Recursive, dx.Mesh((2,), ("x",)), wanted, (x, w, bound), NAME)
    assert tally(result, NAME).matched == 1
    assert "all_gather" not in result["grow"].script()


def test_numbers():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((8, 8), "float32") for _ in range(2))
    assert_keeps_numbers(Shared, dx.Mesh((4,), ("x",)), x @ w @ w, (x, w), NAME)
