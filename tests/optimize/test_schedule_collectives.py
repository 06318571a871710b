"""Order of collectives and of the operators that use their results."""

import pytest
from tests.meshes import meshes
from tests.optimize.programs import Weights
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

from .checks import assert_optimizes, optimized, tally

NAME = "schedule_collectives"


def test_collectives_start_early_and_their_users_come_late():
    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w1: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w2: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(w1, "mesh[0]", "R")
                d = R.dist.all_gather(w2, "mesh[0]", "R")
                c = R.nn.relu(y)
                b = R.matmul(x, a)
                e = R.matmul(c, d)
                f = R.add(b, e)
                R.output(f)
            return f

    result = assert_optimizes(Weights, Expected, NAME)
    assert tally(result, NAME).matched == 1


def test_gathers_wait_where_their_results_would_take_too_much_memory():
    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w1: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w2: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(w1, "mesh[0]", "R")
                c = R.nn.relu(y)
                d = R.dist.all_gather(w2, "mesh[0]", "R")
                b = R.matmul(x, a)
                e = R.matmul(c, d)
                f = R.add(b, e)
                R.output(f)
            return f

    # Each gives 256 bytes.
    assert_optimizes(Weights, Expected, NAME, prefetch_bytes=511)


@pytest.mark.parametrize(
    ("prefetch_bytes", "expected"),
    [(255, "a b t1 c t2 d"), (256, "a t1 b c t2 d"), (512, "a t1 t2 b c d")],
)
def test_what_comes_early_takes_little_memory(prefetch_bytes, expected):
    """Each transposed weight takes 256 bytes until it is used."""

    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w1: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            w2: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                a = R.dist.all_gather(w, "mesh[0]", "R")
                b = R.matmul(x, a)
                t1 = R.permute_dims(w1)
                c = R.matmul(b, t1)
                t2 = R.permute_dims(w2)
                d = R.matmul(c, t2)
                R.output(d)
            return d

    text = optimized(Before, NAME, prefetch_bytes=prefetch_bytes).script()
    names = [line.split(":")[0].strip() for line in text.splitlines() if " = R." in line]
    assert names == expected.split()


def test_calls_with_effects_keep_their_place():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function(pure=False)
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            a = R.nn.relu(x)
            _ = R.print(a, format="{}")
            b = R.dist.all_gather(w, "mesh[0]", "R")
            c = R.matmul(a, b)
            return c

    assert_optimizes(Before, Before, NAME)


def test_nothing_moves_past_what_defines_a_dimension():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function
        def main(
            x: R.DTensor((8, "n"), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            n = T.int64()
            m = T.int64()
            with R.dataflow():
                a = R.nn.relu(x)
                s = R.match_cast(a, R.DTensor((8, m), "float32", "mesh[0]", "S[0]"))
                b = R.dist.all_gather(s, "mesh[0]", "R")
                c = R.nn.relu(s)
                d = R.dist.all_gather(w, "mesh[0]", "R")
                R.output(b, c, d)
            return (b, c, d)

    text = optimized(Before, NAME).script()
    lines = [line.split(":")[0].strip() for line in text.splitlines() if " = R." in line]
    assert lines[:2] == ["a", "s"]
    assert sorted(lines[2:4]) == ["b", "d"]


def test_branches_are_scheduled_by_themselves():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            if c:
                p = R.nn.relu(x)
                a = R.dist.all_gather(w, "mesh[0]", "R")
                y = R.matmul(p, a)
            else:
                y = R.nn.gelu(x)
            z = R.exp(y)
            b = R.dist.all_gather(w, "mesh[0]", "R")
            r = R.matmul(z, b)
            return r

    text = optimized(Before, NAME).script()
    lines = [line.split(":")[0].strip() for line in text.splitlines() if " = R." in line]
    assert lines == ["a", "p", "y_then", "y_else", "b", "z", "r"]
