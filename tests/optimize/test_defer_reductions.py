"""Moves reductions behind operators that commute with them."""

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_optimizes, optimized, tally

NAME = "defer_reductions"


def test_the_sum_of_two_reductions_is_one():
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
                c = R.matmul(w, x)
                e = R.permute_dims(c)
                R.output(b, e)
            return (b, e)

    # w and x of the second product are sharded elsewhere, so nothing is to be reduced there.
    assert tally(optimized(Before, NAME), NAME).matched == 0

    @I.ir_module
    class Two:
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
                c = R.matmul(x, w)
                d = R.dist.all_reduce(c, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                e = R.negative(d)
                f = R.add(b, e)
                R.output(f)
            return f

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
                c = R.matmul(x, w)
                e = R.negative(c)
                f_1 = R.add(a, e)
                f = R.dist.all_reduce(f_1, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                R.output(f)
            return f

    result = assert_optimizes(Two, Expected, NAME)
    assert tally(result, NAME).matched == 1


def test_a_residual_is_added_behind_the_one_reduction():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.add(r, b)
                d = R.matmul(x, w)
                e = R.dist.all_reduce(d, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                f = R.add(c, e)
                R.output(f)
            return f

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                d = R.matmul(x, w)
                f1 = R.add(a, d)
                f2 = R.dist.all_reduce(f1, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                f = R.add(r, f2)
                R.output(f)
            return f

    assert_optimizes(Before, Expected, NAME)


def test_a_partial_and_a_whole_value_are_not_added_before_the_reduction():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 1), "float32", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.add(b, r)
                d = R.sum(c, axis=[1], keepdims=True)
                R.output(d)
            return d

    result = assert_optimizes(Before, Before, NAME)
    assert tally(result, NAME).skipped == {"its use does not commute": 1}


def test_reductions_of_different_kinds_do_not_merge():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.sum(x, axis=[1])
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.max(x, axis=[1])
                d = R.dist.all_reduce(c, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                e = R.add(b, d)
                f = R.maximum(b, d)
                R.output(e, f)
            return (e, f)

    result = assert_optimizes(Before, Before, NAME)
    assert tally(result, NAME).skipped == {"used more than once": 2}


def test_maxima_merge_through_maximum_but_not_through_add():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.max(x, axis=[1])
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                y = R.negative(x)
                c = R.max(y, axis=[1])
                d = R.dist.all_reduce(c, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                e = R.maximum(b, d)
                a2 = R.max(x, axis=[1])
                b2 = R.dist.all_reduce(a2, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                c2 = R.max(x, axis=[1])
                d2 = R.dist.all_reduce(c2, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                e2 = R.add(b2, d2)
                R.output(e, e2)
            return (e, e2)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.max(x, axis=[1])
                y = R.negative(x)
                c = R.max(y, axis=[1])
                e1 = R.maximum(a, c)
                e = R.dist.all_reduce(e1, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                a2 = R.max(x, axis=[1])
                b2 = R.dist.all_reduce(a2, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                c2 = R.max(x, axis=[1])
                d2 = R.dist.all_reduce(c2, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                e2 = R.add(b2, d2)
                R.output(e, e2)
            return (e, e2)

    assert_optimizes(Before, Expected, NAME)


def test_a_reduction_moves_to_where_it_is_smallest():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
            v: R.DTensor((8, 2), "float32", "mesh[0]", "R, R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "S[0], R", reduce_axes=[1], reduction="sum")
                c = R.permute_dims(b)
                d = R.permute_dims(c)
                e = R.matmul(d, v)
                f = R.repeat(e, 8, axis=1)
                R.output(f)
            return f

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
            v: R.DTensor((8, 2), "float32", "mesh[0]", "R, R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                c = R.permute_dims(a)
                d = R.permute_dims(c)
                e1 = R.matmul(d, v)
                e = R.dist.all_reduce(e1, "mesh[0]", "S[0], R", reduce_axes=[1], reduction="sum")
                f = R.repeat(e, 8, axis=1)
                R.output(f)
            return f

    assert_optimizes(Before, Expected, NAME)


def test_a_sum_over_a_further_sharded_dimension_takes_both_reductions():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "S[0], R", reduce_axes=[1], reduction="sum")
                c = R.sum(b, axis=[0])
                d = R.dist.all_reduce(c, "mesh[0]", "R, R", reduce_axes=[0], reduction="sum")
                R.output(d)
            return d

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2, 2)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R, S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                c = R.sum(a, axis=[0])
                d = R.dist.all_reduce(c, "mesh[0]", "R, R", reduce_axes=[0, 1], reduction="sum")
                R.output(d)
            return d

    assert_optimizes(Before, Expected, NAME)


def test_an_operand_sharded_over_the_same_axis_keeps_the_reduction_before_it():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 64), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((64, 64), "float32", "mesh[0]", "S[0]"),
            v: R.DTensor((64, 4), "float32", "mesh[0]", "S[1]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.matmul(b, v)
                R.output(c)
            return c

    result = assert_optimizes(Before, Before, NAME)
    assert tally(result, NAME).skipped == {"its use does not commute": 1}


def test_reduce_scatters_merge_with_a_sharded_residual():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                b = R.dist.reduce_scatter(a, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                c = R.add(r, b)
                d = R.matmul(x, w)
                e = R.dist.reduce_scatter(d, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                f = R.add(c, e)
                R.output(f)
            return f

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            r: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.matmul(x, w)
                d = R.matmul(x, w)
                f1 = R.add(a, d)
                f2 = R.dist.reduce_scatter(f1, "mesh[0]", "S[0]", reduce_axes=[0], reduction="sum")
                f = R.add(r, f2)
                R.output(f)
            return f

    assert_optimizes(Before, Expected, NAME)


def test_a_value_used_twice_is_reduced_at_once():
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
                c = R.add(b, b)
                R.output(c)
            return c

    result = assert_optimizes(Before, Before, NAME)
    assert tally(result, NAME).skipped == {"used more than once": 1}
