"""Greedy tokens of a partitioned model with caches equal those of the unpartitioned one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import distir_ext as dx
from generate import main
from generation.llama import CONFIG
from generation.serve import greedy, partition, random_task, run_partitioned, run_unpartitioned

STEPS = 64


@pytest.fixture(scope="module")
def task():
    return random_task(CONFIG, batch=2, length=5)


@pytest.fixture(scope="module")
def expected(task):
    return run_unpartitioned(task, STEPS).tokens


@pytest.fixture
def gathered(monkeypatch):
    """The shapes of arrays that are brought to the host."""
    shapes = []
    tensor = dx.ShardedArray.tensor

    def record(self):
        shapes.append(self.shape)
        return tensor(self)

    monkeypatch.setattr(dx.ShardedArray, "tensor", record)
    return shapes


@pytest.mark.parametrize(
    "shape",
    [*(pytest.param((1, n), marks=pytest.mark.large) for n in (2, 4)), (2, 2)],
    ids=["2", "4", "2x2"],
)
def test_equal_to_the_unpartitioned_program(shape, task, expected, gathered):
    mesh = dx.Mesh(shape, ("dp", "tp"))
    executable, collectives = partition(task, mesh)
    actual = run_partitioned(executable, task, mesh, STEPS)
    np.testing.assert_array_equal(actual.tokens, expected)
    assert gathered == [(2, 1)] * STEPS  # tokens; the caches never leave the workers
    step = [each for each in collectives if each.function == "decode"]
    assert {each.kind for each in step} == {"all_reduce"}
    # Two per layer, as Megatron has, and two to find the largest of sharded logits.
    assert sum(each.count for each in step) == 2 * CONFIG.layers + 2


@pytest.mark.large
def test_heads_that_do_not_divide(task, expected):
    mesh = dx.Mesh((1, 3), ("dp", "tp"))
    actual = run_partitioned(partition(task, mesh)[0], task, mesh, 8)
    np.testing.assert_array_equal(actual.tokens, expected[:, :8])


def test_a_wrong_weight_or_cache_shows(task, expected):
    """The controls: tokens are varied, and depend on a layer's weight and on what is cached."""
    assert len(np.unique(expected)) > 32
    mesh = dx.Mesh((2, 1), ("dp", "tp"))
    executable, _ = partition(task, mesh)
    weights = dict(task.weights)
    name = next(each for each in weights if "k_proj" in each)
    weights[name] = np.roll(weights[name], CONFIG.head_size, axis=0)
    wrong = run_partitioned(executable, replace(task, weights=weights), mesh, STEPS)
    assert not np.array_equal(wrong.tokens, expected)
    with dx.Session(mesh) as session:
        model = session.load(executable, params=task.weights)

        def forgetful(ids, positions, caches):
            empty = [np.zeros((0, *cache.shape[1:]), "float32") for cache in caches]
            return model["decode"](ids, positions, empty)

        found = greedy({"prefill": model["prefill"], "decode": forgetful}, task.prompt, STEPS)
    assert not np.array_equal(found.tokens, expected)


@pytest.mark.large
def test_command_line(capsys):
    sizes = ["--batch", "2", "--prompt", "3", "--tokens", "4", "--layers", "1", "--hidden", "32"]
    assert main(["--workers", "2", *sizes]) == 0
    assert "8 tokens of both: equal" in capsys.readouterr().out
    for wrong in (["--mesh", "2"], ["--workers", "0"], ["--hidden", "40"]):
        with pytest.raises(SystemExit):
            main(wrong)
        assert "error: " in capsys.readouterr().err
