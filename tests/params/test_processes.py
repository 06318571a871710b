"""Workers that are processes read their shards of files themselves."""

from __future__ import annotations

import numpy as np
import pytest
from tvm.contrib.tvmjs import dump_tensor_cache

import distir_ext as dx

from .conftest import as_tvm, assert_same_bytes, executable, held, random_array
from .test_formats import save_checkpoint


@pytest.fixture(scope="module")
def processes(mesh):
    with dx.Session(mesh, workers="processes") as opened:
        yield opened


@pytest.fixture
def weights():
    return {"w": random_array((7, 6), "float32"), "v": random_array((8,), "bfloat16", 1)}


def load(session, mesh, path, plan):
    shapes = {"w": ((7, 6), "float32"), "v": ((8,), "bfloat16")}
    return session.load(executable(mesh, shapes, plan), params=path)


def refuse(*arguments):
    raise AssertionError("the controller maps a file")


def test_shards_come_from_files_without_the_controller(
    processes, session, mesh, weights, tmp_path, monkeypatch
):
    """A checkpoint, a padded dimension, and shards that were saved with another sharding."""
    save_checkpoint(weights, tmp_path / "checkpoint")
    rows, columns = {"w": ("tp", None), "v": ("tp",)}, {"w": (None, "tp")}
    expected = load(session, mesh, tmp_path / "checkpoint", rows)
    load(session, mesh, tmp_path / "checkpoint", columns).save_shards(tmp_path / "shards")
    monkeypatch.setattr(np, "memmap", refuse)
    for source in ("checkpoint", "shards"):
        model = load(processes, mesh, tmp_path / source, rows)
        for name in weights:
            for device, shard in held(model, name).items():
                assert_same_bytes(shard, held(expected, name)[device])


def test_elements_are_widened_by_the_worker(processes, session, mesh, tmp_path):
    values = as_tvm({"w": np.random.default_rng(0).standard_normal((8, 4)).astype("float32")})
    dump_tensor_cache(values, str(tmp_path), encode_format="f32-to-bf16", show_progress=False)
    exe = executable(mesh, {"w": ((8, 4), "float32")}, {"w": ("tp", None)})
    actual, expected = (held(each.load(exe, tmp_path), "w") for each in (processes, session))
    for device, shard in actual.items():
        assert_same_bytes(shard, expected[device])


def test_damaged_files_leave_the_session_open(processes, mesh, weights, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        load(processes, mesh, tmp_path / "nowhere.safetensors", {"w": ("tp", None)})
    save_checkpoint(weights, tmp_path)
    file = next(tmp_path.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        load(processes, mesh, tmp_path, {"w": ("tp", None)})
    assert not processes.closed
