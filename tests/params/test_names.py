"""Names in files that are not those of the weights: renamed, tied, missing, superfluous."""

from __future__ import annotations

import pytest

from .conftest import assert_same_bytes, held
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
    from .conftest import executable, random_array

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
    expected = rf"no value was given for the weights \['w'\] in {path}; other names.*'model.w'"
    with pytest.raises(ValueError, match=expected):
        session.load(two_weights[0], params=path)


def test_superfluous_tensors(saved, two_weights, session):
    exe, values = two_weights
    path = saved({}, more=("buffer",))
    with pytest.raises(ValueError, match=rf"no weights \['buffer'\] in {path}; it has"):
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
