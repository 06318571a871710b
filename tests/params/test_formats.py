"""Weights from files: every format gives each worker exactly its shard."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors
import tvm
from safetensors.numpy import save_file
from tvm.contrib.tvmjs import dump_tensor_cache

import distir_ext as dx
from distir_ext.params.checkpoint import open_params
from distir_ext.params.safetensors import write_file
from distir_ext.params.stored_array import MappedFiles

from .conftest import DTYPES, as_tvm, assert_same_bytes, executable, held, random_array


def save_safetensors(values, path):
    """Written by the format's own library."""
    save_file(values, path)


def save_checkpoint(values, directory, files=2):
    """In several files, with the index that transformers writes."""
    directory.mkdir(exist_ok=True)
    weight_map = {}
    for part in range(files):
        name = f"model-{part + 1:05}-of-{files:05}.safetensors"
        mine = dict(list(values.items())[part::files])
        save_safetensors(mine, directory / name)
        weight_map.update(dict.fromkeys(mine, name))
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def save_cache(values, directory):
    dump_tensor_cache(as_tvm(values), str(directory), encode_format="raw", show_progress=False)


def write_safetensors(values, path):
    write_file(path, as_tvm(values).items())


def save_param_dict(values, path):
    tvm.runtime.save_param_dict_to_file(as_tvm(values), str(path))


FORMATS = {
    "one file": (save_safetensors, "weights.safetensors"),
    "own writer": (write_safetensors, "weights.safetensors"),
    "several files": (save_checkpoint, "checkpoint"),
    "tensor cache": (save_cache, "cache"),
    "parameter file": (save_param_dict, "model.params"),
}


@pytest.mark.parametrize("form", FORMATS)
def test_every_dtype(form, every_dtype, session, tmp_path):
    save, name = FORMATS[form]
    exe, values = every_dtype
    save(values, tmp_path / name)
    model = session.load(exe, params=tmp_path / name)
    for dtype in DTYPES:
        for device, shard in held(model, dtype).items():
            assert_same_bytes(shard, values[dtype][2 * device : 2 * device + 2])
    np.testing.assert_array_equal(model["main"](np.ones(4, "float32")).numpy(), np.full(4, 2.0))


@pytest.mark.parametrize(
    ("save", "name", "path"),
    [
        (save_checkpoint, "a", "a/model.safetensors.index.json"),
        (save_checkpoint, "a", "a"),
        (save_cache, "a", "a/tensor-cache.json"),
        (save_safetensors, "weights.safetensors", ""),
    ],
)
def test_paths_of_files_and_directories(save, name, path, two_weights, session, tmp_path):
    exe, values = two_weights
    save(values, tmp_path / name)
    model = session.load(exe, params=str(tmp_path / path))
    assert_same_bytes(held(model, "w")[3], values["w"][6:8])
    assert_same_bytes(held(model, "v")[1], values["v"])


def test_own_files_are_read_by_the_library(every_dtype, tmp_path):
    _, values = every_dtype
    write_safetensors(values, tmp_path / "own.safetensors")
    found = dict(safetensors.deserialize((tmp_path / "own.safetensors").read_bytes()))
    assert set(found) == set(values)
    for name, value in values.items():
        assert bytes(found[name]["data"]) == value.tobytes()
        assert found[name]["shape"] == list(value.shape)


def test_cache_of_upper_halves_is_widened(two_weights, session, tmp_path, capsys):
    exe, _ = two_weights
    rng = np.random.default_rng(0)
    values = {"w": rng.standard_normal((8, 6), "float32"), "v": np.ones(6, "float32")}
    dump_tensor_cache(values, str(tmp_path), encode_format="f32-to-bf16", show_progress=False)
    expected = tvm.contrib.tvmjs.load_tensor_cache(str(tmp_path), tvm.cpu())[0]["w"].numpy()
    assert not np.array_equal(expected, values["w"])
    model = session.load(exe, params=tmp_path)
    assert_same_bytes(held(model, "w")[1], expected[2:4])


def test_uneven_dimensions_scalars_and_empty_tensors(tmp_path):
    mesh = dx.Mesh((2, 2), ("a", "b"))
    shapes = {"odd": (5, 7), "scalar": (), "empty": (0, 3)}
    weights = {name: (shape, "float32") for name, shape in shapes.items()}
    exe = executable(mesh, weights, {"odd": ("b", "a")})
    values = {name: random_array(shape, "float32") for name, shape in shapes.items()}
    save_safetensors(values, tmp_path / "w.safetensors")
    padded = np.zeros((6, 8), "float32")
    padded[:5, :7] = values["odd"]
    with dx.Session(mesh) as session:
        model = session.load(exe, params=tmp_path / "w.safetensors")
        for device, shard in held(model, "odd").items():
            a, b = divmod(device, 2)
            assert_same_bytes(shard, padded[3 * b : 3 * b + 3, 4 * a : 4 * a + 4])
        assert_same_bytes(held(model, "scalar")[3], values["scalar"])
        assert_same_bytes(held(model, "empty")[0], values["empty"])


def test_weights_that_several_functions_share_are_read_once(mesh, session, tmp_path):
    weights = {"w": ((8, 6), "float32")}
    exe = executable(mesh, weights, {"w": ("tp", None)}, functions=("prefill", "decode"))
    save_safetensors({"w": random_array((8, 6), "float32")}, tmp_path / "w.safetensors")
    model = session.load(exe, params=tmp_path / "w.safetensors")
    shards = [model[name].held_weights()["w"].shards[2] for name in ("prefill", "decode")]
    assert shards[0].data_ptr() == shards[1].data_ptr()


def test_open_params_reads_nothing(two_weights, tmp_path):
    save_safetensors(two_weights[1], tmp_path / "w.safetensors")
    array = open_params(tmp_path / "w.safetensors")["w"]
    assert (array.shape, array.dtype, array.num_bytes) == ((8, 6), "float32", 192)
    assert str(array) == f'tensor "w" of {tmp_path / "w.safetensors"}'
    (tmp_path / "w.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        array.read(MappedFiles(), (0, 0), (1, 1))
