"""Modules that hints have sharded: unchanged results, and the textbook's communication."""

from __future__ import annotations

import functools
import logging

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.hints.programs import (
    Builder,
    arrays,
    arrays_of_sizes,
    fused_attention,
    gated_mlp,
    mixture,
    plain_mlp,
    run,
)
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx
from distir_ext.hints import DistConfig

STREAM = 4 * 8 * 32 * 4  # bytes


@pytest.fixture(scope="module")
def model():
    """A module, its arrays and what it computes on one device."""
    mod = Builder().module(fused_attention, gated_mlp, mixture)
    given = arrays(mod)
    x = given.pop("x")
    whole = dx.annotate(mod, dx.Mesh(tp=1), {"x": None})
    return mod, given, x, run(whole, 1, given, x, QUICK)


def check(model, dist, hints=None):
    """The collectives of a module as hints shard it, once its result is right."""
    mod, given, x, expected = model
    hinted = dx.hints.apply(mod, dist, hints)
    lowered = dx.lower(hinted.mod)
    actual = run(lowered, hinted.mesh, hinted.params(given), x, QUICK)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    found = {}
    for each in dx.analysis.collectives(lowered):
        key = (each.kind, each.bytes_per_device)
        found[key] = found.get(key, 0) + each.count
    return found


