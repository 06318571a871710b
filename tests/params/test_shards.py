"""Weights saved as shards, and loaded with the same or another sharding."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors
import tvm_ffi

import distir_ext as dx
from distir_ext.params.stored_array import MappedFiles

from .conftest import assert_same_bytes, executable, held, random_array

SHAPES = {"even": (8, 6), "odd": (5, 7), "scalar": (), "whole": (3,)}
PLANS = {
    "rows": ((2, 2), {"even": ("a", "b"), "odd": ("a", None)}),
    "columns": ((2, 2), {"even": (None, ("a", "b")), "odd": ("b", "a")}),
    "replicated": ((2, 2), {"even": (None, None)}),
    "three": ((3, 2), {"even": ("b", "a"), "odd": ("a", "b"), "whole": ("a",)}),
}


@pytest.fixture(scope="module")
def executables():
    """By plan a mesh and an executable."""
    weights = {name: (shape, "float32") for name, shape in SHAPES.items()}
    meshes = {name: dx.Mesh(shape, ("a", "b")) for name, (shape, _) in PLANS.items()}
    return {
        name: (meshes[name], executable(meshes[name], weights, plan))
        for name, (_, plan) in PLANS.items()
    }


@pytest.fixture(scope="module")
def values():
    return {name: random_array(shape, "float32", 7) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("to", PLANS)
@pytest.mark.parametrize("source", PLANS)
def test_round_trip(source, to, executables, values, tmp_path):
    mesh, exe = executables[source]
    with dx.Session(mesh) as session:
        session.load(exe, params=values).save_shards(tmp_path / "saved")
    mesh, exe = executables[to]
    with dx.Session(mesh) as session:
        expected = session.load(exe, params=values)
        actual = session.load(exe, params=tmp_path / "saved")
        for name in SHAPES:
            wanted = held(expected, name)
            for device, shard in held(actual, name).items():
                assert_same_bytes(shard, wanted[device])


def test_every_dtype(every_dtype, session, tmp_path):
    exe, values = every_dtype
    session.load(exe, params=values).save_shards(tmp_path)
    model = session.load(exe, params=tmp_path / "shards.json")
    for name, value in values.items():
        assert_same_bytes(held(model, name)[2], value[4:6])


def test_files_have_one_copy_of_the_weights(executables, values, tmp_path):
    mesh, exe = executables["rows"]
    with dx.Session(mesh) as session:
        session.load(exe, params=values).save_shards(tmp_path)
    names = {}
    for device in range(4):
        path = tmp_path / f"device-{device}.safetensors"
        found = dict(safetensors.deserialize(path.read_bytes())) if path.exists() else {}
        names[device] = {name: list(each["shape"]) for name, each in found.items()}
    assert names == {
        0: {"even": [4, 3], "odd": [3, 7], "scalar": [], "whole": [3]},
        1: {"even": [4, 3]},
        2: {"even": [4, 3], "odd": [3, 7]},
        3: {"even": [4, 3]},
    }


def test_workers_read_their_own_files_only(executables, values, tmp_path, monkeypatch):
    from distir_ext.params.stored_array import StoredArray

    mesh, exe = executables["rows"]
    with dx.Session(mesh) as session:
        session.load(exe, params=values).save_shards(tmp_path)
        read = []
        original = StoredArray.read

        def record(self, files, begin, end):
            read.append((self.name, self.path.name))
            return original(self, files, begin, end)

        monkeypatch.setattr(StoredArray, "read", record)
        session.load(exe, params=tmp_path)
    # One piece for each device, none for joining.
    assert sorted(file for name, file in read if name == "even") == [
        f"device-{device}.safetensors" for device in range(4)
    ]
    assert len(read) == 4 * len(SHAPES)


def test_symbolic_weights(tmp_path):
    import tvm
    from tvm import relax

    mesh = dx.Mesh((2,), ("tp",))
    builder = relax.BlockBuilder()
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    w = relax.Var("w", relax.TensorType((n, 3), "float32"))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        builder.emit_func_output(builder.emit(relax.op.multiply(w, x)))
    exe = dx.build(dx.annotate(builder.finalize(), mesh, {"w": ("tp", None)}))
    value = random_array((6, 3), "int16").astype("float32")
    with dx.Session(mesh) as session:
        session.load(exe, params={"w": value}).save_shards(tmp_path)
        main = session.load(exe, params=tmp_path)["main"]
        np.testing.assert_array_equal(main(np.full(3, 2, "float32")).numpy(), 2 * value)


def edit(index, change):
    content = json.loads(index.read_text())
    change(content["weights"]["even"])
    index.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda each: each.update(shape=[9, 6]), r"says float32 \[5, 3\]"),
        (lambda each: each.update(dtype="int32"), r"is float32 \[4, 3\], shards.json says int32"),
        (lambda each: each["files"].pop(), "has 3 pieces for parts"),
        (lambda each: each.update(parts=[4]), "has 4 pieces for parts"),
        (lambda each: each.pop("files"), "a weight lacks a valid 'files'"),
        (lambda each: each["files"].__setitem__(0, "x/y"), "not the name of a file beside it"),
    ],
)
def test_damaged_index(change, message, executables, values, tmp_path):
    mesh, exe = executables["rows"]
    with dx.Session(mesh) as session:
        session.load(exe, params=values).save_shards(tmp_path)
        edit(tmp_path / "shards.json", change)
        with pytest.raises(ValueError, match=message):
            session.load(exe, params=tmp_path)
        session.load(exe, params=values)


def test_missing_file_and_closed_session(executables, values, tmp_path):
    mesh, exe = executables["rows"]
    with dx.Session(mesh) as session:
        model = session.load(exe, params=values)
        model.save_shards(tmp_path)
        (tmp_path / "device-2.safetensors").unlink()
        with pytest.raises(FileNotFoundError, match="device-2"):
            session.load(exe, params=tmp_path)
    with pytest.raises(RuntimeError, match="the session is closed"):
        model.save_shards(tmp_path)


@pytest.mark.parametrize("plan", ["columns", "three"])
def test_whole_weights_in_the_layout_of_hugging_face(plan, executables, values, tmp_path):
    mesh, exe = executables[plan]
    with dx.Session(mesh, workers="processes" if plan == "three" else "threads") as session:
        model = session.load(exe, params=values)
        model.save_safetensors(tmp_path / "one")
        model.save_safetensors(
            tmp_path / "several",
            rename=lambda name: None if name == "scalar" else f"layers.{name}",
            max_file_bytes=200,
        )
        again = session.load(exe, params=tmp_path / "one")
        for name in SHAPES:
            wanted = held(model, name)
            for device, shard in held(again, name).items():
                assert_same_bytes(shard, wanted[device])
        with pytest.raises(ValueError, match="two weights would be called 'odd'"):
            model.save_safetensors(tmp_path / "no", rename={"even": "odd"})
        with pytest.raises(ValueError, match="max_file_bytes is 0"):
            model.save_safetensors(tmp_path / "no", max_file_bytes=0)
    with safetensors.safe_open(tmp_path / "one" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(SHAPES)
        for name, value in values.items():
            np.testing.assert_array_equal(file.get_tensor(name), value)
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())
    names = [name for name in SHAPES if name != "scalar"]
    with dx.Session(mesh) as session:  # one that was whole counts no more
        session.load(exe, params=values).save_safetensors(tmp_path / "one", max_file_bytes=200)
    assert not (tmp_path / "one" / "model.safetensors").exists()
    assert set(index["weight_map"]) == {f"layers.{name}" for name in names}
    assert index["metadata"]["total_size"] == sum(values[name].nbytes for name in names)
    assert sorted(set(index["weight_map"].values())) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    for name in names:
        path = tmp_path / "several" / index["weight_map"][f"layers.{name}"]
        with safetensors.safe_open(path, "np") as file:
            np.testing.assert_array_equal(file.get_tensor(f"layers.{name}"), values[name])


def test_parts_of_a_shard(tmp_path):
    """Each worker cuts straight from the pieces; what lies beyond the array is zero."""
    dx.save(tmp_path, {"w": np.arange(35, dtype="int32").reshape(5, 7)})
    (piece,) = dx.load(tmp_path)["w"].pieces
    cut = tvm_ffi.get_global_func("distir.runtime.cut_shard")
    join = tvm_ffi.get_global_func("distir.runtime.joined_shard")
    files = MappedFiles()
    left, right = (files.native(piece.shard(begin, (2, 3))) for begin in ([0, 0], [3, 4]))
    shape = tvm_ffi.Shape
    joined = cut(join(shape((3, 7)), "int32", [left, right], [shape((0, 1)), shape((1, 4))]))
    expected = np.zeros((3, 7), "int32")
    expected[:2, 1:4] = [[0, 1, 2], [7, 8, 9]]
    expected[1:, 4:] = [[25, 26, 27], [32, 33, 34]]
    np.testing.assert_array_equal(joined.numpy(), expected)
    np.testing.assert_array_equal(cut(join(shape((2,)), "int32", [], [])).numpy(), [0, 0])
    for extent, dtype, begins in [
        ((3, 7), "int32", [(2, 0), (0, 0)]),
        ((3, 7), "int32", [(0, -1), (0, 0)]),
        ((3,), "int32", [(0,), (0,)]),
        ((3, 7), "float32", [(0, 0), (1, 0)]),
        ((3, 7), "int32", [(0, 0)]),
    ]:
        with pytest.raises(ValueError, match=r"is no part of one|begin at 1 places"):
            join(shape(extent), dtype, [left, right], [shape(begin) for begin in begins])
