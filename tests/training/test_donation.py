"""Donated inputs: a step holds one state, with the numbers of one that holds two."""

import gc

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

import distir_ext as dx

ROWS, WIDTH = 8, 32
PLANS = [
    ({"dp": 2}, {"x": ("dp", None), "target": ("dp", None)}),
    ({"dp": 2}, {"x": ("dp", None), "target": ("dp", None), r"state\..*\.w\d": ("dp", None)}),
    ({"tp": 3}, {r"state\.params\.w0": (None, "tp"), r"state\.params\.w1": ("tp", None)}),
]


def forward():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((ROWS, WIDTH), "float32"))
    weights = [relax.Var(f"w{at}", relax.TensorType((WIDTH, WIDTH), "float32")) for at in range(2)]
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            wide = builder.emit(op.nn.gelu(op.matmul(x, weights[0])))
            result = builder.emit_output(op.matmul(wide, weights[1]))
        builder.emit_func_output(result)
    return builder.get()


def batch(at):
    rng = np.random.default_rng(at)
    x, target = rng.standard_normal((2, ROWS, WIDTH), "float32")
    return {"x": x, "target": target, "learning_rate": 0.01}


WEIGHTS = {
    f"w{at}": 0.1 * np.random.default_rng(at).standard_normal((WIDTH, WIDTH)).astype("float32")
    for at in range(2)
}


def trained(mesh, plan, donate, workers="threads", steps=4):
    step = dx.train_step(forward(), "mse", "adamw", clip=1.0, donate=donate)
    mod = dx.annotate(step, dx.Mesh(**mesh), plan)
    with dx.Session(dx.Mesh(**mesh), workers=workers) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        state, losses = dx.training.initial_state(step, WEIGHTS), []
        given = {name: value.copy() for name, value in state.items()}
        first = state
        for at in range(steps):
            before = state
            state, metrics = train(state, batch(at))
            losses.append(float(metrics["loss"].numpy()))
            if at > 0 and donate:
                with pytest.raises(RuntimeError, match=r"donated as input .*state.params.w0.*main"):
                    before["state.params.w0"].numpy()
                with pytest.raises(RuntimeError, match="is an array that was donated"):
                    train(before, batch(at))
        for name, value in given.items():  # arrays of the host stay
            np.testing.assert_array_equal(first[name], value)
        return losses, {name: value.numpy() for name, value in state.items()}


@pytest.mark.large
@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_numbers_are_those_without_donation(workers):
    for mesh, plan in PLANS if workers == "threads" else PLANS[1:2]:
        losses, state = trained(mesh, plan, True, workers)
        expected_losses, expected = trained(mesh, plan, False)
        assert losses == expected_losses
        for name, value in expected.items():
            np.testing.assert_array_equal(state[name], value)


def test_an_array_that_somebody_else_has_is_copied():
    step = dx.train_step(forward(), "mse", "sgd")
    mesh = dx.Mesh(dp=2)
    mod = dx.annotate(step, mesh, PLANS[0][1])
    with dx.Session(mesh) as session:
        train = dx.training.Trainer(session.load(dx.build(mod)))
        state, _ = train(dx.training.initial_state(step, WEIGHTS), batch(0))
        where = addresses(state["state.params.w0"])
        state, _ = train(state, batch(1))
        assert addresses(state["state.params.w0"]) == where  # the memory of the step before
        shard = state["state.params.w0"].shards[0]  # which the caller has from now on
        value = state["state.params.w0"].numpy()
        state, _ = train(state, batch(2))
        np.testing.assert_array_equal(np.from_dlpack(shard), value)
        assert np.abs(state["state.params.w0"].numpy() - value).max() > 0


def addresses(array):
    return {device: np.from_dlpack(each).ctypes.data for device, each in array._shards.items()}


def program(donated):
    """Returns its arguments exchanged, one of them changed."""
    builder = relax.BlockBuilder()
    a, b = (relax.Var(name, relax.TensorType((4, 6), "float32")) for name in "ab")
    with builder.function("main", [a, b]):
        with builder.dataflow():
            more = builder.emit_output(op.add(b, relax.const(1.0, "float32")))
            twice = builder.emit_output(op.multiply(op.permute_dims(op.permute_dims(a)), b))
            result = builder.emit_output(relax.Tuple([more, a, twice]))
        builder.emit_func_output(result)
    return dx.annotate(dx.donate(builder.get(), donated), dx.Mesh(x=2), {"a": ("x", None)})


def test_results_that_are_arguments_and_arrays_that_are_passed_twice():
    a, b = np.random.default_rng(0).standard_normal((2, 4, 6), "float32")
    with dx.Session(dx.Mesh(x=2)) as session:
        main = session.load(dx.build(program(["a", "b"])))["main"]
        for _ in range(3):
            more, same, twice = main(a, b)
            for _ in range(2):
                old = [each.numpy() for each in (more, same)]
                more, same, twice = main(same, more)
                np.testing.assert_array_equal(more.numpy(), old[0] + 1)
                np.testing.assert_array_equal(same.numpy(), old[1])
                np.testing.assert_array_equal(twice.numpy(), old[1] * old[0])
        with pytest.raises(ValueError, match=r'input "b" .* is the array that is input "a"'):
            main(more, more)
        del old
        gc.collect()
        np.testing.assert_array_equal(main.prepare(same, more)()[1].numpy(), same.numpy())


def test_bad_names():
    with pytest.raises(ValueError, match="main has no parameter w9 to donate"):
        dx.donate(forward(), ["w9"])
    with pytest.raises(ValueError, match="names has x twice"):
        dx.donate(forward(), ["x", "x"])
    mod = dx.annotate(dx.donate(forward(), ["w0"]), dx.Mesh(dp=2), {"x": ("dp", None)})
    with pytest.raises(ValueError, match="`w0` of `main` is donated, but it is a weight"):
        dx.lower(mod)