def reduced(layers, devices):
    return {("all_reduce", -(-2 * STREAM * (devices - 1) // devices)): layers}


@pytest.mark.parametrize(
    "dist",
    [
        DistConfig(2),
        DistConfig(3),  # 4 heads of queries for 2 of keys
        DistConfig(4),
        DistConfig(2, moe_ep_size=2),
        DistConfig(4, moe_ep_size=2),
    ],
    ids=["tp2", "tp3", "tp4", "ep2", "tep4"],
)
def test_each_layer_takes_one_reduction(model, dist):
    assert check(model, dist) == reduced(3, dist.tp_size)


def test_attention_dp_moves_tokens_to_experts_and_back(model):
    found = check(model, DistConfig(4, moe_ep_size=4, enable_attention_dp=True))
    assert sum(found.values()) == 2
    assert set(found) <= {
        (kind, STREAM * 3 // 4) for kind in ("all_gather", "reduce_scatter", "all_to_all")
    }


def test_devices_that_do_not_share_layers_share_the_batch(model):
    assert check(model, DistConfig(4, tp_size=2)) == {("all_reduce", STREAM // 2): 3}


def test_three_devices_share_what_divides(model):
    mod = model[0]
    hinted = dx.hints.apply(mod, DistConfig(3, shard_layers=("mlp",)))
    assert {node.layer_type for node in hinted.report.processed} == {"mlp"}
    assert check(model, DistConfig(3, shard_layers=("mlp",))) == reduced(1, 3)


@pytest.mark.parametrize("devices", [3, 5, 7])
def test_blocks_of_heads_that_do_not_divide(devices, tmp_path):
    """One weight for 8 heads of queries and 8 of keys and of values, another for gate and up."""
    mod = Builder().module(functools.partial(fused_attention, heads=8, groups=8, size=4), gated_mlp)
    given = arrays(mod)
    x = given.pop("x")
    hinted = dx.hints.apply(mod, DistConfig(devices))
    assert {node.shards for node in hinted.report.nodes} == {
        (devices,) * 3,
        (devices,),
        (devices,) * 2,
    }
    lowered = dx.lower(hinted.mod)
    found = [(each.kind, each.count) for each in dx.analysis.collectives(lowered)]
    assert found == [("all_reduce", 2)]
    (block,) = (each for each in lowered["main"].params if each.name == "a1_1")
    assert [int(size) for size in block.ty.shape] == [-(-8 // devices) * 4, 32]
    save_file(given, tmp_path / "model.safetensors")
    params = hinted.params(tmp_path / "model.safetensors")
    actual = run(lowered, hinted.mesh, params, x, QUICK)
    expected = run(dx.annotate(mod, dx.Mesh(tp=1), {"x": None}), 1, given, x, QUICK)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_fewer_heads_than_devices_with_nothing_in_common_are_on_all(model):
    report = dx.hints.apply(model[0], DistConfig(5)).report
    assert "4 in dimension 0 cannot be divided over 5 devices" in report.reasons()


def test_columns_are_replicated_where_rows_cannot_be_divided(model):
    """Columns stay replicated where sharding them would need a gather."""
    mod = model[0]
    hints = dx.hints.detect(mod).with_weight("mlp", "m2", tp_min_local_shape=48)
    hinted = dx.hints.apply(mod, DistConfig(2), hints)
    skipped = {node.param: node.skipped for node in hinted.report.skipped}
    assert skipped["m2"] == "1 in dimension 1 cannot be divided over 2 devices"
    assert skipped["m1"] == "the rows of m2 are not sharded"
    assert not any("gather" in each.kind for each in dx.analysis.collectives(dx.lower(hinted.mod)))
    assert "m1" in hinted.report.replicated


def test_heads_are_shared_where_there_are_fewer(model):
    hinted = dx.hints.apply(model[0], DistConfig(4))
    (fused,) = [node for node in hinted.report.nodes if node.param == "a1"]
    assert fused.shards == (4, 2, 2)
    assert hinted.plan["a1_1"] == ("tp_0", None)


def test_the_report_says_what_was_done_and_what_not(model, caplog):
    with caplog.at_level(logging.INFO, "distir_ext.hints"), dx.pass_reports() as reports:
        report = dx.hints.apply(model[0], DistConfig(2, shard_layers=("mha", "mlp"))).report
    assert report.counts() == {"mha": 2, "mlp": 2}
    assert report.reasons() == {"moe is not among shard_layers": 5}
    assert caplog.messages == [report.log_line()]
    assert report.log_line() == (
        "hints: 4 nodes processed (mha 2, mlp 2), 5 skipped (moe is not among shard_layers: 5)"
    )
    assert reports[-1].done == {"mha": 2, "mlp": 2} or any(r.name == "ApplyHints" for r in reports)
    assert "skipped: moe is not among shard_layers" in " ".join(str(report).split())
    assert "<table" in report._repr_html_()


def test_wrong_blocks_are_right_but_cost_exchanges_and_are_said(model):
    hints = dx.hints.detect(model[0]).with_weight("mha", "a1", output_sizes=(16, 16, 32))
    hinted = dx.hints.apply(model[0], DistConfig(2), hints)
    assert any("joined" in note for note in hinted.report.notes)
    assert check(model, DistConfig(2), hints) != reduced(3, 2)


@pytest.mark.parametrize(
    ("layer", "weight", "changes", "message"),
    [
        ("mha", "a1", {"output_sizes": (32, 16)}, "a1 of layer mha: .* add up to 48, but dim.* 64"),
        ("mha", "a3", {"tp_min_local_shape": 5}, "a3 of layer mha: .* 5 does not divide the 32"),
    ],
)
def test_hints_that_contradict_shapes_name_layer_and_dimension(
    model, layer, weight, changes, message
):
    hints = dx.hints.detect(model[0])
    hints = hints.with_weight(layer, weight, **({"tp_min_local_shape": 1} | changes))
    with pytest.raises(ValueError, match=message):
        dx.hints.apply(model[0], DistConfig(2), hints)


def test_experts_that_groups_do_not_divide_are_an_error(model):
    with pytest.raises(ValueError, match=r"e2 .*4 experts \(dimension 0\) .*moe_ep_size=3"):
        dx.hints.apply(model[0], DistConfig(3, moe_ep_size=3))


def test_hints_name_weights_as_torch_does(tmp_path):
    mod = Builder().module(plain_mlp)
    path = tmp_path / "hints.yaml"
    path.write_text("layers:\n  p*:\n    layer_type: mlp\n    weights: {q: {tp_mode: colwise}}\n")
    with pytest.raises(
        ValueError, match=r"line 4, layers.p\*.weights.q: no weight is called p\*.q"
    ):
        dx.hints.apply(mod, DistConfig(2), dx.hints.load(path))
    with pytest.raises(ValueError, match="pass a DistConfig"):
        dx.hints.apply(mod, hints=dx.hints.detect(mod))


def test_weights_are_cut_from_files_too(model, tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(model[1], path)
    hinted = dx.hints.apply(model[0], DistConfig(2))
    found = hinted.params(path)
    np.testing.assert_array_equal(found["e2_1"], model[1]["e2"][:, 16:])
    actual = run(hinted.mod, hinted.mesh, found, model[2], QUICK)
    np.testing.assert_allclose(actual, model[3], rtol=1e-4, atol=1e-5)


def test_weights_are_cut_as_the_module_has_them(model):
    hinted = dx.hints.apply(model[0], DistConfig(2))
    found = hinted.params(model[1])
    np.testing.assert_array_equal(found["a1_1"], model[1]["a1"][32:48])
    assert found["a1_1"].base is model[1]["a1"]
    np.testing.assert_array_equal(found["e2_1"], model[1]["e2"][:, 16:])
    with pytest.raises(ValueError, match=r"weight a1 has the shape \[4, 32\]: dimension 0"):
        hinted.params({"a1": model[1]["a1"][:4]})


def test_the_weights_of_the_model_are_loaded_as_they_are(model):
    """Loading cuts fused weights: what `hinted.params` gives is the same."""
    mod, weights, x, expected = model
    hinted = dx.hints.apply(mod, DistConfig(2))
    found = run(hinted.mod, hinted.mesh, weights, x, QUICK)
    np.testing.assert_array_equal(
        found, run(hinted.mod, hinted.mesh, hinted.params(weights), x, QUICK)
    )
    assert np.linalg.norm(found - expected) < 1e-6 * np.linalg.norm(expected)


@I.ir_module
class _Symbolic:
    @R.function
    def main(
        x: R.Tensor(("n", 8), "float32"),
        up: R.Tensor((24, 8), "float32"),
        down: R.Tensor((8, 12), "float32"),
    ) -> R.Tensor(("n", 8), "float32"):
        R.func_attr({"num_input": 1})
        with R.dataflow():
            both = R.matmul(R.nn.softmax(x, axis=-1), R.permute_dims(up))
            gate = R.strided_slice(both, [1], [0], [12])
            value = R.strided_slice(both, [1], [12], [24])
            hidden = R.multiply(R.nn.silu(gate), value)
            y = R.add(x, R.matmul(hidden, R.permute_dims(down)))
            R.output(y)
        return y


@pytest.mark.parametrize("dist", [DistConfig(3), DistConfig(4, tp_size=2)], ids=["3", "2x2"])
def test_batches_may_be_symbolic(dist):
    given = arrays_of_sizes({"up": (24, 8), "down": (8, 12), "x": (6, 8)})
    x = given.pop("x")
    hinted = dx.hints.apply(_Symbolic, dist)
    assert hinted.report.notes == ()
    actual = run(hinted.mod, hinted.mesh, hinted.params(given), x, QUICK)
    whole = dx.annotate(_Symbolic, dx.Mesh(tp=1), {"x": None})
    np.testing.assert_allclose(actual, run(whole, 1, given, x, QUICK), rtol=1e-4, atol=1e-5)
    assert [each.kind for each in dx.analysis.collectives(dx.lower(hinted.mod))] == ["all_reduce"]


def test_functions_with_branches_are_refused():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    chosen = relax.Var("chosen", relax.TensorType((), "bool"))
    with builder.function("main", [chosen, x], {"num_input": 2}):
        side = relax.SeqExpr([], x)
        found = builder.emit(relax.If(chosen, side, side), "found")
        builder.emit_func_output(found)
    with pytest.raises(ValueError, match="main has a branch, found"):
        dx.hints.detect(builder.get())
