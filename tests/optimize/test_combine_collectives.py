"""Combines small collectives of one kind into one collective."""

import re

import pytest
import tvm
from tests.meshes import meshes
from tests.optimize.programs import Everything
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_optimizes, optimized, tally

NAME = "combine_collectives"


@I.ir_module
class Reductions:
    I.module_global_infos(meshes((4,)))

    @R.function
    def main(
        x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        y: R.DTensor((8, 4, 6), "float32", "mesh[0]", "S[0]"),
    ):
        R.func_attr({"distir.explicit_reductions": True})
        with R.dataflow():
            a = R.sum(x, axis=[1])
            b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            c = R.exp(b)
            d = R.sum(y, axis=[0])
            e = R.dist.all_reduce(d, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            f = R.max(y, axis=[0])
            g = R.dist.all_reduce(f, "mesh[0]", "R", reduce_axes=[0], reduction="max")
            h = R.multiply(e, g)
            R.output(c, h)
        return (c, h)


def test_what_is_used_at_once_is_combined_and_what_it_needs_comes_first():
    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            y: R.DTensor((8, 4, 6), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.sum(x, axis=[1])
                d = R.sum(y, axis=[0])
                both = R.dist.all_reduce(
                    (a, d), "mesh[0]", ["R", "R"], reduce_axes=[0], reduction="sum"
                )
                b = both[0]
                e = both[1]
                c = R.exp(b)
                f = R.max(y, axis=[0])
                g = R.dist.all_reduce(f, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                h = R.multiply(e, g)
                R.output(c, h)
            return (c, h)

    result = assert_optimizes(Reductions, Expected, NAME)
    assert tally(result, NAME).matched == 1


def test_one_that_needs_another_is_not_combined_with_it():
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
                c = R.dist.slice(b, "mesh[0]", "S[1]")
                d = R.matmul(c, w)
                e = R.dist.all_reduce(d, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                R.output(e)
            return e

    assert_optimizes(Before, Before, NAME)


def test_one_that_is_read_late_waits_for_another():
    """It joins the smallest; one that is read before that cannot wait."""

    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            y: R.DTensor((8, 4, 6), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                p = R.sum(y, axis=[0])
                q = R.dist.all_reduce(p, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                s = R.sum(x, axis=[1])
                t = R.dist.all_reduce(s, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                a = R.matmul(x, w)
                b = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.dist.slice(b, "mesh[0]", "S[1]")
                u = R.add(c, t)
                d = R.sum(u, axis=[1])
                e = R.dist.all_reduce(d, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                r = R.exp(q)
                R.output(e, r)
            return (e, r)

    result = optimized(Before, NAME)
    assert tally(result, NAME).matched == 2
    assert re.findall(r"R\.dist\.all_reduce\(\((.*?)\)", result.script()) == ["s, a", "p, d"]


def test_interleaved_kinds_make_no_cycle():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.max(x, axis=[1])
                a1 = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                a2 = R.subtract(x, R.expand_dims(a1, axis=[1]))
                b = R.sum(a2, axis=[1])
                b1 = R.dist.all_reduce(b, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c = R.sum(y, axis=[1])
                c1 = R.dist.all_reduce(c, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
                c2 = R.subtract(y, R.expand_dims(c1, axis=[1]))
                d = R.max(c2, axis=[1])
                d1 = R.dist.all_reduce(d, "mesh[0]", "R", reduce_axes=[0], reduction="max")
                R.output(b1, d1)
            return (b1, d1)

    assert tally(optimized(Before, NAME), NAME).matched == 0


@pytest.mark.parametrize(("size", "matched", "skipped"), [(192, 1, {}), (191, 0, {"too large": 2})])
def test_buckets_have_a_size(size, matched, skipped):
    # Arguments of 32, 96 and 96 bytes; one of more than half a bucket leaves room for no other.
    found = tally(optimized(Reductions, NAME, combine_bytes=size), NAME)
    assert (found.matched, found.skipped) == (matched, skipped)


def test_nothing_moves_past_a_call_that_may_have_an_effect():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function(pure=False)
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.sum(x, axis=[1])
            a1 = R.dist.all_reduce(a, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            _ = R.print(a1, format="{}")
            b = R.sum(y, axis=[1])
            b1 = R.dist.all_reduce(b, "mesh[0]", "R", reduce_axes=[0], reduction="sum")
            c = R.add(a1, b1)
            return c

    result = optimized(Before, NAME)
    assert tally(result, NAME).matched == 0


def test_a_tuple_needs_one_placement_for_each_field():
    x = Reductions["main"].params[0]
    mesh = x.ty.device_mesh
    with pytest.raises(ValueError, match="all_gather of a tuple takes one placement"):
        relax.BlockBuilder().normalize(R.dist.all_gather((x, x), mesh, ["R"]))
    with pytest.raises(ValueError, match="all_to_all of a tuple is not known"):
        relax.BlockBuilder().normalize(R.dist.all_to_all((x, x), mesh, ["S[0]", "S[0]"]))


def test_an_optimised_module_goes_through_the_whole_pipeline():
    result = optimized(Everything)
    tvm.ir.assert_structural_equal(
        dx.lower(result)["main"], dx.transform.LowerDistIR()(result)["main"]
    )
