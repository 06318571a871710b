"""Sharded fused weights: those that annotate cuts into blocks, and those that it does not."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tests.annotate.values import bound
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh(tp=2)
PLAN = {"w": (None, "tp")}


@I.ir_module
class Gated:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            product = R.matmul(x, w)
            parts = R.split(product, 2, axis=-1)
            gate = parts[0]
            up = parts[1]
            y = R.multiply(gate, up)
            R.output(y)
        return y


@I.ir_module
class Whole:
    """The product is a result."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            product = R.matmul(x, w)
            parts = R.split(product, 2, axis=-1)
            y = R.multiply(parts[0], parts[1])
            R.output(product, y)
        return (product, y)


@I.ir_module
class Added:
    """Adds a value that has no blocks to the product."""

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        z: R.Tensor((4, 32), "float32"),
        w: R.Tensor((8, 32), "float32"),
    ):
        R.func_attr({"num_input": 2})
        with R.dataflow():
            product = R.matmul(x, w)
            total = R.add(product, z)
            parts = R.split(total, 2, axis=-1)
            y = R.multiply(parts[0], parts[1])
            R.output(y)
        return y


@I.ir_module
class BiasTwice:
    """The bias of the product is a result, too."""

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
        w: R.Tensor((8, 32), "float32"),
        bias: R.Tensor((32,), "float32"),
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            product = R.matmul(x, w)
            total = R.add(product, bias)
            parts = R.split(total, 2, axis=-1)
            y = R.multiply(parts[0], parts[1])
            z = R.add(bias, bias)
            R.output(y, z)
        return (y, z)


@I.ir_module
class Small:
    """One of the blocks has one column."""

    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            product = R.matmul(x, w)
            parts = R.split(product, [31], axis=-1)
            y = R.multiply(parts[0], parts[1])
            R.output(y)
        return y


@I.ir_module
class Branching:
    @R.function
    def main(
        c: R.Tensor((), "bool"), x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")
    ) -> R.Tensor((4, 16), "float32"):
        R.func_attr({"num_input": 2})
        product = R.matmul(x, w)
        parts = R.split(product, 2, axis=-1)
        gate = parts[0]
        up = parts[1]
        if c:  # noqa: SIM108
            y = R.multiply(gate, up)
        else:
            y = R.add(gate, up)
        return y


@I.ir_module
class Called:
    @R.function
    def main(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")) -> R.Tensor(
        (4, 16), "float32"
    ):
        R.func_attr({"num_input": 1})
        product = R.matmul(x, w)
        parts = R.split(product, 2, axis=-1)
        y = R.multiply(parts[0], parts[1])
        return y

    @R.function
    def twice(x: R.Tensor((4, 8), "float32"), w: R.Tensor((8, 32), "float32")):
        cls = Called
        y = cls.main(x, w)
        z = R.add(y, y)
        return z


def parameters(mod: tvm.IRModule) -> list[str]:
    return [str(param.name) for param in mod["main"].params]


def fused(mod: tvm.IRModule) -> dict[str, list[Any]]:
    stated = mod["main"].attrs.get("distir.fused_params", {})
    return {str(name): list(entry) for name, entry in stated.items()}


def test_a_parameter_for_each_block():
    before = Gated.script()
    mod = dx.annotate(Gated, MESH, PLAN)
    assert Gated.script() == before
    assert parameters(mod) == ["x", "w_0", "w_1"]
    assert fused(mod) == {"w": [1, "w_0", "w_1"]}
    assert bound(mod) == {"w_0_1": "S[1]", "w_1_1": "S[1]"}
    assert "split" not in mod["main"].script()


BLOCKS_MEET = "its blocks meet again, or meet what is no weight"


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (Whole, BLOCKS_MEET),
        (Added, BLOCKS_MEET),
        (BiasTwice, BLOCKS_MEET),
        (Small, "a block has fewer elements than shards"),
        (Branching, "the function has branches"),
        (Called, "a function calls this one"),
    ],
)
def test_weights_that_stay_whole(program, why):
    with dx.pass_reports() as reports:
        mod = dx.annotate(program, MESH, PLAN)
    assert parameters(mod) == parameters(program)
    assert fused(mod) == {}
    (report,) = reports
    assert report.skipped == {"cut into blocks": {why: 1}}


def test_the_report_counts_weights_that_are_cut():
    with dx.pass_reports() as reports:
        dx.annotate(Gated, MESH, PLAN)
    assert reports[0].done == {"w: (None, 'tp')": 1, "weights that are cut into blocks": 1}


def changed(mod: tvm.IRModule, attrs: dict[str, Any]) -> tvm.IRModule:
    mod = mod.clone()
    function = mod["main"].without_attr("num_input")
    for key, value in attrs.items():
        function = function.with_attr(key, value)
    mod.update_func(mod.get_global_var("main"), function)
    return mod


def test_only_weights_are_cut_and_only_where_they_are_sharded():
    assert parameters(dx.annotate(changed(Gated, {}), MESH, PLAN)) == ["x", "w"]
    assert len(parameters(dx.annotate(changed(Gated, {}), MESH, PLAN, inputs=["x"]))) == 3
    for plan in ({"w": ("tp", None)}, {"w": None}, {"x": ("tp", None)}):
        assert parameters(dx.annotate(Gated, MESH, plan)) == ["x", "w"]


