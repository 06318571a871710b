"""States in directories: saved by the workers of one mesh, used by those of another."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx


@I.ir_module
class Decoder:
    @R.function
    def append(x: R.Tensor((1, 7, 6), "float32"), cache: R.Tensor(("n", 7, 6), "float32")):
        n = T.int64()
        both: R.Tensor((n + 1, 7, 6), "float32") = R.concat((cache, x), axis=0)
        return (R.sum(both, axis=[0]), (both,))

    @R.function
    def both(pair: R.Tuple(R.Tensor((5, 6), "float32"), R.Tensor((5,), "float32"))):
        y = R.multiply(pair[0], R.expand_dims(pair[1], axis=1))
        return y


PLANS = {
    "even": (dx.Mesh(a=2, b=2), {"cache": (None, None, "a"), "x": (None, None, "a")}),
    "uneven": (dx.Mesh(a=3, b=2), {"cache": (None, "a", "b"), "x": (None, "a", "b")}),
    "one": (dx.Mesh(a=1), {"cache": (None, "a", None)}),
    "whole": (dx.Mesh(a=2), {"x": (None, None, None)}),
}


@pytest.fixture(scope="module")
def executables():
    found = {}
    for name, (mesh, plan) in PLANS.items():
        mod = dx.annotate(Decoder, mesh, plan, func="append")
        found[name] = dx.build(
            dx.annotate(mod, mesh, {"pair.0": ("a", None), "pair.1": ("a",)}, func="both")
        )
    return found


def rows(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 7, 6)).astype("float32")


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.parametrize(
    ("source", "to"),
    [("even", "uneven"), ("uneven", "even"), ("uneven", "whole"), ("one", "uneven")],
)
def test_a_state_goes_to_another_mesh(source, to, workers, executables, tmp_path):
    x, cache = rows(1), rows(3, 1)
    with dx.Session(PLANS[source][0], workers=workers) as session:
        append = session.load(executables[source])["append"]
        _, (kept,) = append(x, cache)
        dx.save(tmp_path / "state", {"cache": kept, "step": 1})
    state = dx.load(tmp_path / "state")
    assert state["step"] == 1
    assert (state["cache"].shape, state["cache"].dtype) == ((4, 7, 6), "float32")
    expected = np.concatenate([cache, x])
    np.testing.assert_array_equal(state["cache"].numpy(), expected)
    np.testing.assert_array_equal(np.asarray(state["cache"]), expected)
    with dx.Session(PLANS[to][0], workers=workers) as session:
        append = session.load(executables[to])["append"]
        total, (kept,) = append(x, state["cache"])
        np.testing.assert_array_equal(kept.numpy(), np.concatenate([expected, x]))
        np.testing.assert_allclose(total.numpy(), (expected.sum(0) + x[0]), rtol=1e-5, atol=1e-5)


def test_inputs_that_are_tuples(executables, tmp_path):
    values = (rows(1)[0, :5], np.arange(5, dtype="float32"))
    dx.save(tmp_path, {"pair": values})
    with dx.Session(PLANS["uneven"][0]) as session:
        both = session.load(executables["uneven"])["both"]
        actual = both(dx.load(tmp_path)["pair"]).numpy()
    np.testing.assert_array_equal(actual, values[0] * values[1][:, None])


def test_structure_and_values(tmp_path):
    state = {
        "a": [np.float32(2), (np.arange(3), {"b.c": None, "text": "grün", "yes": True})],
        "empty": {"list": [], "array": np.zeros((0, 4), "int8")},
        "half": np.ones((2, 3), ml_dtypes.bfloat16)[:, ::2],
        "pi": 3.25,
    }
    dx.save(tmp_path, state)
    found = dx.load(tmp_path)
    assert found["a"][1][1] == {"b.c": None, "text": "grün", "yes": True}
    assert isinstance(found["a"][1], tuple)
    assert (found["pi"], found["empty"]["list"]) == (3.25, [])
    for one, other in [
        (found["a"][0], state["a"][0]),
        (found["a"][1][0], state["a"][1][0]),
        (found["empty"]["array"], state["empty"]["array"]),
        (found["half"], state["half"]),
    ]:
        assert one.numpy().dtype == other.dtype
        np.testing.assert_array_equal(one.numpy(), other)
    dx.save(tmp_path / "copy", found)  # from disk to disk
    np.testing.assert_array_equal(dx.load(tmp_path / "copy")["half"].numpy(), state["half"])
    dx.save(tmp_path / "copy", {"half": state["half"]})  # in place of the one before
    assert list(dx.load(tmp_path / "copy")) == ["half"]


def test_arrays_of_other_libraries(tmp_path):
    """NumPy alone cannot read all of them."""

    class OnlyDlpack:
        def __dlpack__(self, **options):
            return tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    value = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    tensor = tvm.runtime.tensor(value)
    dx.save(tmp_path, {"tvm": tensor, "dlpack": OnlyDlpack()})
    for found in dx.load(tmp_path).values():
        assert found.dtype == "bfloat16"
        np.testing.assert_array_equal(found.numpy(), value)


def test_weights_are_a_state_too(executables, tmp_path):
    """A flat state is what Session.load takes."""
    mesh = dx.Mesh(tp=2)

    @I.ir_module
    class Product:
        @R.function
        def main(x: R.Tensor((4, 6), "float32"), w: R.Tensor((6, 8), "float32")):
            y = R.matmul(x, w)
            return y

    x, w = rows(1)[0, :4], np.random.default_rng(3).standard_normal((6, 8)).astype("float32")
    dx.save(tmp_path, {"w": w})
    exe = dx.build(dx.annotate(Product, mesh, {"w": (None, "tp")}, inputs=["x"]))
    with dx.Session(mesh) as session:
        y = session.load(exe, params=tmp_path)["main"](x)
        np.testing.assert_allclose(y.numpy(), x @ w, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_saved(tmp_path):
    for state, error, match in [
        ({"a": {"b": object()}}, TypeError, r'"a\.b" of the state cannot be saved: .*object'),
        ({"a": {1: 2}}, TypeError, r'"a" of the state has the key 1; keys are texts'),
        ({"a": [np.array(["x"])]}, TypeError, r'"a\.0" of the state cannot be saved'),
        ({"a": np.zeros(2, "complex64")}, ValueError, '"a" of the state has dtype complex64'),
        ({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}}, ValueError, r"called 'a\.b'"),
        ([1], TypeError, "expected a tvm.IRModule or a dict, got list"),
    ]:
        with pytest.raises(error, match=match):
            dx.save(tmp_path / "state", state)
        assert not (tmp_path / "state").exists()
    with pytest.raises(TypeError, match="params= are the weights of a module"):
        dx.save(tmp_path / "state", {}, {})
    (tmp_path / "other").write_text("")
    with pytest.raises(ValueError, match="exists and has no state; a state gets its own folder"):
        dx.save(tmp_path, {})


def test_a_state_does_not_replace_what_it_has(tmp_path):
    """Its files are mapped while they are read."""
    dx.save(tmp_path, {"a": np.zeros(2)})
    with pytest.raises(ValueError, match=r'"b" of the state is in .* itself'):
        dx.save(tmp_path, {"b": dx.load(tmp_path)["a"]})
    np.testing.assert_array_equal(dx.load(tmp_path)["a"].numpy(), np.zeros(2))


@pytest.mark.parametrize(
    ("part", "match"),
    [
        ({"array": "b"}, "'b' is none of its 1 array"),
        ({"array": ["a"]}, "is none of its 1 array"),
        ({"value": [1]}, "a plain value is none"),
        ({"dict": []}, "a dict is none"),
        ({"list": {}}, "unknown part"),
        ({"call": []}, "unknown part"),
        ({"array": "a", "value": 1}, "a part has no one kind"),
        (7, "a part has no one kind"),
    ],
)
def test_damage(part, match, tmp_path):
    dx.save(tmp_path, {"a": np.zeros(2)})
    file = tmp_path / "state.json"
    stated = json.loads(file.read_text())
    stated["state"]["dict"]["a"] = part
    file.write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=match):
        dx.load(tmp_path)


def test_damaged_files(tmp_path):
    dx.save(tmp_path, {"a": np.zeros(2)})
    file = tmp_path / "state.json"
    text = file.read_text()
    file.write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(ValueError, match="is no state that this package reads, of version 1"):
        dx.load(tmp_path)
    file.write_text('{"format": "distir_ext.state", "version": 1, "state": ' + '{"list":[' * 200)
    with pytest.raises(ValueError, match=r"state\.json"):
        dx.load(tmp_path)
    deep = '{"list":[' * 101 + '{"value": 1}' + "]}" * 101
    file.write_text(f'{{"format": "distir_ext.state", "version": 1, "state": {deep}}}')
    with pytest.raises(ValueError, match=r"state\.json"):
        dx.load(tmp_path)
    file.unlink()  # as if whoever wrote it was interrupted
    with pytest.raises(FileNotFoundError, match=r"program\.json"):
        dx.load(tmp_path)
