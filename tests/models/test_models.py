"""Models of transformers, torch and ONNX compute on four workers what their frameworks compute."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytestmark = pytest.mark.models

MODELS = ("llama", "gpt2", "mixtral", "mamba2", "vision", "encoder")
PLANS = ("tensor", "data x tensor", "fully sharded")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("plan", PLANS)
def test_partitioned_model_agrees_with_its_framework(exported, name, plan):
    from models.run import run

    model = exported(name)
    assert np.std(model.expected) > 0.1
    assert run(model, plan).error < 1e-5


@pytest.mark.large
@pytest.mark.parametrize(
    ("name", "workers"),
    [*((name, 5) for name in MODELS), *((name, 6) for name in ("gpt2", "llama", "mixtral"))],
)
def test_partitioned_model_on_workers_that_divide_nothing(name, workers):
    """4 heads of keys, 8 of queries, 8 experts, 128 words."""
    from huggingface import MODELS as models
    from models.run import run

    model = models[name](workers)
    for plan in PLANS:
        assert run(model, plan, workers=workers).error < 1e-5, plan


@pytest.mark.large
@pytest.mark.parametrize("workers", [3, 5, 6, 7])
def test_llama_reduces_as_on_two_workers(exported, workers):
    """Two reductions per layer and one for the embedding, whether heads of keys are enough."""
    from models.run import run

    outcome = run(exported("llama"), "tensor", workers=workers)
    assert outcome.error < 1e-5
    assert [(each.kind, each.count) for each in outcome.collectives] == [("all_reduce", 5)]


def test_the_example_runs_every_model_and_plan():
    from huggingface import MODELS as models
    from huggingface import PLANS as plans

    assert (tuple(models), plans) == (MODELS, PLANS)


@pytest.mark.parametrize("name", ["llama", "encoder"])
def test_a_wrong_weight_is_seen(exported, name):
    from models.run import run

    model = exported(name)
    # The last of the weights that a sum runs over, in another order.
    changed = next(key for key in reversed(model.weights) if model.weights[key].ndim > 1)
    weights = {**model.weights, changed: np.roll(model.weights[changed], 1, axis=-1)}
    assert run(dataclasses.replace(model, weights=weights), "tensor").error > 1e-3


def test_example_prints_a_table(capsys):
    from huggingface import main

    assert main(["--model", "encoder", "--plan", "tensor"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "encoder" in line)
    assert row.split()[:2] == ["encoder", "tensor"]
    assert "2 all_reduce" in row


def test_example_fails_when_a_result_is_wrong(exported, monkeypatch, capsys):
    import huggingface

    model = exported("encoder")
    wrong = dataclasses.replace(model, expected=model.expected * 1.001)
    monkeypatch.setattr(huggingface, "MODELS", {"encoder": lambda batch: wrong})
    assert huggingface.main(["--model", "encoder", "--plan", "tensor"]) == 1
    assert "encoder, tensor: relative RMSE" in capsys.readouterr().out


def test_example_fails_when_a_plan_names_nothing(exported, monkeypatch, capsys):
    import huggingface
    from models.case import Partition

    model = exported("encoder")
    axes = model.partitions["tensor"].axes
    wrong = dataclasses.replace(model, partitions={"tensor": Partition(axes, {"absent": None})})
    monkeypatch.setattr(huggingface, "MODELS", {"encoder": lambda batch: wrong})
    assert huggingface.main(["--model", "encoder", "--plan", "tensor"]) == 1
    assert "pattern 'absent' matches no parameter" in capsys.readouterr().out
