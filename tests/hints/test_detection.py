"""Layers are found by structure: names of weights tell nothing here."""

from __future__ import annotations

import pytest
from tests.hints.programs import Builder, fused_attention, gated_mlp, mixture, plain_mlp
from tvm import relax

import distir_ext as dx
from distir_ext.hints import LayerHint, WeightHint


def detected(*layers):
    return dx.hints.detect(Builder().module(*layers)).layers


def test_attention_with_one_weight_for_queries_keys_and_values():
    (layer,) = detected(fused_attention).values()
    assert layer == LayerHint(
        "mha", {"a1": WeightHint("colwise", (32, 16, 16), 8), "a3": WeightHint("rowwise", (), 8)}
    )
    assert layer.why == "a softmax between two products of activations"


def test_feed_forward_layers_with_and_without_gate():
    gated, plain = detected(gated_mlp, plain_mlp).values()
    weights = {"m1": WeightHint("colwise", (48, 48)), "m2": WeightHint("rowwise")}
    assert gated == LayerHint("mlp", weights)
    assert "m1, gated, then m2" in gated.why
    assert plain == LayerHint("mlp", {"p1": WeightHint("colwise"), "p2": WeightHint("rowwise")})
    assert "p1, activated, then p2" in plain.why


def test_a_mixture_has_its_shared_expert():
    (layer,) = detected(mixture).values()
    assert layer.layer_type == "moe"
    modes = {name: hint.tp_mode for name, hint in layer.weights.items()}
    assert modes == {
        "e1": "none",
        "e2": "colwise",
        "e3": "rowwise",
        "s1": "colwise",
        "s2": "rowwise",
    }
    assert layer.weights["e2"].output_sizes == (16, 16)
    assert layer.why == "e1 chooses among 4 experts, beside s2 of a shared one"


def test_what_is_no_layer_is_unknown_with_the_reason():
    def alone(builder, x):
        return builder.linear(x, "w", 32)

    (layer,) = detected(alone).values()
    assert layer == LayerHint("unknown", {"weight": WeightHint()}) or layer.layer_type == "unknown"
    assert "stands alone" in layer.why


def test_parallel_layers_are_two():
    def parallel(builder, x):
        both = (fused_attention(builder, x), plain_mlp(builder, x))
        return builder.op(relax.op.add, *both)

    assert sorted(each.layer_type for each in detected(parallel).values()) == ["mha", "mlp"]


def test_a_function_has_to_say_which_parameters_are_weights():
    mod = Builder().module(plain_mlp)
    mod["main"] = mod["main"].without_attr("num_input")
    with pytest.raises(ValueError, match="main does not say which of its parameters are weights"):
        dx.hints.detect(mod)
    assert len(dx.hints.detect(mod, inputs=["x"]).layers) == 1
