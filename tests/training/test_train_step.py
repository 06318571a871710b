"""Training steps: weights after some steps are torch's, under every plan; bad input is refused."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

SIZES = {"w1": (16, 32), "b": (32,), "w2": (32, 12)}
DP = {"x": ("dp", None), "target": ("dp",)}
FSDP = {**DP, r"state\.params\.w.": ("dp", None)}
TP = {r"state\.params\.w1": (None, "tp"), r"state\.params\.w2": ("tp", None)}
PLANS = {
    "dp": ({"dp": 4}, DP),
    "zero1": ({"dp": 4}, {**DP, r"state\.(mean|square|velocity)\.w.": ("dp", None)}),
    "fsdp": ({"dp": 4}, FSDP),
    "tp": ({"tp": 2}, {**TP, r"state\.params\.b": ("tp",)}),
    "dp x tp": ({"dp": 3, "tp": 2}, {**DP, **TP}),
}


def network(dtype="float32", batch=12):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((batch, 16), dtype))
    weights = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in SIZES.items()]
    w1, b, w2 = weights
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            h = builder.emit(relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w1), b)))
            y = builder.emit_output(relax.op.matmul(h, w2))
        builder.emit_func_output(y)
    return builder.get()


def values(seed, dtype="float32", batch=12):
    rng = np.random.default_rng(seed)
    weights = {
        name: (0.3 * rng.standard_normal(shape)).astype(dtype) for name, shape in SIZES.items()
    }
    return weights, rng.standard_normal((batch, 16)).astype(dtype), rng.integers(0, 12, batch)


def torch_loss(weights, x, target, loss="cross_entropy"):
    y = torch.relu(x @ weights["w1"] + weights["b"]) @ weights["w2"]
    return getattr(torch.nn.functional, f"{loss}")(y, target)


def trained_by_torch(weights, x, target, make, rates, clip=None, loss="cross_entropy"):
    weights = {name: torch.nn.Parameter(torch.tensor(each)) for name, each in weights.items()}
    optimizer = make(weights.values())
    losses, norms = [], []
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        value = torch_loss(weights, torch.tensor(x), torch.tensor(target), loss)
        value.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights.values(), clip or np.inf)))
        losses.append(float(value.detach()))
        optimizer.step()
    return {name: each.detach().numpy() for name, each in weights.items()}, losses, norms


def trained(step, mesh, plan, weights, x, target, rates):
    mod = dx.annotate(step, mesh, plan)
    state, losses, norms = dx.training.initial_state(step, weights), [], []
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        for rate in rates:
            state, metrics = train(state, {"x": x, "target": target, "learning_rate": rate})
            losses.append(float(metrics["loss"].numpy()))
            norms.append(float(metrics["gradient_norm"].numpy()))
        return {name: each.numpy() for name, each in state.items()}, losses, norms, state


def of_torch(name, **options):
    return lambda params: getattr(torch.optim, name)(params, lr=1, **options)


OPTIMIZERS = [
    (dx.training.SGD(0.1), of_torch("SGD", weight_decay=0.1)),
    (dx.training.Momentum(0.8, nesterov=True), of_torch("SGD", momentum=0.8, nesterov=True)),
    (dx.training.Adam(weight_decay=0.1), of_torch("Adam", weight_decay=0.1)),
    (relax.training.optimizer.Adam(0.1, (0.8, 0.99)), of_torch("Adam", betas=(0.8, 0.99))),
    ("adamw", of_torch("AdamW")),
]


@pytest.mark.parametrize("name", PLANS)
def test_weights_are_those_of_torch(name):
    weights, x, target = values(3)
    axes, plan = PLANS[name]
    mesh = dx.Mesh(**axes)
    rates = [0.03 / (1 + at) for at in range(5)]  # a schedule
    for ours, theirs in OPTIMIZERS if name == "dp" else OPTIMIZERS[-1:]:
        step = dx.train_step(network(), "cross_entropy", ours, clip=0.5)
        state, losses, norms, there = trained(
            step, dx.Mesh(**axes), plan, weights, x, target, rates
        )
        wanted, torch_losses, torch_norms = trained_by_torch(
            weights, x, target, theirs, rates, clip=0.5
        )
        for key, each in wanted.items():
            assert np.abs(state[f"state.params.{key}"] - each).max() < 2e-6
        assert np.allclose(losses, torch_losses, rtol=2e-6)
        assert np.allclose(norms, torch_norms, rtol=2e-5)
        assert state["state.step"] == len(rates)
        assert state["state.nonfinite_steps"] == 0
        for key, each in plan.items():
            if key.startswith(r"state\.params\.w1"):
                for field in ("params", "mean", "square"):
                    assert there[f"state.{field}.w1"].sharding.dims == each


def test_losses_of_tvm_and_of_functions():
    weights, x, target = values(1)
    goal = np.random.default_rng(2).standard_normal((12, 12)).astype("float32")
    tvm_loss = relax.training.loss

    def squares(prediction, target):
        error = relax.op.subtract(prediction, target)
        return relax.op.mean(relax.op.multiply(error, error))

    for loss, name, wanted in [
        (tvm_loss.CrossEntropyLoss(), "cross_entropy", target),
        (tvm_loss.MSELoss(), "mse_loss", goal),
        ("mse", "mse_loss", goal),
        ("l1", "l1_loss", goal),
        (squares, "mse_loss", goal),
    ]:
        types = {"target": relax.TensorType((12, 12), "float32")} if loss is squares else None
        step = dx.train_step(network(), loss, relax.training.optimizer.SGD(9), targets=types)
        (name_of_target,) = {str(each.name) for each in step["main"].params[-2:-1]}
        plan = {"x": ("dp", None), name_of_target: ("dp", *[None] * (wanted.ndim - 1))}
        mod, mesh = dx.annotate(step, dx.Mesh(dp=2), plan), dx.Mesh(dp=2)
        with dx.Session(mesh) as session:
            train = dx.training.Trainer(session.load(dx.build(mod)))
            batch = {"x": x, name_of_target: wanted, "learning_rate": 0.1}
            state, metrics = train(dx.training.initial_state(step, weights), batch)
            found = {key: state[f"state.params.{key}"].numpy() for key in SIZES}
        right, losses, _ = trained_by_torch(weights, x, wanted, of_torch("SGD"), [0.1], None, name)
        assert np.isclose(float(metrics["loss"].numpy()), losses[0], rtol=1e-6)
        assert all(np.abs(found[key] - right[key]).max() < 1e-6 for key in SIZES)


@pytest.mark.large
def test_low_precision_has_master_weights_and_counts_what_is_not_finite():
    weights, x, target = values(5)
    rates = [0.05] * 6
    _, losses, _ = trained_by_torch(weights, x, target, of_torch("Adam"), rates)
    for dtype in ("float16", "bfloat16"):
        scale = dx.training.LossScale(initial=2.0**10, interval=2)
        step = dx.train_step(network(dtype), "cross_entropy", "adam", loss_scale=scale)
        low = x.astype("float16") if dtype == "float16" else torch.tensor(x).bfloat16()
        mesh = dx.Mesh(dp=4)
        found, ours, _, _ = trained(step, mesh, FSDP, weights, low, target, rates)
        assert {str(each.dtype) for key, each in found.items() if "params" in key} == {"float32"}
        assert np.allclose(ours, losses, rtol=0.03)
        assert found["state.loss_scale"] == 2.0**13
        assert found["state.nonfinite_steps"] == 0

    # A scale that overflows float16: the step changes nothing, is counted, and halves the scale.
    step = dx.train_step(
        network("float16"), "cross_entropy", loss_scale=dx.training.LossScale(2.0**40)
    )
    found, ours, _, _ = trained(step, mesh, DP, weights, x.astype("float16"), target, [0.1] * 3)
    assert found["state.nonfinite_steps"] == 3
    assert found["state.loss_scale"] == 2.0**37
    assert all(np.array_equal(found[f"state.params.{key}"], weights[key]) for key in SIZES)

    # A NaN of the batch is counted without scaling, too.
    x[0, 0] = np.nan
    step = dx.train_step(network(), "cross_entropy")
    found, ours, norms, _ = trained(step, mesh, DP, weights, x, target, [0.1])
    assert found["state.nonfinite_steps"] == 1
    assert np.isnan(ours[0])
    assert np.isnan(norms[0])


@I.ir_module
class ThatReturnsItsLoss:
    @R.function
    def main(x: R.Tensor(("n", 8), "float32"), w: R.Tensor((8, 4), "float32")):
        with R.dataflow():
            y = R.matmul(x, w)
            loss = R.sum(R.multiply(y, y))
            R.output(loss, y)
        return (loss, y)


def test_function_returns_its_loss_and_more_of_a_symbolic_batch():
    step = dx.train_step(ThatReturnsItsLoss, params=["w"])
    mesh = dx.Mesh(dp=2, tp=2)
    mod = dx.annotate(step, mesh, {"x": ("dp", None), r"state\.params\.w": (None, "tp")})
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 4)).astype("float32")
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        state = dx.training.initial_state(step, {"w": w})
        for batch in (4, 6):
            x = rng.standard_normal((batch, 8)).astype("float32")
            state, metrics = train(state, {"x": x, "learning_rate": 0.01})
            assert np.allclose(metrics["output.0"].numpy(), x @ w, atol=1e-5)
            w = w - 0.01 * 2 * x.T @ (x @ w)
            assert np.allclose(state["state.params.w"].numpy(), w, atol=1e-5)
        with pytest.raises(ValueError, match=r"the state lacks 'state\.step'"):
            train({key: each for key, each in state.items() if key != "state.step"}, {})
        with pytest.raises(ValueError, match="the batch has 'y', which the step does not have"):
            train(state, {"x": x, "y": x, "learning_rate": 0.01})
        with pytest.raises(ValueError, match=r'input "state.params.w" of "main"'):
            train({**state, "state.params.w": w[:4]}, {"x": x, "learning_rate": 0.01})


def test_bad_input_is_one_error():
    mod = network()
    for options, error, message in [
        ({}, ValueError, r"first result of main is R.Tensor\(\(12, 12\).*not a scalar of floats"),
        ({"loss": "mze"}, ValueError, "no loss 'mze'.*did you mean 'mse'"),
        ({"loss": 3}, TypeError, "loss is a int"),
        ({"loss": "mse", "optimizer": "adm"}, ValueError, "no optimiser 'adm'"),
        ({"loss": "mse", "optimizer": 3}, TypeError, "the optimiser is a int"),
        ({"loss": "mse", "params": ["w3"]}, ValueError, "'w3', which is no parameter of main"),
        ({"loss": "mse", "params": []}, ValueError, "no parameter of main is trained"),
        ({"loss": "mse", "clip": 0}, ValueError, "clip is 0, not a norm above 0"),
        ({"loss": "mse", "loss_scale": -1}, ValueError, "loss_scale is -1"),
        ({"loss": "mse", "func": "f"}, ValueError, "f"),
        ({"loss": lambda y: y}, ValueError, "the loss is .* not a scalar"),
        ({"loss": lambda y, z: y}, TypeError, "1 prediction and 0 targets"),
    ]:
        with pytest.raises(error, match=message):
            dx.train_step(mod, **options)
    with pytest.raises(ValueError, match="does not depend on the parameter b"):
        dx.train_step(mod, lambda y: relax.op.sum(mod["main"].params[1]), params=["b"])
    with pytest.raises(ValueError, match="main does not say which of its parameters are trained"):
        dx.train_step(ThatReturnsItsLoss)
    step = dx.train_step(mod, "mse")
    with pytest.raises(ValueError, match="params lacks 'w2'"):
        dx.training.initial_state(step, {key: np.zeros(SIZES[key]) for key in ("w1", "b")})
    with pytest.raises(ValueError, match=r"'w1' of shape \[3\], the step takes \[16, 32\]"):
        dx.training.initial_state(step, {**values(0)[0], "w1": np.zeros(3)})
    with pytest.raises(ValueError, match="main is no training step"):
        dx.training.initial_state(mod, {})
    with pytest.raises(ValueError, match=r"pattern 'state\.params\.w9' matches no parameter"):
        dx.annotate(step, dx.Mesh(dp=2), {"state.params.w9": None})


def test_operator_without_gradient_is_named():
    def loss(prediction):
        return relax.op.sum(relax.op.sort(prediction, axis=-1))

    with pytest.raises(ValueError, match=r"operator relax.sort has no gradient: .* of main.*w1"):
        dx.train_step(network(), loss)
    legal = dx.train_step(network(), "mse", legalize=True)
    assert any(isinstance(each, tvm.tirx.PrimFunc) for each in legal.functions.values())
