"""Writes an all-reduce followed by a slice as a reduce-scatter."""

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_optimizes, tally


def test_all_reduce_then_slice_is_reduce_scatter():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.dist.slice(b, "mesh[0]", "S[0]")
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                c = R.dist.reduce_scatter(a, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                R.output(c)
            return c

    result = assert_optimizes(Before, Expected, "scatter_reductions")
    assert tally(result, "scatter_reductions").matched == 1


def test_slice_by_one_of_two_axes_is_planned_with_the_reduction():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.DTensor((8192, 8192), "float32", "mesh[0]", "S[1], S[1]"),
            w: R.DTensor((8192, 8192), "float32", "mesh[0]", "S[0], S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R, R", reduce_axes=[0, 1], reduction="sum")
                c = R.dist.slice(b, "mesh[0]", "R, S[0]")
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        I.module_global_infos(
            {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2, 2), [0, 2, 1, 3])]}
        )

        @R.function
        def main(
            x: R.DTensor((8192, 8192), "float32", "mesh[0]", "S[1], S[1]"),
            w: R.DTensor((8192, 8192), "float32", "mesh[0]", "S[0], S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.reduce_scatter(
                    a, "mesh[1]", "S[0], S[0]", reduce_axes=[0, 1], reduction="sum"
                )
                c = R.dist.all_gather(b, "mesh[0]", "R, S[0]")
                R.output(c)
            return c

    assert_optimizes(Before, Expected, "scatter_reductions")


def test_all_reduce_with_another_use_stays():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.dist.slice(b, "mesh[0]", "S[0]")
                R.output(b, c)
            return (b, c)

    assert_optimizes(Before, Before, "scatter_reductions")


def test_a_slice_moves_up_through_operators_to_the_reduction():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            g: R.DTensor((8,), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.add(r, b)
                d = R.nn.rms_norm(c, g, axes=[1], epsilon=1e-5)
                e = R.reshape(d, (4, 2, 8))
                f = R.dist.slice(e, "mesh[0]", "S[0]")
                R.output(f)
            return f

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            g: R.DTensor((8,), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                r1 = R.dist.slice(r, "mesh[0]", "S[0]")
                b = R.dist.reduce_scatter(a, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                c = R.add(r1, b)
                d = R.nn.rms_norm(c, g, axes=[1], epsilon=1e-5)
                f = R.reshape(d, (4, 2, 8))
                R.output(f)
            return f

    result = assert_optimizes(Before, Expected, "scatter_reductions")
    assert tally(result, "scatter_reductions").matched == 4


def test_a_slice_of_the_normalised_dimension_stays_behind_the_norm():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.nn.softmax(b, axis=1)
                d = R.dist.slice(c, "mesh[0]", "S[1]")
                R.output(d)
            return d

    assert_optimizes(Before, Before, "scatter_reductions")


def test_a_slice_that_meets_no_reduction_stays():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "R")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.dist.slice(a, "mesh[0]", "S[0]")
                R.output(b)
            return b

    assert_optimizes(Before, Before, "scatter_reductions")
