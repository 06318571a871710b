"""Numbers of what `sequence_parallel` has changed."""

import numpy as np
import pytest
from tests.meshes import meshes
from tests.numerical.optimize.checks import assert_keeps_numbers
from tests.optimize.checks import assert_optimizes, optimized, tally
from tests.optimize.programs import counts, legal, sent
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.demo import llama
from distir_ext.demo.run import relative_rmse, run_unpartitioned

NAME = "sequence_parallel"


def test_norm_between_reduction_and_products_runs_on_shards():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 16), "float32", "mesh[0]", "R"),
            g: R.DTensor((16,), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
            v: R.DTensor((16, 32), "float32", "mesh[0]", "S[1]"),
            u: R.DTensor((16, 8), "float32", "mesh[0]", "S[1]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.add(r, b)
                d = R.nn.rms_norm(c, g, axes=[1], epsilon=1e-5)
                e = R.matmul(d, v)
                f = R.matmul(d, u)
                R.output(e, f)
            return (e, f)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 16), "float32", "mesh[0]", "R"),
            g: R.DTensor((16,), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
            v: R.DTensor((16, 32), "float32", "mesh[0]", "S[1]"),
            u: R.DTensor((16, 8), "float32", "mesh[0]", "S[1]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.reduce_scatter(a, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                r1 = R.dist.slice(r, "mesh[0]", "S[0]")
                c = R.add(r1, b)
                d1 = R.nn.rms_norm(c, g, axes=[1], epsilon=1e-5)
                d = R.dist.all_gather(d1, "mesh[0]", "R")
                e = R.matmul(d, v)
                f = R.matmul(d, u)
                R.output(e, f)
            return (e, f)

    result = assert_optimizes(Before, Expected, NAME)
    assert tally(result, NAME).matched == 1
    assert sent(result) == sent(Before)
    rng = np.random.default_rng(0)
    shapes = ((8, 16), (16,), (8, 32), (32, 16), (16, 32), (16, 8))
    r, g, x, w, v, u = inputs = [rng.standard_normal(s, "float32") for s in shapes]
    c = r + x @ w
    d = c / np.sqrt(np.mean(c * c, axis=1, keepdims=True) + 1e-5) * g
    mesh = dx.Mesh((4,), ("tp",))
    assert_keeps_numbers(Before, mesh, [d @ v, d @ u], inputs, NAME, tolerance=1e-4)


@pytest.mark.large
def test_the_decoder_of_the_demonstration_keeps_its_numbers():
    case = llama.llama_case(llama.LlamaConfig(layers=2))
    mod = legal(case.annotate(case.module))
    result = optimized(mod, NAME)
    assert counts(result) == {"reduce_scatter": 4, "all_gather": 4}
    with dx.Session(case.workers) as session:
        model = session.load(dx.build(result), params=case.weights)
        actual = model[case.function](*case.inputs.values()).numpy()
    assert relative_rmse(actual, run_unpartitioned(case)) < 1e-6


def test_a_branch_reads_the_whole_value():
    @I.ir_module
    class Program:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((32, 16), "float32", "mesh[0]", "S[0]"),
            cond: R.DTensor((), "bool", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.matmul(x, w)
            b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            c = R.nn.relu(b)
            d = R.sqrt(c)
            if cond:
                e = R.add(c, c)
                f = e
            else:
                e = R.multiply(d, d)
                f = e
            return f

    result = optimized(Program, NAME)
    # relu is gathered, so the root is computed on what is whole anyway.
    assert counts(result) == {"reduce_scatter": 1, "all_gather": 1}
    x = np.ones((8, 32), "float32")
    w = np.full((32, 16), 0.5, "float32")
    with dx.Session(4) as session:
        model = session.load(dx.build(result))
        for cond, wanted in ((True, 32.0), (False, 16.0)):
            got = model["main"](x, w, np.array(cond)).numpy()
            np.testing.assert_allclose(got, np.full((8, 16), wanted), rtol=1e-5)
