"""Tiny models of transformers under hints: results, and the textbook's communication."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import pytest
from tests.hints.by_weight import by_weight
from tests.targets import QUICK

from distir_ext import hints
from distir_ext.cli import main

pytestmark = pytest.mark.models

ALL = ("llama", "deepseek_v3", "qwen3_moe", "mamba2", "qwen3_next", "nemotron_h")
LARGE = [pytest.param(name, marks=pytest.mark.large) for name in ALL[1:]]


# Each kind of layer once or twice; the command has four layers.
TWO = {"num_hidden_layers": 2}
SIZES = {**dict.fromkeys(ALL, TWO), "nemotron_h": {}}
SIZES["qwen3_next"] = {**TWO, "layer_types": ["linear_attention", "full_attention"]}


@functools.cache
def tiny(name):
    from distir_ext.hints.verification.models import imported

    return imported(name, **SIZES[name])


def verify(name, *arguments):
    from distir_ext.hints.verification import check

    return check.verify(name, tiny(name), *arguments, target=QUICK)


def sharded(plan):
    return {name: dims for name, dims in plan.items() if any(dims)}


@pytest.mark.parametrize("name", ["llama", *LARGE])
def test_every_configuration_passes(name):
    """By the hints that are detected, and those that the model's configuration states."""
    from distir_ext.hints.verification.check import CONFIGS

    mod = tiny(name).mod
    detected, stated = hints.detect(mod), hints.from_config(tiny(name).config)
    assert by_weight(stated, mod) == by_weight(detected, mod)
    first, second = (hints.apply(mod, CONFIGS["tep"], each) for each in (detected, stated))
    assert sharded(first.plan) == sharded(second.plan)
    assert (first.weights, str(first.mesh)) == (second.weights, str(second.mesh))
    for config in CONFIGS:
        has_experts = name not in ("llama", "mamba2")
        outcome = verify(name, config, stated if config == "tep" else detected)
        expected = "skip" if config == "ep-only" and not has_experts else "pass"
        assert (outcome.status, bool(outcome.why)) == (expected, expected == "skip"), outcome


def test_attention_without_its_last_product_fails():
    found = hints.detect(tiny("llama").mod)
    layer = next(name for name, each in found.layers.items() if each.layer_type == "mha")
    wrong = found.with_weight(layer, "o_proj_weight", tp_mode="none")
    assert verify("llama", "tp-only", wrong).status == "FAIL"


@pytest.mark.parametrize("source", ["detect", "config"])
def test_the_command_takes_both_sources(source, capsys, monkeypatch):
    from distir_ext.hints.verification import models

    model = tiny("llama")
    monkeypatch.setattr(models, "imported", lambda _: model)
    chosen = ("--config=tp-only", "--config=ep-only", f"--hints={source}")
    assert main(["verify-hints", "llama", "--json", *chosen]) == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [each["status"] for each in outcomes] == ["pass", "skip"]
    assert outcomes[0]["line"].startswith("hints: 14 nodes processed (mha 8, mlp 6)")


@pytest.mark.large
def test_one_weight_of_queries_keys_and_values():
    """As Phi-3 has it, which the matrix has not."""
    import torch
    import transformers

    from distir_ext.interop.torch import import_model

    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 48, "pad_token_id": 0}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = transformers.Phi3Config(**sizes, **heads)
    ids = torch.ones((4, 8), dtype=torch.int64)
    mod = import_model(transformers.Phi3ForCausalLM(config).eval(), {"input_ids": ids}).mod
    stated = hints.from_config(config)
    assert by_weight(stated, mod) == by_weight(hints.detect(mod), mod)
    fused = stated.layers["model.layers.0.self_attn"].weights["qkv_proj"]
    assert fused == hints.WeightHint("colwise", (64, 32, 32), 16)


@pytest.mark.parametrize(
    "name",
    [
        "GPT2LMHeadModel",
        *(
            pytest.param(name, marks=pytest.mark.large)
            for name in ("OPTForCausalLM", "MixtralForCausalLM", "Lfm2ForCausalLM")
        ),
    ],
)
def test_a_configuration_is_read_from_the_modules(name):
    """Of layers that are alike one is looked at, without weights; the numbers are right."""
    from distir_ext.hints.verification import check
    from distir_ext.hints.verification.own_models import own_program

    program = own_program(name, {})
    stated, detected = hints.from_config(program.config), hints.detect(program.mod)
    assert by_weight(stated, program.mod) == by_weight(detected, program.mod)
    assert all(
        each.size
        for layer in stated.layers.values()
        for each in layer.weights.values()
        if each.tp_mode != "none"
    )
    outcome = check.verify(name, program, "tp-only", stated, target=QUICK, devices=4)
    assert outcome.rel_rmse < 1e-5, outcome.why


def test_batch_and_heads_that_are_merged_and_permuted_stay_apart():
    """Bloom merges them for alibi, and transposes the keys then: nothing is gathered."""
    from distir_ext.hints.verification import check
    from distir_ext.hints.verification.own_models import own_program

    outcome = check.verify("bloom", own_program("BloomForCausalLM", {}), "tp-only", target=QUICK)
    assert (outcome.status, outcome.why) == ("pass", "")
    assert "gather" not in outcome.communicated


