"""Tests of `dx.analysis.diff`: effects of other annotations on the same program."""

import dataclasses
import json

import pytest
from tests.analysis.models import MESH, MODELS
from tests.analysis.programs import GPU, function, on
from tvm.relax import op

import distir_ext as dx

SHAPES = {"x": (16, 32), "up": (32, 64), "down": (64, 32)}
MEGATRON = {"up": (None, "tp"), "down": ("tp", None)}
GATHERED = {"up": (None, "tp"), "down": (None, "tp")}


def annotated(plan):
    def write(emit, x, up, down):
        return op.matmul(emit(op.nn.relu(emit(op.matmul(x, up)))), down)

    return dx.annotate(function(SHAPES, write), MESH, plan)


def compared(a, b):
    return dx.analysis.diff(annotated(a), annotated(b), on(GPU))


def test_what_vanishes_and_appears():
    found = compared(GATHERED, MEGATRON)
    gathered, reduced = sorted(found.collectives, key=lambda each: each.kind)
    assert (gathered.kind, gathered.before, gathered.after) == ("all_gather", 1, 0)
    assert (reduced.kind, reduced.before, reduced.after) == ("all_reduce", 0, 1)
    assert gathered.axes == reduced.axes == ("tp",)
    # Rings of four: three of four parts of (16, 64), and twice three of four parts of (16, 32).
    assert gathered.bytes_per_device == 16 * 64 * 4 * 3 / 4
    assert reduced.bytes_per_device == 2 * 16 * 32 * 4 * 3 / 4
    assert gathered.operators == reduced.operators == ("relax.matmul",)


def test_shardings_that_differ():
    found = compared(GATHERED, MEGATRON)
    said = {each.tensor: (each.before, each.after) for each in found.shardings}
    assert said == {
        "down": ("(None, 'tp')", "('tp', None)"),
        "gv": ("(None, 'tp')", "(None, None)"),
    }
    assert {each.function for each in found.shardings} == {"main"}
    assert found.shardings[0].tensor == "down"


def test_totals_are_those_of_the_estimates():
    plans = {"x": (None, None)}, {"x": ("dp", None), **MEGATRON}
    before, after = (dx.analysis.estimate(annotated(plan), on(GPU)) for plan in plans)
    found = compared(*plans)
    assert (found["flops"].before, found["flops"].after) == (before.flops, after.flops)
    # Two products and a ReLU, each over 2 x 4 devices.
    assert found["flops"].before == 2 * 16 * 32 * 64 * 2 + 16 * 64
    assert found["flops"].ratio == 1 / 8
    assert found["bytes sent"].ratio is None
    assert found["time"].after == after.seconds
    assert found["peak memory"].after == after.peak_memory
    assert found["kernels"].after + found["collectives"].after == pytest.approx(after.seconds)


@pytest.mark.parametrize("model", MODELS)
def test_changes_of_collectives_sum_up_to_those_of_the_totals(model):
    case = MODELS[model]()
    mods = [case.annotated(case.plans[plan]) for plan in ("tp", "mixed")]
    estimates = [dx.analysis.estimate(mod, on(GPU)) for mod in mods]
    found = dx.analysis.diff(*estimates)
    change = sum(each.bytes_per_device * (each.after - each.before) for each in found.collectives)
    assert change == found["bytes sent"].after - found["bytes sent"].before
    back = dx.analysis.diff(*estimates[::-1])
    turned = {
        dataclasses.replace(each, before=each.after, after=each.before) for each in back.collectives
    }
    assert turned == set(found.collectives)


def test_the_same_module_differs_in_nothing():
    mod = annotated(MEGATRON)
    found = dx.analysis.diff(mod, dx.lower(mod, until="propagated"), on(GPU))
    assert not found.collectives
    assert not found.shardings
    assert all(each.ratio == 1 for each in found.totals)


def test_other_phases_have_no_shardings_to_compare():
    lowered = dx.lower(annotated(MEGATRON), on(GPU))
    found = dx.analysis.diff(annotated(GATHERED), lowered, on(GPU))
    assert {each.kind for each in found.collectives} == {"all_gather", "all_reduce"}
    assert not found.shardings
    assert "annotated or propagated" in found.notes[0]


def test_what_takes_no_part_and_calls():
    case = MODELS["experts"]()
    found = dx.analysis.diff(
        case.annotated({"x": (None, None)}), case.annotated(case.plans["dp"]), on(GPU)
    )
    assert {"x", "dispatch"} <= {each.tensor for each in found.shardings}


def test_tables_and_data():
    found = compared(GATHERED, MEGATRON)
    text = str(found)
    assert text.index("collectives that vanish") < text.index("collectives that appear")
    assert found._repr_html_().count("<table>") == 4
    assert json.loads(found.to_json())["rows"] == json.loads(json.dumps(found.rows()))
    assert {row["what"] for row in found.rows()} == {"total", "collective", "sharding"}
    with pytest.raises(KeyError, match="no total 'flop'"):
        found["flop"]


def test_other_programs_are_refused():
    mod = annotated(MEGATRON)
    other = MODELS["llama"]()
    with pytest.raises(ValueError, match="the first module has the function 'main'"):
        dx.analysis.diff(mod, other.annotated(other.plans["tp"]), on(GPU))
    wide = function({"x": (8, 8), "ups": (8, 8)}, lambda emit, x, ups: op.matmul(x, ups))
    wide = dx.annotate(wide, MESH, {"ups": (None, "tp")})
    with pytest.raises(ValueError, match=r"has the parameter 'up', .* did you mean 'ups'"):
        dx.analysis.diff(mod, wide, on(GPU))
    with pytest.raises(TypeError, match="state cluster="):
        dx.analysis.diff(mod, mod)
    with pytest.raises(TypeError):
        dx.analysis.diff(mod, "other", on(GPU))
    plain = function({"x": (8, 8)}, lambda emit, x: op.nn.relu(x))
    with pytest.raises(ValueError, match="no sharding annotations"):
        dx.analysis.diff(plain, plain, on(GPU))
