"""Tests of the split of kernels into a reduction and an epilogue."""

import pytest
import tvm
from tests.unfuse.programs import PLAN, TP4, AnySize, InPlace, Linear, Scaled, Smaller, fused
from tvm import relax

import distir_ext as dx


def split(mod, plan=PLAN, mesh=TP4):
    return dx.transform.SplitFused()(dx.annotate(mod, mesh, plan))


def calls(mod):
    """The kernels that main calls, in order."""
    found = []

    def visit(expr):
        if isinstance(expr, relax.Call) and expr.op == tvm.ir.Op.get("relax.call_tir"):
            found.append(str(expr.args[0].name_hint))

    relax.analysis.post_order_visit(mod["main"], visit)
    return found


def sent(mod, plan=PLAN, mesh=TP4):
    found = dx.analysis.collectives(dx.lower(dx.annotate(mod, mesh, plan)))
    return {(each.kind, each.bytes_per_device) for each in found}


def test_a_product_and_its_epilogue_become_two_kernels():
    mod = fused(Linear)
    (name,) = calls(mod)
    assert calls(split(mod)) == [f"{name}_reduction", f"{name}_epilogue"]
    assert sent(mod) == sent(Linear) == {("all_reduce", 8 * 24 * 4 * 2 * 3 // 4)}


def test_every_size_may_be_symbolic():
    mod = fused(AnySize)
    (name,) = calls(mod)
    assert calls(split(mod)) == [f"{name}_reduction", f"{name}_epilogue"]
    assert {kind for kind, _ in sent(mod)} == {"all_reduce"}


def test_what_commutes_stays_with_the_reduction():
    assert calls(split(fused(Scaled))) == calls(fused(Scaled))
    (kind,) = sent(fused(Smaller))
    # The sum is in float16, of which each device sends half of it, twice over 4 devices.
    assert kind == ("all_reduce", 8 * 24 * 2 * 2 * 3 // 4)


def test_a_result_that_is_changed_in_place_is_no_operand():
    assert calls(split(InPlace)) == ["kernel"]


def test_a_stated_rule_is_obeyed():
    mod = fused(Linear)
    (name,) = calls(mod)
    stated = mod[name].with_attr("distir.rule", "m k, k n, n, m n -> m n")
    mod.update_func(mod.get_global_var(name), stated)
    assert calls(split(mod)) == [name]


@pytest.mark.parametrize("program", [Linear, AnySize, Smaller, Scaled])
def test_a_module_without_shardings_stays(program):
    mod = fused(program)
    assert dx.transform.SplitFused()(mod).same_as(mod)


@pytest.mark.parametrize("program", [Linear, AnySize, Smaller])
def test_split_modules_stay_and_print(program):
    mod = split(fused(program))
    assert calls(dx.transform.SplitFused()(mod)) == calls(mod)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def test_parts_that_nothing_separates_are_fused_again():
    lowered = dx.lower(dx.annotate(fused(Linear), TP4, {"x": ("tp", None)}))
    assert len(calls(lowered)) == 2
    assert len(calls(fused(lowered))) == 1


def test_shardings_that_types_state():
    text = fused(Linear).script(show_meta=False)
    mesh = (
        "class Module:\n    I.module_global_infos({'mesh': [R.device_mesh((4,), I.Range(0, 4))]})\n"
    )
    for before, after in (
        ("class Module:\n", mesh),
        (
            'x: R.Tensor((8, 32), dtype="float32")',
            'x: R.DTensor((8, 32), "float32", "mesh[0]", "S[1]")',
        ),
        (
            'w: R.Tensor((32, 24), dtype="float32")',
            'w: R.DTensor((32, 24), "float32", "mesh[0]", "S[0]")',
        ),
        (') -> R.Tensor((8, 24), dtype="float32"):', "):"),
    ):
        assert before in text
        text = text.replace(before, after)
    propagated = dx.transform.PropagateSharding()(tvm.script.from_source(text))
    (found,) = dx.analysis.collectives(dx.lower(propagated))
    assert found.kind == "all_reduce"
    again = dx.transform.SplitFused()(propagated)
    assert again.same_as(propagated)
