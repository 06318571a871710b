"""Names in files that differ from those of the weights: renamed, tied, missing, superfluous."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import detach_params, nn

import distir_ext as dx

from .conftest import assert_same_bytes, executable, held, random_array
from .test_formats import save_safetensors


@pytest.fixture
def saved(two_weights, tmp_path):
    """A function that saves w and v under other names."""

    def save(names, more=()):
        _, values = two_weights
        tensors = {names.get(name, name): value for name, value in values.items()}
        tensors.update(dict.fromkeys(more, values["v"]))
        save_safetensors(tensors, tmp_path / "w.safetensors")
        return tmp_path / "w.safetensors"

    return save


@pytest.mark.parametrize("rename", [{"model.w": "w"}, lambda name: name.removeprefix("model.")])
def test_rename(rename, saved, two_weights, session):
    exe, values = two_weights
    model = session.load(exe, params=saved({"w": "model.w"}), rename=rename)
    assert_same_bytes(held(model, "w")[0], values["w"][:2])
    model = session.load(exe, params={"model.w": values["w"], "v": values["v"]}, rename=rename)
    assert_same_bytes(held(model, "w")[0], values["w"][:2])


def test_tied_weights_are_one_tensor_of_the_file(mesh, session, tmp_path):
    weights = {"embedding": ((8, 6), "float32"), "head": ((8, 6), "float32")}
    exe = executable(mesh, weights, {"head": (None, "tp"), "embedding": ("tp", None)})
    value = random_array((8, 6), "float32")
    save_safetensors({"embedding": value}, tmp_path / "w.safetensors")
    tied = {"embedding": ("embedding", "head")}
    model = session.load(exe, params=tmp_path / "w.safetensors", rename=tied)
    assert_same_bytes(held(model, "embedding")[3], value[6:])
    assert_same_bytes(held(model, "head")[2], value[:, 4:])


def test_missing_weight(saved, two_weights, session):
    path = saved({"w": "model.w"})
    expected = rf'for weight "w" \(1 of 2\) in {path}; other names were given: "model.w"'
    with pytest.raises(ValueError, match=expected):
        session.load(two_weights[0], params=path)


def test_superfluous_tensors(saved, two_weights, session):
    exe, values = two_weights
    path = saved({}, more=("buffer",))
    with pytest.raises(ValueError, match=rf'no weight "buffer", which was given in {path}; it'):
        session.load(exe, params=path)
    model = session.load(exe, params=path, strict=False)
    assert_same_bytes(held(model, "v")[0], values["v"])


def test_two_tensors_of_one_name(saved, two_weights, session):
    with pytest.raises(ValueError, match='rename= calls both "v" and "w" "v"'):
        session.load(two_weights[0], params=saved({}), rename={"w": "v"})


def test_rename_needs_names(two_weights, session):
    exe, values = two_weights
    with pytest.raises(TypeError, match="rename= needs weights by name"):
        session.load(exe, params=list(values.values()), rename={"w": "v"})


EXPORTED = {"p_fc1_weight": (8, 6), "p_fc2_weight": (4, 8), "b_norm_running_mean": (6,)}
STATE = {"fc1.weight": (8, 6), "fc2.weight": (4, 8), "norm.running_mean": (6,)}


@pytest.fixture(scope="module")
def exported(mesh):
    """An executable with names as torch.export writes them."""
    weights = {name: (shape, "float32") for name, shape in EXPORTED.items()}
    return executable(mesh, weights, {"b_norm_running_mean": None})


def values_of(shapes):
    return {
        name: random_array(shape, "float32", seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def test_names_before_an_export_are_known(exported, session):
    values = values_of(STATE)
    model = session.load(exported, params=values)
    for weight, name in zip(EXPORTED, STATE, strict=True):
        assert_same_bytes(held(model, weight)[0], values[name])


def test_names_before_an_export_are_known_after_a_renaming(exported, session):
    values = values_of(STATE)
    given = {f"module.{name}": value for name, value in values.items()}
    model = session.load(exported, params=given, rename=lambda name: name.removeprefix("module."))
    for weight, name in zip(EXPORTED, STATE, strict=True):
        assert_same_bytes(held(model, weight)[0], values[name])


def test_name_of_two_values_is_ambiguous(exported, session):
    values = {**values_of(STATE), "fc1_weight": random_array((8, 6), "float32")}
    with pytest.raises(ValueError, match=r'weight "p_fc1_weight" .*"fc1\.weight", "fc1_weight"'):
        session.load(exported, params=values)


def test_error_of_other_names_says_what_to_do(exported, session):
    values = {f"model.{name}": value for name, value in values_of(STATE).items()}
    with pytest.raises(ValueError, match="no value was given for weights") as caught:
        session.load(exported, params=values)
    message = str(caught.value)
    assert '"model.fc1.weight" is like "p_fc1_weight"' in message
    assert 'other names were given: "model.fc1.weight", "model.fc2.weight"' in message
    assert '"model.norm.running_mean" is like "b_norm_running_mean"' in message
    assert "rename= says which is which: a function, or rename={" in message


def test_an_array_is_no_list_of_weights(two_weights, session):
    with pytest.raises(TypeError, match=r"weights by name or in order, .* of type ndarray"):
        session.load(two_weights[0], params=np.ones((2, 4)))


def test_long_lists_of_names_are_shortened(mesh, session):
    exe = executable(mesh, {f"w{i}": ((4,), "float32") for i in range(100)}, {"w0": None})
    values = {f"v{i}": np.zeros(4, "float32") for i in range(100)}
    with pytest.raises(ValueError, match=r'"w7" and 92 more.*"v7" and 92 more') as caught:
        session.load(exe, params=values)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("params", [{"w": 0}, [0, 0], [("w", 0)]])
def test_weights_of_a_function_that_has_inputs_only(params, mesh, session):
    builder = relax.BlockBuilder()
    x, w = (relax.Var(name, relax.TensorType((4,), "float32")) for name in "xw")
    with builder.function("main", [x, w]):
        builder.emit_func_output(builder.emit(relax.op.add(x, w)))
    mod = builder.finalize()
    exe = dx.build(dx.annotate(mod, mesh, {"w": ("tp",)}))
    expected = r'the executable has none: .* main\("x", "w"\)\. dx\.annotate\(\.\.\., inputs='
    with pytest.raises(ValueError, match=expected):
        session.load(exe, params=params)
    one = np.ones(4, "float32")
    with pytest.raises(TypeError, match=r"takes 2 inputs \(x, w\), 1 was given; it has no weights"):
        session.load(exe)["main"](one)
    exe = dx.build(dx.annotate(mod, mesh, {"w": ("tp",)}, inputs=["x"]))
    np.testing.assert_array_equal(session.load(exe, params={"w": one})(one).numpy(), one + one)


class Layers(nn.Module):
    def __init__(self):
        self.up = nn.Linear(6, 8, bias=False)
        self.down = nn.Linear(8, 6, bias=False)

    def forward(self, x: nn.Tensor):
        return self.down(self.up(x))


def test_what_export_tvm_returns(mesh, session):
    layers = Layers()
    mod, params = layers.export_tvm({"forward": {"x": nn.spec.Tensor((4, 6), "float32")}})
    plan = {r"up\.weight": ("tp", None)}
    exe = dx.build(dx.annotate(mod, mesh, plan, func="forward"))
    with pytest.raises(ValueError, match=r'parameter "up\.weight" .* has no data yet'):
        session.load(exe, params=params)
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(p.shape).astype("float32") for name, p in params}
    for name, param in layers.named_parameters():
        param.data = tvm.runtime.tensor(values[name])
    x = rng.standard_normal((4, 6)).astype("float32")
    y = session.load(exe, params=params)(x).numpy()
    expected = x @ values["up.weight"].T @ values["down.weight"].T
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)

    parsed = tvm.script.from_source(mod.script())  # has up_weight
    exe = dx.build(dx.annotate(parsed, mesh, {"up_weight": ("tp", None)}, func="forward"))
    np.testing.assert_allclose(session.load(exe, values)(x).numpy(), expected, rtol=1e-4, atol=1e-4)


def test_what_detach_params_returns(mesh, session):
    values = {"w": random_array((4,), "float32"), "v": random_array((4,), "float32", 1)}

    def module(functions):
        builder = relax.BlockBuilder()
        for name, weights in functions.items():
            x = relax.Var("x", relax.TensorType((4,), "float32"))
            held = [relax.Var(each, relax.TensorType((4,), "float32")) for each in weights]
            attrs = {"num_input": 1, "params": [tvm.runtime.tensor(weights[w]) for w in weights]}
            with builder.function(name, [x, *held], attrs=attrs):
                total = x
                for each in held:
                    total = builder.emit(relax.op.add(total, each))
                builder.emit_func_output(total)
        mod, params = detach_params(builder.finalize())
        for name in functions:
            mod = dx.annotate(mod, mesh, {"w": ("tp",)}, func=name)
        return dx.build(mod), params

    exe, params = module({"main": values, "other": {"w": values["w"]}})
    assert list(params) == ["main", "other"]
    model = session.load(exe, params=params)
    assert_same_bytes(held(model, "w", "other")[1], values["w"][1:2])
    assert_same_bytes(held(model, "v")[1], values["v"][1:2])

    exe, params = module({"main": values, "other": {"w": values["v"]}})
    with pytest.raises(ValueError, match='different values for the weight "w"'):
        session.load(exe, params=params)
