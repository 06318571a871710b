"""Tensors that an ONNX file has outside of itself are read from files beside it only."""

from __future__ import annotations

import os

import numpy as np
import pytest
from onnx import TensorProto, helper

import distir_ext as dx


def external(name, location, **others):
    tensor = helper.make_tensor(name, TensorProto.FLOAT, [4, 4], bytes(64), raw=True)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **others}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def initializer(tensor):
    return [helper.make_node("MatMul", ["x", "w"], ["y"])], [tensor]


def constant(tensor):
    nodes = [helper.make_node("Constant", [], ["w"], value=tensor)]
    return [*nodes, helper.make_node("MatMul", ["x", "w"], ["y"])], []


def of_a_branch(tensor):
    """In a graph within a node."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["v"])],
        "branch",
        [],
        [helper.make_tensor_value_info("v", TensorProto.FLOAT, [4, 4])],
        [tensor],
    )
    condition = helper.make_tensor("c", TensorProto.BOOL, [], [True])
    node = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    return [node, helper.make_node("MatMul", ["x", "z"], ["y"])], [condition]


def written(folder, place, tensor):
    values = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [4, 4]) for each in "xy"]
    nodes, initializers = place(tensor)
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], initializers)
    (folder / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    return folder / "m.onnx"


@pytest.fixture
def folder(tmp_path):
    """A folder with files, links and pipes, and one file that nobody may be led to."""
    (tmp_path / "secret").write_bytes(bytes(64))
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "w").write_bytes(np.ones(16, np.float32).tobytes())
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "up").symlink_to(tmp_path)
    (inside / "zero").symlink_to("/dev/zero")
    (inside / "dir").mkdir()
    os.mkfifo(inside / "pipe")
    with (inside / "huge").open("wb") as file:
        file.truncate(1 << 36)
    return inside


def hostile(folder):
    secret = folder.parent / "secret"
    away = ["../secret", str(secret), "dir/../../secret", "link", "up/secret", "zero", "pipe"]
    away += ["dir", ".", "", "/proc/self/mem", "a\0b", "\x1b[2J\n", "missing", "x" * 100_000]
    yield from ((each, {}) for each in away)
    sizes = [{"offset": "-1"}, {"length": "-1"}, {"offset": str(2**62)}, {"length": str(2**40)}]
    sizes += [{"offset": "9" * 5000}, {"offset": "\x1b"}, {"offset": "32", "length": "64"}]
    yield from (("w", each) for each in sizes)
    yield from (("huge", each) for each in ({}, {"length": str(1 << 36)}, {"offset": "64"}))


@pytest.mark.every_case
@pytest.mark.parametrize("place", [initializer, constant, of_a_branch])
def test_what_lies_elsewhere_is_not_read(place, folder):
    dx.interop.onnx.from_onnx(str(written(folder, place, external("w", "w"))))
    for location, others in hostile(folder):
        path = written(folder, place, external("w", location, **others))
        with pytest.raises(ValueError, match=r"m\.onnx: its external data cannot be read: .") as it:
            dx.interop.onnx.from_onnx(str(path))
        assert str(it.value).isprintable()
        assert len(str(it.value)) < 2000


def test_values_are_those_of_the_file(folder):
    path = written(folder, initializer, external("w", "w"))
    imported = dx.interop.onnx.from_onnx(str(path))
    np.testing.assert_array_equal(imported.params["main"][0].numpy(), np.ones((4, 4)))
    path = written(folder, initializer, external("w", "w", length="32"))
    with pytest.raises(ValueError, match="the elements of tensor 'w' cannot be read"):
        dx.interop.onnx.from_onnx(str(path))


@pytest.mark.parametrize("name", ["pipe", "zero", "dir"])
def test_what_is_no_file_is_not_read(name, folder):
    with pytest.raises(ValueError, match=f"{name} is not a regular file"):
        dx.interop.onnx.from_onnx(str(folder / name))
