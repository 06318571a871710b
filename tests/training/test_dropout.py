"""Dropout in training steps: masks of a seed, a step and a call, the same ones on every mesh."""

import numpy as np
import pytest
from tests import threefry
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx

RATES = (0.25, 0.5)
BATCH, SIZES = 12, {"w1": (16, 10), "w2": (10, 4)}
SEED = -(2**40) + 7
DP = {"x": ("dp", None), "target": ("dp",)}
TP = {r"state\.params\.w1": (None, "tp"), r"state\.params\.w2": ("tp", None)}


def network(rates=RATES, dtype="float32", with_masks=False, marked=False):
    """A network whose input and hidden values are dropped."""
    builder = relax.BlockBuilder()
    emit = builder.emit
    x = relax.Var("x", relax.TensorType((BATCH, SIZES["w1"][0]), dtype))
    w1, w2 = (relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in SIZES.items())

    def layer(h, weight):
        h = emit(op.nn.relu(op.matmul(h, weight)))
        both = emit(op.nn.dropout(h, rates[1]))
        return [emit(relax.TupleGetItem(both, at)) for at in range(2)]

    with builder.function("main", [x, w1, w2], attrs={"num_input": 1}):
        with builder.dataflow():
            first = emit(op.nn.dropout(x, rates[0]))
            inputs = emit(relax.TupleGetItem(first, 0)), w1
            h, second = dx.training.checkpoint(layer, *inputs) if marked else layer(*inputs)
            results = [op.matmul(h, w2)]
            if with_masks:
                results += [relax.TupleGetItem(first, 1), second]
            results = [builder.emit_output(each) for each in results]
        builder.emit_func_output(relax.Tuple(results) if with_masks else results[0])
    return builder.get()


def values(dtype="float32"):
    rng = np.random.default_rng(5)
    weights = {name: rng.standard_normal(shape).astype(dtype) for name, shape in SIZES.items()}
    x = rng.standard_normal((BATCH, 16)).astype(dtype)
    return weights, {"x": x, "target": rng.integers(0, 4, BATCH), "learning_rate": 0.1}


def built(step, mesh, plan):
    return dx.build(dx.annotate(step, mesh, plan), target=QUICK)


def curve(executable, mesh, state, number=3):
    """Losses of some steps, and the state behind them."""
    _, batch = values()
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(executable))
        losses = []
        for _ in range(number):
            state, metrics = train(state, batch)
            losses.append(float(metrics["loss"].numpy()))
        return losses, {name: each.numpy() for name, each in state.items()}


def masks(seed, step):
    """The masks of a step, by NumPy."""
    shapes = (BATCH, 16), (BATCH, 10)
    keys = [threefry.bits(seed, np.int64((step << 32) + call), "int64") for call in range(2)]
    return [
        threefry.kept(key, shape, 1 - rate)
        for key, shape, rate in zip(keys, shapes, RATES, strict=True)
    ]


def losses_of_torch(number=3):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    weights, batch = values()
    weights = {name: torch.nn.Parameter(torch.tensor(each)) for name, each in weights.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    for step in range(number):
        first, second = (torch.tensor(each) for each in masks(SEED, step))
        h = torch.where(first, torch.tensor(batch["x"]) / 0.75, 0.0) @ weights["w1"]
        h = torch.where(second, torch.relu(h) / 0.5, 0.0)
        loss = torch.nn.functional.cross_entropy(h @ weights["w2"], torch.tensor(batch["target"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield float(loss.detach())


def test_losses_are_those_of_torch_with_the_same_masks_on_every_mesh(sample):
    step = dx.train_step(network(), "cross_entropy")
    wanted = list(losses_of_torch())
    meshes = [
        ({"dp": 8}, DP),  # which does not divide the batch
        ({"dp": 3, "tp": 4}, {**DP, **TP}),  # which does not divide the hidden values
        ({"dp": 1}, {}),
        ({"dp": 2}, DP),
        ({"tp": 3}, TP),
        ({"dp": 2, "tp": 2}, {**DP, **TP}),
    ]
    for axes, plan in meshes[: sample(2, 6, 6)]:
        state = dx.training.initial_state(step, values()[0], dropout_seed=SEED)
        mesh = dx.Mesh(**axes)
        found, behind = curve(built(step, mesh, plan), mesh, state)
        assert found == pytest.approx(wanted, rel=2e-6), axes
        assert behind["state.dropout_seed"] == SEED


def test_masks_take_no_collectives():
    sent = [
        [
            (each.kind, each.count, each.bytes_per_device)
            for each in dx.analysis.collectives(
                dx.lower(dx.annotate(dx.train_step(network(rates), "cross_entropy"), mesh, plan))
            )
        ]
        for rates in (RATES, (0, 0))
        for mesh, plan in ((dx.Mesh(dp=2, tp=2), {**DP, **TP}),)
    ]
    assert sent[0] == sent[1]


def test_a_run_goes_on_with_the_identical_curve_and_masks_of_other_seeds_differ():
    step, mesh = dx.train_step(network(), "cross_entropy", "adamw"), dx.Mesh(dp=2)
    first = dx.training.initial_state(step, values()[0], dropout_seed=SEED)
    executable = built(step, mesh, DP)
    whole, _ = curve(executable, mesh, first, 4)
    begun, saved = curve(executable, mesh, first, 2)
    rest, _ = curve(executable, mesh, saved, 2)
    assert begun + rest == whole
    other = dx.training.initial_state(step, values()[0])
    assert curve(executable, mesh, other, 1)[0] != whole[:1]


def test_values_that_are_computed_again_have_the_same_masks():
    kept = dx.train_step(network(), "cross_entropy")
    again = dx.train_step(network(marked=True), "cross_entropy")
    assert again.script().count("random_bits") > kept.script().count("random_bits")
    mesh = dx.Mesh(dp=2)
    found = [
        curve(built(each, mesh, DP), mesh, dx.training.initial_state(each, values()[0]))
        for each in (kept, again)
    ]
    assert found[0][0] == found[1][0]
    for name, each in found[0][1].items():
        assert np.array_equal(each, found[1][1][name]), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_masks_are_results_and_of_the_forward_function_alone_ones(dtype):
    mod = network(dtype=dtype, with_masks=True)
    step = dx.train_step(mod, "cross_entropy")
    weights, batch = values(dtype)
    mesh = dx.Mesh(dp=4)
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(built(step, mesh, DP)))
        state = dx.training.initial_state(step, weights, dropout_seed=SEED)
        for at in range(2):
            state, metrics = train(state, batch)
            for number, wanted in enumerate(masks(SEED, at)):
                found = metrics[f"output.{number}"].numpy()
                assert found.dtype == dtype
                assert np.array_equal(found != 0, wanted)
        forward = built(mod, mesh, {"x": ("dp", None)})
        y, *ones = session.load(forward, params=weights)["main"](batch["x"])
        hidden = np.maximum(batch["x"].astype("float32") @ weights["w1"].astype("float32"), 0)
        wanted = hidden @ weights["w2"].astype("float32")
        assert np.allclose(y.numpy(), wanted, rtol=2e-2, atol=0.2 if dtype == "float16" else 1e-4)
        assert all((each.numpy() == 1).all() for each in ones)


def test_rates_that_cannot_be_are_refused():
    for rate in (1.0, -0.5, float("nan")):
        with pytest.raises(ValueError, match=r"of main is R.nn.dropout with the rate .*below 1"):
            dx.train_step(network((rate, 0.5)), "cross_entropy")
