"""Models of transformers whose batch and sequence are of any length."""

from __future__ import annotations

import pytest

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tests.targets import QUICK  # noqa: E402

from . import models  # noqa: E402

pytestmark = pytest.mark.models
OPEN = {0: torch.export.Dim("batch", min=2, max=64), 1: torch.export.Dim("length", min=2, max=32)}


def gemma3():
    sizes = {**models.SIZES, "num_hidden_layers": 2, "head_dim": 16, "sliding_window": 6}
    kinds = ["sliding_attention", "full_attention"]
    config = transformers.Gemma3TextConfig(**sizes, layer_types=kinds)
    return models.randomly(lambda: transformers.Gemma3ForCausalLM(config))


def qwen3():
    config = transformers.Qwen3Config(**{**models.SIZES, "num_hidden_layers": 1}, head_dim=16)
    return models.randomly(lambda: transformers.Qwen3ForCausalLM(config))


@pytest.mark.parametrize(
    ("make", "plan", "names"),
    [
        (lambda: models.llama(num_hidden_layers=1), "hf", ("input_ids", "attention_mask")),
        (models.gpt2, "tp", ("input_ids",)),
        pytest.param(gemma3, "hf", ("input_ids",), marks=pytest.mark.large),
        pytest.param(qwen3, "tp", ("input_ids",), marks=pytest.mark.large),
    ],
)
def test_batch_and_sequence_of_any_length(make, plan, names):
    model = make()

    def inputs(rows, length):
        ids = torch.randint(1, models.VOCABULARY, (rows, length))
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[0, -1:] = 0
        return {name: ids if name == "input_ids" else mask for name in names}

    sharded = dx.interop.torch.partition(
        model, inputs(4, 8), dx.Mesh(dp=2, tp=2), plan, dynamic_shapes=dict.fromkeys(names, OPEN)
    )
    with dx.Session(sharded.mesh) as session:
        loaded = sharded.load(session)
        for rows, length in ((4, 8), (2, 11), (6, 5)):
            given = inputs(rows, length)
            actual = torch.from_dlpack(loaded(**given)).numpy()
            with torch.no_grad():
                wanted = model(**given, use_cache=False).logits.numpy()
            assert models.error(actual, wanted) < 1e-5


SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
INNER = {**SMALL, "intermediate_size": 48}
GROUPED = {**INNER, "num_key_value_heads": 2, "bos_token_id": 0, "eos_token_id": 0}
MODELS = {
    "BertModel": INNER,
    "FalconForCausalLM": {**SMALL, "bos_token_id": 0, "eos_token_id": 0},
    "GPTNeoXForCausalLM": INNER,
    "OPTForCausalLM": {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 6},
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Phi3ForCausalLM": {**GROUPED, "pad_token_id": 0},
    "Qwen2ForCausalLM": GROUPED,
    "T5EncoderModel": {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1},
    "ViTModel": {**INNER, "image_size": 16, "patch_size": 4},
}
LARGE = [pytest.param(name, marks=pytest.mark.large) for name in list(MODELS)[1:]]


@pytest.mark.parametrize("name", ["BertModel", *LARGE])
def test_lengths_from_one(name):
    cls = getattr(transformers, name)
    model = models.randomly(lambda: cls(cls.config_class(**MODELS[name])))
    sizes = [torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=1, max=32)]

    def given(rows, length):
        if name == "ViTModel":
            return {"pixel_values": torch.randn(rows, 3, 16, 16)}
        return {"input_ids": torch.randint(1, 64, (rows, length))}

    (key,) = given(1, 1)
    is_open = {key: dict(enumerate(sizes[: 1 if name == "ViTModel" else 2]))}
    for axis, plan in (("tp", "tp"), ("dp", "fsdp")):
        sharded = dx.interop.torch.partition(
            model, given(4, 8), dx.Mesh(**{axis: 2}), plan, dynamic_shapes=is_open, target=QUICK
        )
        with dx.Session(sharded.mesh) as session:
            loaded = sharded.load(session)
            for rows, length in ((4, 8), (1, 1), (2, 3), (3, 5), (2, 17)):
                inputs = given(rows, length)
                with torch.no_grad():
                    wanted = model(**inputs)[0].numpy()
                found = loaded(**inputs)
                actual = (found[0] if isinstance(found, tuple | list) else found).numpy()
                assert models.error(actual, wanted) < 1e-5, (axis, rows, length)


def test_several_sequences_in_a_row_are_told_by_positions():
    """Positions that are an input may begin again: tokens see those of their own sequence."""
    model = models.llama(num_hidden_layers=1)
    ids = models.ids()
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]] * len(ids))
    given = {"input_ids": ids, "position_ids": positions}
    sharded = dx.interop.torch.partition(model, given, dx.Mesh(tp=2), "hf")
    with torch.no_grad():
        wanted = model(**given, use_cache=False).logits.numpy()
        alone = model(ids[:, 3:], use_cache=False).logits.numpy()
    assert models.error(wanted[:, 3:], alone) < 1e-5
    with dx.Session(sharded.mesh) as session:
        actual = torch.from_dlpack(sharded.load(session)(**given)).numpy()
    assert models.error(actual, wanted) < 1e-5
