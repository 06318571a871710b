"""Models of transformers whose batch and sequence are of any length."""

from __future__ import annotations

import pytest

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

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
