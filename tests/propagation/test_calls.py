"""Propagation through calls of Relax functions: a callee gets a copy per set of shardings."""

import itertools

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.relax.distributed import Placement
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import assert_propagates, placements, propagated


@I.ir_module
class TwoCalls:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((1,), [2])]})

    @R.function(private=True)
    def mlp(
        x: R.Tensor((8, 8), "float32"),
        up: R.Tensor((8, 8), "float32"),
        down: R.Tensor((8, 8), "float32"),
    ) -> R.Tensor((8, 8), "float32"):
        with R.dataflow():
            a = R.matmul(x, up)
            b = R.nn.relu(a)
            c = R.matmul(b, down)
            R.output(c)
        return c

    @R.function
    def main(
        x: R.Tensor((8, 8), "float32"),
        up0: R.Tensor((8, 8), "float32"),
        down0: R.Tensor((8, 8), "float32"),
        up1: R.Tensor((8, 8), "float32"),
        down1: R.Tensor((8, 8), "float32"),
    ) -> R.Tensor((8, 8), "float32"):
        cls = TwoCalls
        with R.dataflow():
            first = cls.mlp(x, up0, down0)
            second = cls.mlp(first, up1, down1)
            R.output(second)
        return second


@relax.expr_functor.mutator
class NextMesh(relax.PyExprMutator):
    """The mutator of the forum thread: each call to ``mlp`` on the next mesh of the module."""

    def __init__(self, mod, placement):
        super().__init__(mod)
        self.meshes = itertools.cycle(mod.global_infos["mesh"])
        self.placement = placement

    def visit_call_(self, call):
        call = self.visit_expr_post_order(call)
        if not isinstance(call.op, tvm.ir.GlobalVar):
            return call
        placed = relax.op.distributed.annotate_sharding(
            call.args[0], next(self.meshes), Placement.from_text(self.placement)
        )
        return relax.Call(call.op, [placed, *call.args[1:]], call.attrs, call.ty_args, call.span)


def on_alternating_meshes(mod, placement):
    result = mod.clone()
    result["main"] = NextMesh(result, placement).visit_expr(result["main"])
    return result


def test_each_call_on_its_own_mesh_gives_a_copy_for_each_mesh():
    @I.ir_module
    class Expected:
        I.module_global_infos(
            {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((1,), [2])]}
        )

        @R.function(private=True)
        def mlp(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            up: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            down: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "R"):
            with R.dataflow():
                a = R.matmul(x, up)
                b = R.nn.relu(a)
                c = R.matmul(b, down)
                R.output(c)
            return c

        @R.function(private=True)
        def mlp_1(
            x: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
            up: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
            down: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[1]", "R"):
            with R.dataflow():
                a = R.matmul(x, up)
                b = R.nn.relu(a)
                c = R.matmul(b, down)
                R.output(c)
            return c

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            up0: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            down0: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            up1: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
            down1: R.DTensor((8, 8), "float32", "mesh[1]", "R"),
        ) -> R.DTensor((8, 8), "float32", "mesh[1]", "R"):
            cls = Expected
            with R.dataflow():
                first = cls.mlp(x, up0, down0)
                moved = R.dist.redistribute(first, "mesh[1]", "R")
                second = cls.mlp_1(moved, up1, down1)
                R.output(second)
            return second

    assert_propagates(on_alternating_meshes(TwoCalls, "R"), Expected)


def test_calls_with_equal_signatures_share_one_copy():
    mod = TwoCalls.clone()
    mod.update_global_info("mesh", [TwoCalls.global_infos["mesh"][0]])
    result = propagated(on_alternating_meshes(mod, "S[0]"))
    assert sorted(gv.name_hint for gv in result.get_global_vars()) == ["main", "mlp"]
    assert placements(result, "mlp")["x"] == "mesh[0] S[0]"
    assert placements(result, "mlp")["up"] == "mesh[0] R"


