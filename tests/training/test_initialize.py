"""Initial weights: their distributions, and the same bits on every mesh, from shards alone."""

import math

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx

init = dx.training.initializers

SHAPES = {"a": (37, 50), "b": (50, 41), "c": (41,), "d": (41, 6)}
CHOSEN = {
    "a": init.normal(0.5, 0.1),
    "[b]": init.uniform(-0.2, 0.4),
    "c": init.ones(),
    ".*": init.truncated_normal(0.5, 0.1),
}


def step(shapes=None, dropout=False):
    """A step that multiplies by some weights and adds others."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 37), "float32"))
    weights = [
        relax.Var(name, relax.TensorType(shape, "float32"))
        for name, shape in (shapes or SHAPES).items()
    ]
    with builder.function("main", [x, *weights], attrs={"num_input": 1}):
        with builder.dataflow():
            h = x
            for weight in weights:
                h = builder.emit((op.matmul if weight.ty.ndim == 2 else op.add)(h, weight))
            if dropout:
                both = builder.emit(op.nn.dropout(h, 0.5))
                h = builder.emit(relax.TupleGetItem(both, 0))
            result = builder.emit_output(h)
        builder.emit_func_output(result)
    return dx.train_step(builder.get(), "mse", "adamw", loss_scale=dx.training.LossScale())


def initialized(mesh, plan, chosen, seed=0, **options):
    mod = dx.annotate(step(**options), mesh, plan)
    with dx.Session(mesh) as session:
        state = dx.training.initialize(session, mod, chosen, seed=seed, target=QUICK)
        shardings = {name: each.sharding for name, each in state.items()}
        return {name: each.numpy() for name, each in state.items()}, shardings


def weights_of(chosen, shapes, seed=0):
    mesh = dx.Mesh(d=1)
    state, _ = initialized(mesh, {}, chosen, seed, shapes=shapes)
    return {name: state[f"state.params.{name}"] for name in shapes}


def test_numbers_are_the_same_bits_on_every_mesh(sample):
    wanted, _ = initialized(dx.Mesh(d=1), {}, CHOSEN, seed=3)
    meshes = [
        (dx.Mesh(d=8), {r"state\.params\.[ab]": ("d", None)}),  # which divides no dimension
        (dx.Mesh(d=2, t=3), {r"state\.params\..": None, r"state\.params\.a": ("t", "d")}),
        (dx.Mesh(d=2), {r"state\.params\.[abd]": (None, "d")}),
        (dx.Mesh(d=3), {r"state\.(mean|square)\..": None, "state.params.b": ("d", None)}),
        (dx.Mesh(d=4), {"state.params.c": ("d",)}),
    ]
    for mesh, plan in meshes[: sample(2, 5, 5)]:
        plan = {name: entry for name, entry in plan.items() if entry is not None}
        found, shardings = initialized(mesh, plan, CHOSEN, seed=3)
        assert found.keys() == wanted.keys()
        for name, each in found.items():
            assert each.dtype == wanted[name].dtype
            assert np.array_equal(each, wanted[name]), name
        for name, entry in plan.items():
            if name.endswith("a"):
                assert shardings["state.params.a"].dims == shardings["state.mean.a"].dims == entry
    assert wanted["state.loss_scale"] == 2.0**15
    assert not wanted["state.mean.a"].any()
    assert (wanted["state.params.c"] == 1).all()


def test_no_device_makes_more_than_its_shard_and_nothing_is_sent():
    from distir_ext.training.initialization import _program

    mesh = dx.Mesh(d=4)
    mod = dx.annotate(step({"a": (37, 4000)}), mesh, {"state.params.a": (None, "d")})
    _, program = _program(mod, {"a": init.normal()}, "main")
    lowered = dx.lower(program)
    assert dx.analysis.collectives(lowered) == []
    shards = 3 * 37 * 1000 * 4  # with the two moments of Adam
    peak = dx.analysis.estimate(lowered, dx.Cluster.preset("H100")).peak_memory
    assert shards <= peak < 1.7 * shards


def quantiles(mean, deviation, *, low=-math.inf, high=math.inf):
    """Those of a normal distribution that is cut, by bisection of its distribution function."""

    def below(z):
        return math.erf(z / math.sqrt(2))

    first, last = below(low), below(high)
    found = []
    for part in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        left, right = max(low, -8), min(high, 8)
        for _ in range(60):
            middle = (left + right) / 2
            inside = (below(middle) - first) / (last - first) < part
            left, right = (middle, right) if inside else (left, middle)
        found.append(mean + deviation * left)
    return found


@pytest.mark.large
def test_distributions():
    shapes = {"n": (37, 4000), "t": (4000, 40), "u": (40, 3000), "k": (3000, 50), "v": (50, 2000)}
    chosen = {
        "n": init.normal(0.5, 0.1),
        "t": init.truncated_normal(0.5, 0.1, -1, 2),
        "u": init.uniform(-0.2, 0.4),
        "k": init.kaiming_normal(),
        "v": init.xavier_uniform(in_dim=1, out_dim=0),
    }
    found = weights_of(chosen, shapes)
    parts = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
    bound = math.sqrt(6 / 2050)
    wanted = {
        "n": quantiles(0.1, 0.5),
        "t": quantiles(0.1, 0.5, low=-1, high=2),
        "u": [-0.2 + 0.6 * each for each in parts],
        "k": quantiles(0, math.sqrt(2 / 3000)),
        "v": [bound * (2 * each - 1) for each in parts],
    }
    for name, each in found.items():
        spread = wanted[name][-1] - wanted[name][0]
        # Quantiles of some 100,000 numbers are off by less than a hundredth of the spread.
        assert np.abs(np.quantile(each, parts) - wanted[name]).max() < 0.01 * spread, name
        flat = each.reshape(-1)
        assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 0.02
    assert found["n"].mean() == pytest.approx(0.1, abs=0.006)
    assert found["n"].std() == pytest.approx(0.5, rel=0.01)
    assert found["t"].min() >= 0.1 - 0.5
    assert found["t"].max() <= 0.1 + 2 * 0.5
    assert found["u"].std() == pytest.approx(0.6 / math.sqrt(12), rel=0.01)


@pytest.mark.large
def test_numbers_are_those_of_jax_with_the_key():
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    from distir_ext.training.random_numbers import kept, normal_between, uniform_between

    builder = relax.BlockBuilder()
    key = relax.Var("key", relax.TensorType((), "int64"))
    shape = (7, 3, 50)
    with builder.function("main", [key], attrs={"num_input": 1}):
        with builder.dataflow():
            made = [
                uniform_between(builder.emit, key, shape, -1.0, 3.0),
                normal_between(builder.emit, key, shape, -math.inf, math.inf),
                normal_between(builder.emit, key, shape, -2.0, 1.0),
                kept(builder.emit, key, shape, 0.3),
            ]
            results = [builder.emit_output(each) for each in made]
        builder.emit_func_output(relax.Tuple(results))
    mesh = dx.Mesh(d=1)
    with dx.Session(mesh) as session:
        model = session.load(dx.build(dx.annotate(builder.get(), mesh, {"key": ()}), target=QUICK))
        found = [each.numpy() for each in model["main"](np.asarray(11, "int64"))]
    with jax.threefry_partitionable(True):
        of_jax = jax.random.key(11, impl="threefry2x32")
        wanted = [
            jax.random.uniform(of_jax, shape, minval=-1.0, maxval=3.0),
            jax.random.normal(of_jax, shape),
            jax.random.truncated_normal(of_jax, -2.0, 1.0, shape),
            jax.random.bernoulli(of_jax, 0.3, shape),
        ]
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[3], wanted[3])
    for ours, theirs in zip(found[1:3], wanted[1:3], strict=True):
        assert np.allclose(ours, theirs, rtol=3e-6, atol=1e-6)


def test_seeds_names_and_dropout():
    shapes = {"a": (37, 50), "b": (50, 37)}
    first, other = (weights_of({".*": init.normal()}, shapes, seed) for seed in (0, 1))
    assert (first["a"] != other["a"]).mean() > 0.99
    assert abs(np.corrcoef(first["a"].reshape(-1), first["b"].reshape(-1))[0, 1]) < 0.1
    state, _ = initialized(dx.Mesh(d=2), {}, {".*": init.normal()}, seed=9, dropout=True)
    assert state["state.dropout_seed"] == 9


def test_what_cannot_be_made_is_refused():
    mesh = dx.Mesh(d=2)
    mod = dx.annotate(step(), mesh, {})
    with dx.Session(mesh) as session:
        for given, chosen, error, message in (
            (mod, {"a": init.zeros()}, ValueError, "no pattern.*the parameter b"),
            (mod, {"aa": init.zeros(), ".*": init.ones()}, ValueError, "'aa'.*did you mean"),
            (mod, {"(": init.zeros()}, ValueError, "is no pattern"),
            (mod, {".*": 0.5}, TypeError, r"'\.\*' is a float"),
            (mod, {".*": init.kaiming_uniform()}, ValueError, r"c: kaiming_uniform.*\[41\]"),
            (step(), {".*": init.zeros()}, ValueError, "pass what dx.annotate returns"),
        ):
            with pytest.raises(error, match=message):
                dx.training.initialize(session, given, chosen)
    for make, message in (
        (lambda: init.normal(0), "std=0"),
        (lambda: init.uniform(1, 1), "low=1 and high=1"),
        (lambda: init.truncated_normal(low=2), "low=2"),
        (lambda: init.kaiming_normal(mode="fan"), "mode='fan'"),
        (lambda: init.xavier_normal(0), "gain"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
