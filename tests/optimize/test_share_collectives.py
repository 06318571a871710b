"""Replaces a repeated collective of one value by the result of the first."""

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_optimizes, tally


def test_equal_gathers_are_shared():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.nn.relu(a)
                c = R.dist.all_gather(x, "mesh[0]", "R")
                d = R.add(b, c)
                e = R.dist.all_to_all(x, "mesh[0]", "S[1]")
                R.output(d, e)
            return (d, e)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.nn.relu(a)
                d = R.add(b, a)
                e = R.dist.all_to_all(x, "mesh[0]", "S[1]")
                R.output(d, e)
            return (d, e)

    result = assert_optimizes(Before, Expected, "share_collectives")
    assert tally(result, "share_collectives").matched == 1


def test_a_gather_inside_a_branch_is_not_seen_outside_but_one_before_it_is_seen_inside():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            z: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            p = R.dist.all_gather(z, "mesh[0]", "R")
            if c:
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.dist.all_gather(z, "mesh[0]", "R")
                y = R.add(a, b)
            else:
                a = R.dist.all_gather(x, "mesh[0]", "R")
                y = R.nn.relu(a)
            q = R.dist.all_gather(x, "mesh[0]", "R")
            r = R.add(y, q)
            s = R.add(r, p)
            return s

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            z: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            p = R.dist.all_gather(z, "mesh[0]", "R")
            if c:
                a = R.dist.all_gather(x, "mesh[0]", "R")
                y = R.add(a, p)
            else:
                a = R.dist.all_gather(x, "mesh[0]", "R")
                y = R.nn.relu(a)
            q = R.dist.all_gather(x, "mesh[0]", "R")
            r = R.add(y, q)
            s = R.add(r, p)
            return s

    result = assert_optimizes(Before, Expected, "share_collectives")
    assert tally(result, "share_collectives").matched == 1
    assert tally(result, "share_collectives").skipped == {"out of sight": 2}


def test_what_another_dataflow_block_keeps_to_itself_is_not_shared():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(x, "mesh[0]", "R")
                b = R.nn.relu(a)
                R.output(b)
            m = R.nn.gelu(b)
            with R.dataflow():
                c = R.dist.all_gather(x, "mesh[0]", "R")
                d = R.add(m, c)
                R.output(d)
            return d

    assert_optimizes(Before, Before, "share_collectives")
