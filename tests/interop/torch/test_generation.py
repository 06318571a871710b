"""Tokens that workers generate with models of transformers are those of ``model.generate``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import distir_ext as dx
from distir_ext.cli import main

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tests.interop.torch.models import SIZES, randomly  # noqa: E402

pytestmark = pytest.mark.models
LARGE = pytest.mark.large
VOCABULARY, NEW = 64, 10
SMALL = {
    **SIZES,
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "eos_token_id": None,
}
SPECIAL = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
ENCODER_DECODER = {**SPECIAL, "decoder_start_token_id": 0}


def llama(**sizes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SMALL, **sizes}))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SMALL, head_dim=8))


def gemma3():
    layers = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=5, layer_types=layers
    )
    return transformers.Gemma3ForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        n_embd=32, n_layer=1, n_head=4, n_positions=64, vocab_size=VOCABULARY, **SPECIAL
    )
    return transformers.GPT2LMHeadModel(config)


def phi3():
    return transformers.Phi3ForCausalLM(transformers.Phi3Config(**SMALL))


def mixtral():
    sizes = {**SMALL, "num_hidden_layers": 1}
    config = transformers.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2)
    return transformers.MixtralForCausalLM(config)


def mamba2():
    config = transformers.Mamba2Config(
        hidden_size=32,
        num_heads=4,
        head_dim=16,
        state_size=8,
        n_groups=2,
        num_hidden_layers=2,
        vocab_size=VOCABULARY,
        chunk_size=4,
        **SPECIAL,
    )
    return transformers.Mamba2ForCausalLM(config)


def t5():
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=1,
        num_heads=4,
        **ENCODER_DECODER,
    )
    return transformers.T5ForConditionalGeneration(config)


def whisper():
    sides = ("encoder", "decoder")
    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=8,
        d_model=32,
        max_source_positions=16,
        max_target_positions=64,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        **{f"{side}_layers": 1 for side in sides},
        **{f"{side}_attention_heads": 4 for side in sides},
        **{f"{side}_ffn_dim": 48 for side in sides},
        **ENCODER_DECODER,
    )
    return transformers.WhisperForConditionalGeneration(config)


FAMILIES = {each.__name__: each for each in (llama, qwen3, gemma3, gpt2, phi3, mixtral, mamba2)}
FAMILIES |= {each.__name__: each for each in (t5, whisper)}
MESHES = ({"tp": 1}, {"tp": 2}, {"tp": 3}, {"tp": 4}, {"dp": 2, "tp": 2})
SAMPLE = (("llama", {"dp": 2, "tp": 2}), ("gemma3", {"tp": 3}))


def prompts(rows=3, length=11):
    """Prompts of which two are padded on the left."""
    ids = torch.randint(4, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    mask[2, :9] = 0
    return ids, mask


def a_model(name):
    """A model whose tokens vary, and inputs for it."""
    model = randomly(FAMILIES[name])
    ids, mask = prompts()
    if name not in ("t5", "whisper"):
        return model, None, {"input_ids": ids, "attention_mask": mask}
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.6 * torch.randn(parameter.shape, generator=generator))
    if name == "t5":
        return model, None, {"input_ids": ids, "attention_mask": mask.flip(1)}
    features = {"input_features": torch.randn(3, 8, 32, generator=generator)}
    return model, features, features


def generation(**sizes):
    return dx.interop.torch.Generation(**{"max_length": 24, "batch": 2, "chunk": 4, **sizes})


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        pytest.param(name, mesh, marks=() if (name, mesh) in SAMPLE else LARGE)
        for name in FAMILIES
        for mesh in MESHES
    ],
    ids=lambda each: each if isinstance(each, str) else "x".join(map(str, each.values())),
)
def test_greedy_tokens_are_those_of_transformers(name, mesh):
    model, example, inputs = a_model(name)
    asked = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**inputs, **asked)
    with dx.interop.torch.partition(
        model, example, dx.Mesh(**mesh), "tp", generation=generation()
    ) as sharded:
        found = sharded.generate(**inputs, **asked)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        # One sequence alone, of another length, in the same programs.
        first = {key: value[:1] for key, value in inputs.items()}
        if name != "whisper":
            first = {key: value[:, :3] for key, value in first.items()}
        expected = model.generate(**first, **asked)
        torch.testing.assert_close(sharded.generate(**first, **asked), expected, rtol=0, atol=0)


@pytest.fixture(scope="module")
def one():
    model = randomly(llama)
    with dx.interop.torch.partition(
        model, None, dx.Mesh(tp=2), "hf", generation=generation()
    ) as sharded:
        yield model, sharded


def test_tokens_are_chosen_as_transformers_chooses_them(one):
    model, sharded = one
    ids, mask = prompts()
    inputs = {"input_ids": ids, "attention_mask": mask, "pad_token_id": 0}
    greedy = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    stop = int(greedy[0, ids.shape[1] + 3])
    for asked in (
        {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.8},
        {"do_sample": True, "num_return_sequences": 2},
        {"do_sample": False, "eos_token_id": stop},
        {"do_sample": False, "repetition_penalty": 1.3},
    ):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            expected = model.generate(**inputs, max_new_tokens=NEW, **asked)
        found = sharded.generate(**inputs, max_new_tokens=NEW, seed=5, **asked)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_tokens_stream_and_caches_stay_on_workers(one, monkeypatch):
    model, sharded = one
    shapes = []
    tensor = dx.ShardedArray.tensor

    def record(self):
        shapes.append(self.shape)
        return tensor(self)

    monkeypatch.setattr(dx.ShardedArray, "tensor", record)

    class Streamer:
        def __init__(self):
            self.tokens = []

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.tokens.append("end")

    streamer = Streamer()
    ids = prompts()[0][:1]
    tokens = sharded.generate(ids, max_new_tokens=4, do_sample=False, streamer=streamer)
    assert streamer.tokens == [*tokens[0].tolist(), "end"]
    # Logits of each chunk of the prompt and of each step, and nothing else.
    assert shapes == [(2, VOCABULARY)] * (3 + 3)
    report = sharded.report
    assert (report.sequences, report.prompt_tokens, report.new_tokens) == (1, 11, 4)
    slots = generation().slots
    keys = model.config.num_hidden_layers * 2 * (2 * slots * 8) * 4  # for a head, float32
    assert (report.cache_bytes, report.cache_bytes_per_device) == (2 * keys, keys)
    assert report.tokens_per_second > 0
    assert "tokens/s" in str(report)


def test_steps_send_what_megatron_sends_and_are_priced(one):
    model, sharded = one
    for name in ("prefill", "decode"):
        sent = [
            each for each in dx.analysis.collectives(dx.lower(sharded.mod)) if each.function == name
        ]
        # Two per layer, and one for the embedding; the last position's logits come together.
        counts = {each.kind: each.count for each in sent}
        layers = model.config.num_hidden_layers
        assert counts == {"all_reduce": 2 * layers + 1, "all_gather": 1}
    cluster = dx.Cluster.preset("H100")
    assert dx.analysis.estimate(sharded.mod, cluster).seconds > 0
    steps = [
        dx.analysis.simulate(sharded.mod, cluster, function=name).seconds
        for name in ("prefill", "decode")
    ]
    assert all(seconds > 0 for seconds in steps)


def test_caches_are_written_in_place(one):
    _, sharded = one
    with dx.Session(sharded.mesh) as session:
        model = sharded.load(session)
        caches = dict(
            zip(
                (each.name for each in sharded.layout.kept),
                model["empty"](**sharded.layout.zeros()),
                strict=True,
            )
        )
        inputs = sharded.layout.inputs(1)
        inputs["ids"] = inputs["ids"] + 5
        _, *after = model["decode"](**{**inputs, **caches})
        before = list(caches.values())
        assert np.abs(after[0].numpy()).max() > 0
        np.testing.assert_array_equal(before[0].numpy(), after[0].numpy())


def test_what_cannot_be_generated_is_one_error(one):
    _, sharded = one
    ids = prompts()[0]
    for wrong, message in (
        ({"input_ids": ids.repeat(1, 3)}, "a prompt of 33 tokens is longer than the caches"),
        ({"input_ids": ids, "max_new_tokens": 20}, "11 tokens and 20 new ones are more than"),
        ({"input_ids": ids, "num_beams": 2}, "beam search is not possible"),
        ({"input_ids": ids[0]}, "it is \\(sequences, tokens\\)"),
        ({"input_ids": ids, "max_new_token": 2}, "max_new_token"),
    ):
        with pytest.raises(ValueError, match=message):
            sharded.generate(**wrong)
    with pytest.raises(TypeError, match="generate\\(\\) takes input_ids"):
        sharded.generate()
    partition, mesh = dx.interop.torch.partition, dx.Mesh(tp=2)
    with pytest.raises(TypeError, match="Linear is not a model of transformers"):
        partition(torch.nn.Linear(2, 2).eval(), None, mesh, generation=generation())
    base = randomly(llama).model
    with pytest.raises(ValueError, match="LlamaModel does not generate"):
        partition(base, None, mesh, generation=generation())
    whole = randomly(llama)
    with pytest.raises(TypeError, match="Generation\\(max_length"):
        partition(whole, None, mesh, generation=20)
    with pytest.raises(ValueError, match="it is at least 1"):
        dx.interop.torch.Generation(max_length=0)


def test_the_command_reads_folders(tmp_path, capsys):
    model = randomly(llama)
    model.save_pretrained(tmp_path)
    capsys.readouterr()
    expected = model.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=4, do_sample=False)
    command = ["generate", str(tmp_path), "--mesh", "tp=2", "--max-new-tokens", "4"]
    assert main([*command, "--token-ids", "5,7,9", "--strategy", "hf", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tokens"] == expected[:, 3:].tolist()
    assert printed["report"]["new_tokens"] == 4
    assert main([*command, "--prompt", "hello"]) == 2
    assert "has no tokenizer" in capsys.readouterr().err
    assert main([*command, "--token-ids", "64"]) == 2
    assert "there is no token 64" in capsys.readouterr().err
