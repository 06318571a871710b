"""Tests of `explain` after passes of TVM, which drop variables and reuse names."""

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2,), ("dp",))
PLAN = {"x": ("dp", None)}
FUSE = tvm.transform.Sequential(
    [
        relax.transform.LegalizeOps(),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FuseOps(),
    ]
)


@I.ir_module
class Frontend:
    """With the names that TVM's block builder gives: FuseOps begins with lv too."""

    @R.function(private=True)
    def scale(y: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            doubled = R.multiply(y, R.const(2.0, "float32"))
            R.output(doubled)
        return doubled

    @R.function
    def main(x: R.Tensor((8, 16), "float32"), w: R.Tensor((16, 16), "float32")) -> R.Tensor(
        (8, 16), "float32"
    ):
        cls = Frontend
        with R.dataflow():
            lv = R.matmul(x, w)
            lv1 = R.nn.relu(lv)
            lv2 = cls.scale(lv1)
            gv = R.matmul(lv2, w)
            R.output(gv)
        return gv


@I.ir_module
class Taken:
    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            doubled = R.add(x, x)
            y = R.exp(doubled)
            R.output(y)
        return y


@I.ir_module
class Unused:
    I.module_global_infos(meshes((2,)))

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            a = R.nn.relu(x)
            e = R.exp(a)
            b = R.dist.annotate_sharding(e, device_mesh="mesh[0]", placement="S[0]")
            R.output(a)
        return a


@pytest.fixture(scope="module")
def lowered():
    return dx.lower(dx.annotate(Frontend, MESH, PLAN))


def texts(mod, function):
    blocks = mod[function].body.blocks
    bound = [binding.var for block in blocks for binding in block.bindings]
    return {str(var.name): str(dx.explain(mod, var)) for var in bound}


def test_names_that_mean_the_same_are_trusted(lowered):
    legal = relax.transform.LegalizeOps()(lowered)
    for function in ("main", "scale"):
        before, after = texts(lowered, function), texts(legal, function)
        assert list(before) == list(after)
        for text in after.values():
            assert "stated by an annotation or a type of `x`" in text
            assert "other passes" not in text


def test_a_name_that_may_be_of_another_variable_is_said(lowered):
    fused = texts(FUSE(lowered), "main")
    assert "lv" in fused  # the matmul and the relu now
    for text in fused.values():
        assert "other passes have changed `main` since LowerDistIR" in text or (
            "the module does not say how it is sharded" in text
        )


def test_a_function_that_a_pass_has_made_is_unknown(lowered):
    fused = FUSE(lowered)
    made = [
        gv.name_hint
        for gv, function in fused.functions_items()
        if isinstance(function, relax.Function) and gv.name_hint.startswith("fused")
    ]
    assert made
    for name in made:
        for text in texts(fused, name).values():
            assert "the module does not say how it is sharded; another pass" in text


def test_what_is_inlined_is_unknown_and_ends_chains(lowered):
    inlined = texts(relax.transform.InlinePrivateFunctions()(lowered), "main")
    assert "the module does not say how it is sharded; another pass" in inlined["doubled"]
    assert "other passes have changed `main` since LowerDistIR" in inlined["gv"]


def test_two_variables_of_one_name_are_told_apart_or_unknown():
    lowered = dx.lower(dx.annotate(Taken, MESH, PLAN))
    main = lowered["main"]
    (block,) = main.body.blocks
    first, second = block.bindings
    again = relax.Var("doubled", second.var.ty)
    bindings = [first, relax.VarBinding(again, second.value)]
    body = relax.SeqExpr([relax.BindingBlock(bindings)], again)
    renamed = relax.Function(main.params, body, main.ret_ty, attrs=main.attrs)
    lowered.update_func(lowered.get_global_var("main"), renamed)
    lines = dx.explain(lowered, "doubled").lines
    assert len(lines) == 2
    assert all("several variables of this name" in line for line in lines)


def test_a_pass_of_ours_does_not_trust_what_others_left(lowered):
    changed = dx.transform.LowerCCL()(relax.transform.InlinePrivateFunctions()(lowered))
    assert "other passes have changed `main`" in texts(changed, "main")["gv"]


def test_an_annotation_of_what_is_gone_is_named():
    propagated = dx.transform.PropagateSharding()(Unused)
    assert "stated by an annotation or a type of `e`" in str(dx.explain(propagated, "a"))
    without = relax.transform.DeadCodeElimination()(propagated)
    assert str(dx.explain(without, "a")).endswith(
        "or by an annotation of what the module no longer has: `e`"
    )


def test_functions_that_take_no_part_are_replicated_after_lowering():
    module = tvm.IRModule(
        {"main": Taken["main"], "plain": Taken["main"].with_attr("global_symbol", "plain")}
    )
    lowered = dx.lower(dx.annotate(module, MESH, PLAN))
    assert str(dx.explain(lowered, "doubled", "plain")) == (
        "`doubled` in `plain`: every device has all of it"
    )