def test_calls_that_disagree_are_specialised():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def act(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), y: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y0 = R.dist.annotate_sharding(y, "mesh[0]", "S[1]")
            a = cls.act(x0)
            b = cls.act(y0)
            return (a, b)

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def act(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            y = R.nn.relu(x)
            return y

        @R.function(private=True)
        def act_1(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
            y: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ):
            cls = Expected
            a = cls.act(x)
            b = cls.act_1(y)
            return (a, b)

    assert_propagates(Before, Expected)


def test_annotation_inside_the_callee_reaches_the_caller():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def inner(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            w0 = R.dist.annotate_sharding(w, "mesh[0]", "S[1]")
            y = R.matmul(x, w0)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
            cls = Before
            y = cls.inner(x, w)
            z = R.nn.relu(y)
            return z

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def inner(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"):
            y = R.matmul(x, w)
            return y

        @R.function
        def main(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "R"),
            w: R.DTensor((8, 8), "float32", "mesh[0]", "S[1]"),
        ):
            cls = Expected
            y = cls.inner(x, w)
            z = R.nn.relu(y)
            return z

    assert_propagates(Before, Expected)


def test_annotation_of_the_result_reaches_the_parameters():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def inner(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")) -> R.Tensor(
            (8, 8), "float32"
        ):
            y = R.matmul(x, w)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32"), w: R.Tensor((8, 8), "float32")):
            cls = Before
            y = cls.inner(x, w)
            z = R.dist.annotate_sharding(y, "mesh[0]", "S[0]")
            return z

    result = propagated(Before)
    assert placements(result, "inner") == {
        "x": "mesh[0] S[0]",
        "w": "mesh[0] R",
        "y": "mesh[0] S[0]",
    }
    assert placements(result)["x"] == "mesh[0] S[0]"


def test_three_levels_of_calls():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2, 2)))

        @R.function(private=True)
        def low(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.exp(x)
            return y

        @R.function(private=True)
        def middle(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            cls = Before
            y = cls.low(x)
            z = cls.low(y)
            return z

        @R.function(private=True)
        def high(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            cls = Before
            y = cls.middle(x)
            t = R.permute_dims(y)
            z = cls.middle(t)
            return z

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R")
            y = cls.high(x0)
            return y

    result = propagated(Before)
    assert sorted(gv.name_hint for gv in result.get_global_vars()) == [
        "high",
        "low",
        "low_1",
        "main",
        "middle",
        "middle_1",
    ]
    assert placements(result, "low")["x"] == "mesh[0] S[0], R"
    assert placements(result, "middle")["x"] == "mesh[0] S[0], R"
    assert placements(result, "low_1")["x"] == "mesh[0] S[1], R"
    assert placements(result, "middle_1")["x"] == "mesh[0] S[1], R"
    assert placements(result)["y"] == "mesh[0] S[1], R"


def test_public_callee_keeps_its_tensor_version():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function
        def act(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.act(x0)
            return y

    @I.ir_module
    class Expected:
        I.module_global_infos(meshes((2,)))

        @R.function
        def act(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function(private=True)
        def act_1(
            x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"),
        ) -> R.DTensor((8, 8), "float32", "mesh[0]", "S[0]"):
            y = R.nn.relu(x)
            return y

        @R.function
        def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0]")):
            cls = Expected
            y = cls.act_1(x)
            return y

    assert_propagates(Before, Expected)
    assert propagated(Before)["act"].same_as(Before["act"])


def test_functions_that_take_no_part_stay_the_same_objects():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def shared(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = R.nn.relu(x)
            return y

        @R.function
        def apart(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            cls = Before
            y = cls.shared(x)
            return y

        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y = cls.shared(x0)
            return y

    result = propagated(Before)
    assert result["apart"].same_as(Before["apart"])
    assert result["shared"].same_as(Before["shared"])
    assert placements(result, "shared_1") == {"x": "mesh[0] S[0]", "y": "mesh[0] S[0]"}


def test_module_without_annotations_is_returned_as_it_is():
    mod = TwoCalls.clone()
    assert dx.transform.PropagateSharding()(mod).same_as(mod)


def test_symbolic_shapes_of_copies_are_their_own():
    @I.ir_module
    class Before:
        I.module_global_infos(meshes((2,)))

        @R.function(private=True)
        def grow(x: R.Tensor(("m", 8), "float32"), sizes: R.Shape(["m"])) -> R.Tensor(
            ("m * 2", 8), "float32"
        ):
            y = R.concat((x, x), axis=0)
            return y

        @R.function
        def main(x: R.Tensor(("n", 8), "float32"), sizes: R.Shape(["n"])):
            cls = Before
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[1]")
            x1 = R.dist.annotate_sharding(x, "mesh[0]", "R")
            a = cls.grow(x0, sizes)
            b = cls.grow(x1, sizes)
            return (a, b)

    result = propagated(Before)
    n = result["main"].params[0].ty.tensor_ty.shape[0]
    for binding in result["main"].body.blocks[0].bindings:
        if binding.var.name in ("a", "b"):
            tvm.ir.assert_structural_equal(binding.var.ty.tensor_ty.shape[0], n * 2)
    grow, copy = result["grow"].params, result["grow_1"].params
    assert not grow[1].same_as(copy[1])
    assert not grow[0].ty.tensor_ty.shape[0].same_as(copy[0].ty.tensor_ty.shape[0])


@pytest.mark.parametrize("order", ["caller first", "callee first"])
def test_names_of_copies_do_not_depend_on_the_order_of_functions(order):
    mod = on_alternating_meshes(TwoCalls, "R")
    names = ["main", "mlp"] if order == "caller first" else ["mlp", "main"]
    reordered = tvm.IRModule(
        {mod.get_global_var(name): mod[name] for name in names}, global_infos=mod.global_infos
    )
    tvm.ir.assert_structural_equal(propagated(reordered), propagated(mod))
