"""Files of ONNX and torch.export, read and reported."""

import pytest

pytestmark = pytest.mark.models


@pytest.fixture
def onnx_file(tmp_path, monkeypatch):
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {"up": (64, 256), "down": (256, 64)}
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "down"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "feed_forward",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [
            numpy_helper.from_array(rng.standard_normal(shape, "float32"), name)
            for name, shape in weights.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, "model.onnx")
    return "model.onnx"


@pytest.fixture
def torch_file(tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256, bias=False), torch.nn.ReLU(), torch.nn.Linear(256, 64, bias=False)
    )
    torch.export.save(torch.export.export(model, (torch.randn(8, 64),)), "model.pt2")
    return "model.pt2"


FLOPS = 2 * (2 * 4 * 64 * 128) + 4 * 128  # two products of a device's share, and a relu


def test_onnx(onnx_file, data, refused):
    shards = ["--mesh", "dp=2,tp=2", "--shard", "x=dp,-", "--shard", "up=-,tp"]
    shards += ["--shard", "down=tp,-"]
    assert "--size n=.." in refused("report", onnx_file, *shards)
    found = data("report", onnx_file, *shards, "--size", "n=8")
    assert found["flops"] == FLOPS
    assert [each["role"] for each in found["tensors"]] == ["input", "weight", "weight", "result"]


def test_torch_export(torch_file, data):
    shards = ["--mesh", "dp=2,tp=2", "--shard", "input.*=dp,-", "--shard", "p_0_weight=tp,-"]
    found = data("report", torch_file, *shards, "--shard", "p_2_weight=-,tp")
    assert found["flops"] == FLOPS


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2"])
def test_broken_files(tmp_path, monkeypatch, refused, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("no model")
    assert f"{name} cannot be read: " in refused("report", name)


def test_names_within(onnx_file, refused):
    assert "has one program" in refused("report", f"{onnx_file}:main")
