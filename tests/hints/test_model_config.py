"""Hints that configurations of models state. tests/models has those of transformers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import tvm
from tests.hints.by_weight import by_weight
from tests.hints.programs import Builder, fused_attention, gated_mlp

import distir_ext as dx
from distir_ext.hints import DistConfig, WeightHint

LAYER = "model.layers.0"
NAMES = {
    "a1": f"{LAYER}.self_attn.qkv_proj.weight",
    "a3": f"{LAYER}.self_attn.o_proj.weight",
    "m1": f"{LAYER}.mlp.gate_up_proj.weight",
    "m2": f"{LAYER}.mlp.down_proj.weight",
}
PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce",
    "norm": "sequence_parallel",
}
HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
FEW = {**HEADS, "intermediate_size": 64, "moe_intermediate_size": 16, "num_experts": 4}
MAMBA = {"num_heads": 8, "head_dim": 16, "state_size": 8, "n_groups": 4}


class Named(Builder):
    """Weights are called as in transformers."""

    def weight(self, name, *shape):
        return super().weight(NAMES.get(name, name), *shape)


def config(model_type, **fields):
    return SimpleNamespace(**{"model_type": model_type, "num_hidden_layers": 1, **fields})


def phi(**changes):
    sizes = {**HEADS, "hidden_size": 32, "intermediate_size": 48}
    return config("phi3", **{**sizes, **changes})


@pytest.fixture(scope="module")
def model():
    return Named().module(fused_attention, gated_mlp)


def test_fused_weights_are_as_they_are_detected(model):
    stated, detected = dx.hints.from_config(phi()), dx.hints.detect(model)
    assert stated.layers[f"{LAYER}.self_attn"].weights == {
        "qkv_proj": WeightHint("colwise", (32, 16, 16), 8),
        "o_proj": WeightHint("rowwise", (), 8),
    }
    assert stated.layers[f"{LAYER}.self_attn"].why == "the configuration of phi3"
    assert by_weight(stated, model) == by_weight(detected, model)
    first, second = (dx.hints.apply(model, DistConfig(2), each) for each in (stated, detected))
    tvm.ir.assert_structural_equal(first.mod, second.mod)
    assert first.plan == second.plan


def test_hints_of_a_configuration_are_written_and_read():
    hints = dx.hints.from_config(phi())
    (read,) = [dx.hints.configuration.read_hints(dx.hints.to_yaml(hints).encode(), "the text")]
    assert read == hints
    assert read.layers[f"{LAYER}.mlp"].weights["gate_up_proj"].size == 96


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_attention_heads": 3, "head_dim": 8},
            r"the configuration of phi3 \(num_attention_heads 3, head_dim 8, .*: weight "
            r"model.layers.0.self_attn.qkv_proj.weight of layer model.layers.0.self_attn: "
            r"output_sizes \[24, 16, 16\] add up to 56, but dimension 0 has 64 elements",
        ),
        (  # the columns of fused heads add up, but there are others
            {"num_attention_heads": 2, "num_key_value_heads": 3, "head_dim": 8},
            r"o_proj.weight of layer model.layers.0.self_attn: size is 16, but dimension 1 has 32",
        ),
        (
            {"intermediate_size": 40},
            r"\(intermediate_size 40\): weight .*gate_up_proj.weight of layer model.layers.0.mlp: "
            r"output_sizes \[40, 40\] .* dimension 0 has 96",
        ),
        (
            {"num_hidden_layers": 2},
            r"phi3 \(.*\): no weight is called model.layers.1.self_attn.qkv_proj; did you mean",
        ),
    ],
)
def test_a_configuration_of_another_model_is_an_error(model, changes, message):
    with pytest.raises(ValueError, match=message):
        dx.hints.apply(model, DistConfig(2), dx.hints.from_config(phi(**changes)))


def test_a_plan_of_the_model_names_the_weights():
    stated = config("some", base_model_tp_plan=PLAN, **HEADS)
    (layer,) = dx.hints.from_config(stated, prefix="").layers.items()
    assert layer[0] == "layers.0.self_attn"
    assert layer[1].layer_type == "mha"
    modes = {key: (each.tp_mode, each.size) for key, each in layer[1].weights.items()}
    assert modes == {
        "q_proj": ("colwise", 64),
        "k_proj": ("colwise", 32),
        "v_proj": ("colwise", 32),
        "o_proj": ("rowwise", 64),
    }
    assert all(each.tp_min_local_shape == 16 for each in layer[1].weights.values())


def test_layers_with_experts_are_those_that_the_configuration_says():
    stated = config(
        "qwen3_moe",
        **HEADS,
        intermediate_size=64,
        moe_intermediate_size=16,
        mlp_only_layers=[1],
        decoder_sparse_step=2,
        num_hidden_layers=6,
    )
    layers = dx.hints.from_config(stated).layers
    types = [layers[f"model.layers.{index}.mlp"].layer_type for index in range(6)]
    assert types == ["mlp", "mlp", "mlp", "moe", "mlp", "moe"]


def test_weights_exist_by_what_is_stated():
    sizes = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": 8}
    stated = config("deepseek_v3", **HEADS, **sizes, intermediate_size=64, first_k_dense_replace=1)
    weights = dx.hints.from_config(stated).layers[f"{LAYER}.self_attn"].weights
    assert list(weights) == ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    stated.q_lora_rank = 8
    weights = dx.hints.from_config(stated).layers[f"{LAYER}.self_attn"].weights
    assert list(weights)[:2] == ["q_a_proj", "q_b_proj"]
    assert weights["q_b_proj"] == WeightHint("colwise", (), 24)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (config("lama"), "no hints are known for the model_type 'lama', .*did you mean 'llama'"),
        (config("x", text_config=1), "model_type 'x', .*; pass its text_config, and the prefix"),
        (
            config("x", base_model_tp_plan={**PLAN, "layers.*.mlp.fc": "colwise_gather_output"}),
            "model_type 'x'",
        ),
        (config("phi3", hidden_size=64), "self_attn.qkv_proj: num_attention_heads is not stated"),
        (phi(num_attention_heads=0), "num_attention_heads is 0, not a positive number"),
        (phi(num_attention_heads=5), "phi3: model.layers.0.self_attn.*32 cannot be divided by 5"),
        (
            config("mamba2", **{**MAMBA, "n_groups": 3}),
            "backbone.layers.0.mixer.in_proj: 128 cannot be divided by 3",
        ),
        (config("nemotron_h", layer_types=["mlpp"]), "layer 0 .* 'mlpp', .* did you mean 'mlp'"),
        (config("nemotron_h", layer_types=[]), "states no type of layer 0"),
        (config("nemotron_h", layer_types=3), "layer_types is 3, not a list"),
        (config("nemotron_h", layer_types=[3]), "layer 0 of nemotron_h is of the type 3, not"),
        (phi(num_hidden_layers=10**9), "num_hidden_layers is 1000000000, more than 10000"),
        (config("qwen3_moe", mlp_layer_types=["dense"], num_hidden_layers=2, **FEW), "not layer 1"),
        (
            config("qwen3_moe", decoder_sparse_step="2", **FEW),
            "decoder_sparse_step is 2, not a num",
        ),
        (config("qwen3_moe", mlp_only_layers=1, **FEW), "mlp_only_layers is 1, not a list"),
        (config("x", base_model_tp_plan={"layers.*.a": 1}), "base_model_tp_plan is .*, not names"),
        ({"hidden_size": 64}, "the configuration states no model_type"),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "more than 10000"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(stated, message):
    with pytest.raises(ValueError, match=message):
        dx.hints.from_config(stated)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, json.dumps({"hidden_size": 4})])
def test_files_that_are_no_configuration_are_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match="configuration"):
        dx.hints.from_config(tmp_path)
