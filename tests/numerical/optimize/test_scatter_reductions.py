"""Numbers of what `scatter_reductions` has changed."""

import numpy as np
from tests.meshes import meshes
from tests.numerical.optimize.checks import assert_keeps_numbers
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Normalised:
    I.module_global_infos(meshes((2, 2)))

    @R.function
    def main(
        r: R.DTensor((8, 8), "float32", "mesh[0]", "R, R"),
        g: R.DTensor((8,), "float32", "mesh[0]", "R, R"),
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1], S[1]"),
        w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[0]"),
    ):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            a = R.matmul(x, w)
            b = R.dist.all_reduce(a, "mesh[0]", "R, R", reduce_axes=[0, 1], reduction="sum")
            c = R.add(r, b)
            d = R.nn.rms_norm(c, g, axes=[1], epsilon=1e-5)
            e = R.permute_dims(d)
            f = R.reshape(e, (8, 4, 2))
            h = R.dist.slice(f, "mesh[0]", "R, S[1]")
            R.output(h)
        return h


def test_numbers():
    rng = np.random.default_rng(0)
    r, x, w = (rng.standard_normal((8, 8), "float32") for _ in range(3))
    g = rng.standard_normal(8, "float32")
    c = r + x @ w
    d = c / np.sqrt((c**2).mean(1, keepdims=True) + 1e-5) * g
    wanted = d.T.reshape(8, 4, 2)
    # Without latency several collectives of less are better than one of more.
    fast = Normalised.with_attr(
        "distir.cluster", {"latency": [0.0], "gap": [0.0], "bandwidth": [1e9], "launch": 0.0}
    )
    result = assert_keeps_numbers(
        fast, dx.Mesh((2, 2), ("x", "y")), wanted, (r, g, x, w), "scatter_reductions"
    )
    kinds = [each.kind for each in dx.analysis.collectives(dx.transform.LowerDistIR()(result))]
    assert kinds[0] == "reduce_scatter"
