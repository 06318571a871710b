"""Moves all-gathers of parameters from callees to their callers."""

import tvm
from tests.meshes import meshes
from tests.optimize.programs import Shared
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_optimizes, optimized, tally

NAME = "hoist_gathers"


def test_a_weight_of_several_calls_is_gathered_once():
    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((4,)))

        @R.function(private=True)
        def layer(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                y = R.matmul(x, w)
                R.output(y)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            weight: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            cls = Expected
            with R.dataflow():
                v = R.dist.all_gather(weight, "mesh[0]", "R")
                a = cls.layer(x, v)
                b = cls.layer(a, v)
                R.output(b)
            return b

    result = assert_optimizes(Shared, Expected, NAME)
    assert tally(result, NAME).matched == 1


def test_a_function_called_once_with_each_value_stays():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((4,)))

        @R.function(private=True)
        def layer(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                v = R.dist.all_gather(w, "mesh[0]", "R")
                y = R.matmul(x, v)
                R.output(y)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w1: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w2: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            cls = Before
            with R.dataflow():
                a = cls.layer(x, w1)
                b = cls.layer(a, w2)
                R.output(b)
            return b

    result = assert_optimizes(Before, Before, NAME)
    assert tally(result, NAME).skipped == {"called once with each value": 1}


def test_a_public_function_keeps_its_signature():
    text = Shared.script(show_meta=True)
    public = text.replace("@R.function(private=True)", "@R.function")
    result = optimized(tvm.script.from_source(public), NAME)
    assert tally(result, NAME).matched == 0


def test_a_gather_that_only_one_branch_needs_stays_there():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def layer(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            if c:
                v = R.dist.all_gather(w, "mesh[0]", "R")
                y = R.matmul(x, v)
            else:
                y = R.nn.relu(x)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            c: R.DTensor((), "bool", "mesh[0]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            cls = Before
            a = cls.layer(x, w, c)
            b = cls.layer(a, w, c)
            return b

    assert_optimizes(Before, Before, NAME)


def test_a_function_that_somebody_may_call_unseen_keeps_its_parameters():
    @I.ir_module
    class Given:
        I.module_global_infos(meshes((4,)))

        @R.function(private=True)
        def layer(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            R.func_attr({"distir.explicit_reductions": True})
            with R.dataflow():
                v = R.dist.all_gather(w, "mesh[0]", "R")
                y = R.matmul(x, v)
                R.output(y)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            weight: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            R.func_attr({"distir.explicit_reductions": True})
            cls = Given
            with R.dataflow():
                a = cls.layer(x, weight)
                b = cls.layer(a, weight)
                R.output(b)
            return (b, cls.layer)

    result = dx.transform.OptimizeCollectives(enable=NAME)(Given)
    assert tally(result, NAME).matched == 0
    tvm.ir.assert_structural_equal(result["layer"], Given["layer"])
