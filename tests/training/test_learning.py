"""The example's GPT has torch's loss curve under every plan, and goes on where it was ended."""

import contextlib
import importlib
import sys
from pathlib import Path

import pytest

import distir_ext as dx

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    try:
        yield importlib.import_module("train")
    finally:
        sys.path.remove(str(EXAMPLES))


def test_collectives_of_a_step_are_as_few_as_documented(example):
    """Those of docs/training.md."""
    gpt, counts = example.gpt, {}
    config = gpt.Config(width=64, layers=2)
    step = dx.train_step(gpt.forward(config, 16), "cross_entropy", "adamw", clip=1.0)
    for plan in ("dp", "zero1", "fsdp", "tp", "dp_tp"):
        axes, entries = gpt.PLANS[plan]
        lowered = dx.lower(dx.annotate(step, dx.Mesh(**axes), entries))
        counts[plan] = sum(each.count for each in dx.analysis.collectives(lowered))
    assert counts == {"dp": 1, "zero1": 3, "fsdp": 3, "tp": 13, "dp_tp": 15}


@pytest.mark.large
@pytest.mark.parametrize("plan", ["dp_tp", "fsdp", "one", "dp", "zero1", "tp"])
def test_loss_curve_is_that_of_torch(example, plan, sample):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    steps = sample(8, 8, 50, 50)
    config = example.gpt.Config(width=32, layers=sample(1, 1, 2, 2))
    wanted = list(example.torch_losses(steps, config))
    found = [loss for _, loss in example.losses(plan, steps, config)]
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found[-1] < 0.98 * found[0]


@pytest.mark.large
def test_a_run_goes_on_with_the_identical_curve(example, tmp_path):
    config = example.gpt.Config(width=16, heads=2, layers=1, length=8)
    whole = [loss for _, loss in example.losses("fsdp", 6, config)]
    path = tmp_path / "run.npz"
    ended = example.losses("fsdp", 6, config, path, every=2)
    with contextlib.closing(ended):  # in the middle, a step behind its checkpoint
        assert [next(ended)[1] for _ in range(5)] == whole[:5]
    rest = dict(example.losses("fsdp", 6, config, path))
    assert rest == {4: whole[4], 5: whole[5]}
    (last,) = dict(example.losses("dp", 7, config, path)).values()
    assert last < whole[0]
