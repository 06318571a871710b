"""Collectives that undo each other."""

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_optimizes, optimized, tally


def test_slice_of_gather_is_nothing():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.dist.slice(a, "mesh[0]", "S[0]")
                c = R.nn.relu(b)
                R.output(c)
            return c

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                c = R.nn.relu(x)
                R.output(c)
            return c

    result = assert_optimizes(Before, Expected, "cancel_collectives")
    assert tally(result, "cancel_collectives").matched == 1


def test_gather_then_slice_of_another_dimension_is_all_to_all():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((1024, 1024), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.dist.slice(a, "mesh[0]", "S[1]")
                R.output(b)
            return b

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((1024, 1024), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                b = R.dist.all_to_all(x, "mesh[0]", "S[1]")
                R.output(b)
            return b

    assert_optimizes(Before, Expected, "cancel_collectives")


def test_all_to_all_and_back_is_nothing_even_if_its_value_is_used():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_to_all(x, "mesh[0]", "S[1]")
                b = R.dist.all_to_all(a, "mesh[0]", "S[0]")
                c = R.nn.relu(b)
                R.output(a, c)
            return (a, c)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_to_all(x, "mesh[0]", "S[1]")
                c = R.nn.relu(x)
                R.output(a, c)
            return (a, c)

    assert_optimizes(Before, Expected, "cancel_collectives")


def test_gather_that_has_other_uses_stays():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.dist.slice(a, "mesh[0]", "S[1]")
                R.output(a, b)
            return (a, b)

    assert_optimizes(Before, Before, "cancel_collectives")


def test_views_are_looked_through():
    @I.ir_module
    class Before:
        I.module_global_infos(
            {"mesh": [R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2, 2), I.Range(0, 4))]}
        )

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.view(x, "mesh[1]", "S[0], S[0]")
                b = R.dist.view(a, "mesh[0]", "S[0]")
                c = R.dist.all_gather(a, "mesh[1]", "S[0], R")
                d = R.nn.relu(b)
                R.output(c, d)
            return (c, d)

    @I.ir_module
    class Expected:
        I.module_global_infos(
            {"mesh": [R.device_mesh((4,), I.Range(0, 4)), R.device_mesh((2, 2), I.Range(0, 4))]}
        )

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                c = R.dist.all_gather(x, "mesh[1]", "S[0], R")
                d = R.nn.relu(x)
                R.output(c, d)
            return (c, d)

    assert_optimizes(Before, Expected, "cancel_collectives")


def test_a_gather_in_another_branch_is_not_looked_through():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            if c:
                a = R.nn.relu(x)
                b = R.dist.all_gather(a, "mesh[0]", "R")
                y = R.nn.gelu(b)
            else:
                b = R.dist.all_gather(x, "mesh[0]", "R")
                y = R.nn.silu(b)
            z = R.dist.slice(y, "mesh[0]", "S[0]")
            return z

    result = optimized(Before, "cancel_collectives")
    assert tally(result, "cancel_collectives").matched == 0