def test_variables_that_the_plan_names_stay():
    whole = dx.annotate(Gated, MESH, {**PLAN, "product": (None, "tp")})
    assert parameters(whole) == ["x", "w"]
    part = dx.annotate(Gated, MESH, {**PLAN, "up": (None, "tp")})
    assert parameters(part) == ["x", "w_0", "w_1"]
    assert bound(part)["up"] == "S[1]"
    field = dx.annotate(Gated, MESH, {**PLAN, "parts.1": (None, "tp")})
    assert parameters(field) == ["x", "w_0", "w_1"]
    assert len(bound(field)) == 3


def test_annotations_one_after_the_other():
    @I.ir_module
    class Both:
        @R.function
        def main(
            x: R.Tensor((4, 8), "float32"),
            v: R.Tensor((8, 64), "float32"),
            w: R.Tensor((8, 32), "float32"),
        ):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                a = R.split(R.matmul(x, v), [16, 48], axis=-1)
                b = R.split(R.matmul(x, w), 2, axis=-1)
                c = R.multiply(a[0], b[0])
                d = R.multiply(R.split(a[1], 2, axis=-1)[0], a[2])
                y = R.add(R.multiply(c, d), b[1])
                R.output(y)
            return y

    once = dx.annotate(Both, MESH, PLAN)
    assert fused(once) == {"w": [1, "w_0", "w_1"]}
    twice = dx.annotate(once, MESH, {"v": (None, "tp")})
    assert parameters(twice) == ["x", "v_0", "v_1", "v_2", "v_3", "w_0", "w_1"]
    assert fused(twice) == {"v": [1, "v_0", "v_1", "v_2", "v_3"], "w": [1, "w_0", "w_1"]}
    assert dx.annotate(twice, MESH, {}).same_as(twice)


def test_text_and_signature_have_the_blocks():
    mod = dx.annotate(Gated, MESH, PLAN)
    again = tvm.script.from_source(mod.script())
    tvm.ir.assert_structural_equal(mod, again)
    lowered = dx.lower(again)
    function = lowered.attrs["distir.signature"]["functions"]["main"]
    assert {str(k): list(v) for k, v in function["fused"].items()} == {"w": [1, "w_0", "w_1"]}


@pytest.mark.parametrize("entry", [[1, "w_0", "w_2"], [1], ["w_0"], [-1, "w_0"], [1, 2], "w", []])
def test_what_does_not_fit_the_parameters_is_refused(entry):
    mod = dx.annotate(Gated, MESH, PLAN)
    function = mod["main"].with_attr("distir.fused_params", {"w": entry})
    mod.update_func(mod.get_global_var("main"), function)
    with pytest.raises(ValueError, match=r"distir.fused_params of `main` names what is no param"):
        dx.lower(mod)


def test_explanations_know_the_blocks():
    lowered = dx.lower(dx.annotate(Gated, MESH, PLAN))
    assert str(dx.explain(lowered, "w_1")).splitlines()[-1] == (
        "  block 1 of `w` along dimension 1, counted from 0"
    )
    lines = str(dx.explain(lowered, "w")).splitlines()
    assert lines[0] == "`w` in `main` is `w_0`, `w_1`: blocks along dimension 1"
    assert [line for line in lines if line.startswith("`w_1` in `main`: dimension 1 is sharded")]


def test_a_weight_is_named_as_before_once_it_is_cut():
    mod = dx.annotate(Gated, MESH, PLAN)
    with pytest.warns(
        UserWarning, match=r"parameter w_\d of main is annotated already, with the s"
    ):
        assert dx.annotate(mod, MESH, PLAN).same_as(mod)


@I.ir_module
class Closed:
    """A gated MLP of which the first weight is small beside the tokens."""

    @R.function
    def main(
        x: R.Tensor((64, 64), "float32"),
        w: R.Tensor((64, 256), "float32"),
        v: R.Tensor((128, 64), "float32"),
    ):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            parts = R.split(R.matmul(x, w), 2, axis=-1)
            y = R.matmul(R.multiply(parts[0], parts[1]), v)
            R.output(y)
        return y


def test_suggestions_name_the_weight_of_the_user():
    plan = {"x": ("tp", None), "w": (None, "tp")}
    (entry,) = dx.analysis.reshards(dx.annotate(Closed, MESH, plan)).reshards
    assert entry.suggestion.plan == {"w": (None, None)}
    better = dx.annotate(Closed, MESH, entry.suggestion.applied_to(plan))
    assert not dx.analysis.reshards(better).reshards


def annotated_in_text(open_dimension: bool) -> tvm.IRModule:
    """Gated, annotated as `annotate` would without cutting anything."""
    plan = {"w": (None, dx.Dim("tp", open=True) if open_dimension else "tp")}
    mod = dx.annotate(changed(Gated, {}), MESH, plan)
    mod.update_func(mod.get_global_var("main"), mod["main"].with_attr("num_input", 1))
    return mod


@pytest.mark.parametrize("open_dimension", [False, True])
def test_modules_that_are_annotated_otherwise(open_dimension):
    mod = annotated_in_text(open_dimension)
    assert parameters(mod) == ["x", "w"]
    before = mod.script()
    with dx.pass_reports() as reports:
        cut = dx.transform.CutFusedWeights()(mod)
    assert mod.script() == before
    assert reports[0].done == {"weights that are cut into blocks": 1}
    plan = {"w": (None, dx.Dim("tp", open=True) if open_dimension else "tp")}
    tvm.ir.assert_structural_equal(cut, dx.annotate(Gated, MESH, plan))
    assert dx.transform.CutFusedWeights()(cut).same_as(cut)


def test_what_is_not_cut_is_the_same_module():
    for program in (Gated, Whole, Called):
        mod = dx.annotate(program, MESH, {"x": ("tp", None)})
        assert dx.transform.CutFusedWeights()(mod).same_as(mod)
