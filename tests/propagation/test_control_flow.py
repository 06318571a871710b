"""Propagation through branches and recursive calls."""

# TVMScript has statements only.
# ruff: noqa: SIM108

from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

from .checks import assert_propagates, placements, propagated


def test_branches_agree_on_the_placement_of_their_value():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(flag: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            if flag:
                y = R.nn.relu(x0)
            else:
                t = R.permute_dims(x0)
                y = R.exp(t)
            z = R.negative(y)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            flag: R.DTensor((), "bool", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            if flag:
                y = R.nn.relu(x)
            else:
                t = R.permute_dims(x)
                e = R.exp(t)
                y = R.dist.redistribute(e, "mesh[0]", "S[0]")
            z = R.negative(y)
            return z

    assert_propagates(Before, Expected)


def test_annotation_behind_a_branch_reaches_what_both_branches_use():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            flag: R.Tensor((), "bool"),
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
        ):
            if flag:
                a = R.nn.relu(x)
            else:
                a = R.exp(y)
            b = R.dist.annotate_sharding(a, "mesh[0]", "S[1]")
            return b

    found = placements(propagated(Before))
    assert found["x"] == found["y"] == found["a"] == "mesh[0] S[1]"


def test_tuples_of_branches():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(
            flag: R.Tensor((), "bool"),
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
        ):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            if flag:
                a = R.nn.relu(x0)
                pair = (a, y)
            else:
                b = R.exp(y)
                pair = (b, x0)
            first = pair[0]
            return first

    found = placements(propagated(Before))
    assert found["first"] == found["y"] == "mesh[0] S[0]"


def test_condition_comes_to_the_mesh_of_the_branches():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,), (2,)))

        @R.function
        def main(
            flags: R.Tensor((4,), "bool"),
            free: R.Tensor((), "bool"),
            x: R.Tensor((8, 8), "float32"),
        ):
            flags0 = R.dist.annotate_sharding(flags, "mesh[0]", "S[0]")
            flag = R.squeeze(R.strided_slice(flags0, [0], [0], [1]))
            x0 = R.dist.annotate_sharding(x, "mesh[1]", "S[0]")
            if flag:
                y = R.nn.relu(x0)
            else:
                y = R.exp(x0)
            if free:
                z = R.nn.relu(y)
            else:
                z = R.exp(y)
            return z

    result = propagated(Before)
    found = placements(result)
    assert found["flag"] == "mesh[0] R"
    assert found["free"] == "mesh[1] R"
    branch = next(
        binding.value
        for block in result["main"].body.blocks
        for binding in block.bindings
        if binding.var.name == "y"
    )
    assert branch.cond.ty.device_mesh == result.global_infos["mesh"][1]


def test_recursion_ends_in_one_signature():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def repeat(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            cls = Before
            if more:
                y = R.nn.relu(x)
                z = cls.repeat(more, y)
            else:
                z = R.exp(x)
            return z

        @R.function
        def main(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.repeat(more, x0)
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def repeat(
            more: R.DTensor((), "bool", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            cls = Expected
            if more:
                y = R.nn.relu(x)
                z = cls.repeat(more, y)
            else:
                z = R.exp(x)
            return z

        @R.function
        def main(
            more: R.DTensor((), "bool", "mesh[0]", "R"),
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ):
            cls = Expected
            y = cls.repeat(more, x)
            return y

    assert_propagates(Before, Expected)


def test_recursion_that_transposes_is_redistributed_at_the_call():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def turn(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            cls = Before
            if more:
                y = R.permute_dims(x)
                z = cls.turn(more, y)
            else:
                z = R.exp(x)
            return z

        @R.function
        def main(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.turn(more, x0)
            return y

    result = propagated(Before)
    assert sorted(gv.name_hint for gv in result.get_global_vars()) == ["main", "turn"]
    assert placements(result, "turn")["y_1" if "y_1" in placements(result, "turn") else "y"]
    assert "R.dist.redistribute" in result["turn"].script()


def test_functions_that_call_each_other():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def even(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            cls = Before
            if more:
                z = cls.odd(more, x)
            else:
                z = R.exp(x)
            return z

        @R.function(private=True)
        def odd(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            cls = Before
            if more:
                z = cls.even(more, x)
            else:
                z = R.nn.relu(x)
            return z

        @R.function
        def main(more: R.Tensor((), "bool"), x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.even(more, x0)
            return y

    result = propagated(Before)
    assert sorted(gv.name_hint for gv in result.get_global_vars()) == ["even", "main", "odd"]
    for function in ("even", "odd"):
        assert placements(result, function)["x"] == "mesh[0] S[0]"
        assert placements(result, function)["z"] == "mesh[0] S[0]"
