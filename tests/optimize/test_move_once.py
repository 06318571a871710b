"""Redistributes one operand in place of several results that would move in the same way."""

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_optimizes, tally


def test_results_that_move_alike():
    """Through several operators and a tuple, and beside a reader of the value as it is."""

    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            s: R.DTensor((), "float32", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.exp(a)
                c = R.multiply(x, s)
                t = (b, c)
                R.output(t)
            d = t[0]
            e = R.dist.all_to_all(d, "mesh[0]", "S[1]")
            f = t[1]
            g = R.dist.all_to_all(f, "mesh[0]", "S[1]")
            h = R.negative(x)
            return (e, g, h)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            s: R.DTensor((), "float32", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            v = R.dist.all_to_all(x, "mesh[0]", "S[1]")
            a = R.nn.relu(v)
            e = R.exp(a)
            g = R.multiply(v, s)
            h = R.negative(x)
            return (e, g, h)

    result = assert_optimizes(Before, Expected, "move_once")
    assert tally(result, "move_once").matched == 2


def test_the_shorter_type_moves():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float16", "mesh[0]", "S[0]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.astype(x, "float32")
            b = R.dist.all_gather(a, "mesh[0]", "R")
            c = R.astype(y, "float16")
            d = R.dist.all_gather(c, "mesh[0]", "R")
            e = R.nn.relu(y)
            f = R.dist.all_to_all(e, "mesh[0]", "S[1]")
            return (b, d, f)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float16", "mesh[0]", "S[0]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.dist.all_gather(x, "mesh[0]", "R")
            b = R.astype(a, "float32")
            c = R.astype(y, "float16")
            d = R.dist.all_gather(c, "mesh[0]", "R")
            e = R.nn.relu(y)
            f = R.dist.all_to_all(e, "mesh[0]", "S[1]")
            return (b, d, f)

    assert_optimizes(Before, Expected, "move_once")


def test_a_value_that_is_moved_in_any_case():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.nn.relu(x)
            b = R.dist.all_to_all(a, "mesh[0]", "S[1]")
            c = R.dist.all_to_all(x, "mesh[0]", "S[1]")
            return (b, c)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            v = R.dist.all_to_all(x, "mesh[0]", "S[1]")
            b = R.nn.relu(v)
            return (b, v)

    assert_optimizes(Before, Expected, "move_once")


def test_results_of_one_value_in_several_ways():
    """Several operators of one value, and the value itself in a tuple."""

    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.exp(x)
                b = R.add(x, a)
                t = (x, b)
                R.output(t)
            c = t[0]
            d = R.dist.all_to_all(c, "mesh[0]", "S[1]")
            e = t[1]
            f = R.dist.all_to_all(e, "mesh[0]", "S[1]")
            return (d, f)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.exp(x)
                b = R.add(x, a)
                t = (x, b)
                R.output(t)
            c = t[0]
            d = R.dist.all_to_all(c, "mesh[0]", "S[1]")
            f = R.exp(d)
            g = R.add(d, f)
            return (d, g)

    assert_optimizes(Before, Expected, "move_once")