# Sizes that say which layers there are, or how large a state is; all else is as for the command.
STATE = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 8}
CHANGES = {
    "Glm4Moe": {"first_k_dense_replace": 1},
    "Jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "Bamba": {**STATE, "attn_layer_indices": [1], "mamba_chunk_size": 4},
    "FalconH1": {**STATE, "mamba_d_ssm": 128, "mamba_chunk_size": 4},
    "Zamba2": {
        **{"layers_block_type": ["mamba", "hybrid"], "mamba_headdim": 16, "n_mamba_heads": 8},
        **{"mamba_ngroups": 2, "mamba_d_state": 8, "chunk_size": 4, "num_mem_blocks": 1},
        **{"attention_head_dim": 32, "adapter_rank": 8},
    },
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Qwen3_5Moe": {"layer_types": ["linear_attention", "full_attention"]},
}
OTHERS = ("Qwen2Moe", "Mixtral", "Glm4", "Olmoe", "GPTNeoX", "OPT", "Bloom", "GraniteMoe")
OTHERS = (*OTHERS, "Starcoder2", "Phimoe", "MiniMaxM2", "GPT2LMHeadModel", "GptOss", "Mamba")
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in (*CHANGES, *OTHERS)]
NAMES = ["Falcon", pytest.param("Olmo2", marks=pytest.mark.large), *SLOW]


@pytest.mark.parametrize("name", NAMES)
def test_a_named_configuration_passes(name):
    """Hints of the configuration: numbers, communication, and no weight replicated in silence."""
    import transformers

    from distir_ext.hints.verification import check
    from distir_ext.hints.verification.models import computed
    from distir_ext.hints.verification.own_models import small_configuration

    cls = getattr(transformers, name if name.endswith("Model") else f"{name}ForCausalLM")
    program = computed(cls, small_configuration(cls.config_class, {**TWO, **CHANGES.get(name, {})}))
    stated = hints.from_config(program.config)
    has_experts = any(layer.layer_type == "moe" for layer in stated.layers.values())
    for config, devices in (("tp-only", 2), ("tep" if has_experts else "tp-only", 4)):
        outcome = check.verify(name, program, config, stated, target=QUICK, devices=devices)
        assert (outcome.status, outcome.why) == ("pass", ""), outcome
        dist = check.configuration_of(config, devices)
        report = hints.apply(program.mod, dist, stated).report
        assert all(report.replicated.values()), report.replicated
        assert report.processed


def test_names_of_a_configuration_have_a_prefix():
    stated = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 32}
    layers = hints.from_config(stated, prefix="decoder").layers
    assert list(layers) == [f"decoder.h.{i}.{part}" for i in range(3) for part in ("attn", "mlp")]
    assert layers["decoder.h.2.mlp"].weights["c_proj"].size == 128


def test_the_command_takes_models_of_users(tmp_path, monkeypatch, capsys):
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 16)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x)))

    model = torch.nn.Sequential(Layer(), Layer()).eval()
    path = str(tmp_path / "model.pt2")
    torch.export.save(torch.export.export(model, (torch.randn(4, 16),)), path)
    assert main(["verify-hints", path, "--config", "tp-only", "--devices", "4"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"model.pt2 tp-only: pass, rel_rmse=\S+e-0[78] \(tol=1e-05\)", out)
    monkeypatch.setenv("DISTIR_VERIFY_TOL", "1e-12")
    assert main(["verify-hints", path, "--config", "tp-only"]) == 1
    assert "(tol=1e-12)" in capsys.readouterr().out
    assert main(["verify-hints", path, "--config", "tp-only", "--tol", "0.1"]) == 0
    assert "(tol=1e-01)" in capsys.readouterr().out
    monkeypatch.setenv("DISTIR_VERIFY_TOL", "little")
    assert main(["verify-hints", path]) == 1
    assert "DISTIR_VERIFY_TOL: 'little' is no number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "llama",
            {"num_attention_heads": 8},
            "q_proj.* model.*self_attn: size is 128, but dim.* 0",
        ),
        ("llama", {"num_key_value_heads": 4}, "k_proj.* layer model.*self_attn: size is 64, but"),
        pytest.param(
            "mamba2",
            {"n_groups": 2},
            r"\(n_groups 2,.*mixer: output_sizes \[128, 128, 16, .* 296, but dimension 0 has 328",
            marks=pytest.mark.large,
        ),
    ],
)
def test_a_configuration_of_another_model_is_an_error(name, change, message):
    from distir_ext.hints.verification.models import MODELS

    program = tiny(name)
    sizes = {**MODELS[name].sizes, **SIZES[name], **change, "model_type": name}
    with pytest.raises(ValueError, match=message):
        hints.apply(program.mod, hints.DistConfig(2), hints.from_config(sizes))


def test_the_example_of_the_page_prints_what_it_says(capsys):
    page = (Path(__file__).resolve().parents[2] / "docs" / "hints.md").read_text("utf-8")
    section = page.split("## From a model's configuration")[1]
    code, printed = re.findall(r"^```(?:python)?\n(.*?)^```$", section, re.M | re.S)[:2]
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_a_file_of_a_model_is_read(tmp_path):
    from distir_ext.hints.families import BY_PLAN

    stated = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    for model_type in BY_PLAN:  # without what classes have by default
        (tmp_path / "config.json").write_text(json.dumps({**stated, "model_type": model_type}))
        layers = hints.from_config(tmp_path).layers
        assert [each.layer_type for each in layers.values()] == ["mha", "mlp"] * 2
    pattern = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-*E"}
    types = [each.layer_type for each in hints.from_config(pattern).layers.values()]
    assert types == ["ssm", "mlp", "mha", "moe"]


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama', .*did you mean 'llama'"),
        ({"model_type": "clip"}, "no hints are known for the model_type 'clip'"),
        ({"model_type": "gpt2", "n_embd": 30}, "GPT2LMHeadModel refuses the configuration: .*30"),
        (
            {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 5},
            "transformers refuses the configuration of llama: .*not a multiple",
        ),
        ({"model_type": "llama", "hidden_size": "many"}, "transformers refuses .*hidden_size"),
    ],
)
def test_what_is_wrong_with_a_configuration_is_said(stated, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        hints.from_config(stated)
