"""Files of ONNX and torch.export, read and reported."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import distir_ext as dx


@pytest.fixture
def onnx_file(tmp_path, monkeypatch):
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


def test_plans_by_name(onnx_file, data, refused):
    """Pairs of products are found; what the command line shards comes first."""
    sizes = ["--size", "n=8"]
    found = data("report", onnx_file, "--mesh", "tp=2", "--plan", "tp", *sizes)
    assert found["flops"] == FLOPS * 2
    stated = ["--shard", "up=-,-", "--shard", "down=-,-"]
    found = data("report", onnx_file, "--mesh", "tp=2", "--plan", "tp", *stated, *sizes)
    assert found["flops"] == FLOPS * 4
    stated = ["--shard", "x=tp,-"]  # what is stated stays, and the search goes on from there
    found = data("report", onnx_file, "--mesh", "tp=2", "--plan", "auto", *stated, *sizes)
    assert found["flops"] == FLOPS * 2
    message = refused("report", onnx_file, "--mesh", "tp=2", "--plan", "hf", *sizes)
    assert "'hf' is what a model of transformers brings along" in message
    message = refused("report", onnx_file, "--mesh", "tp=2", "--plan", "fspd", *sizes)
    assert "there is no plan fspd; did you mean 'fsdp'?" in message
    found = data("sweep", onnx_file, "--mesh", "tp=2", "--plan", "tp", "--plan", "w=fsdp", *sizes)
    assert {each["plan"] for each in found["configurations"]} == {"tp", "w"}
    arguments = ["--mesh", "tp=2", "--plan", "tp", *stated, *sizes]
    message = refused("sweep", onnx_file, *arguments, status=2)
    assert "--shard goes with plans of files, not with 'tp'" in message


def configured(name, number, axis):
    """Adds a device configuration to the file: the rows or columns of the first weight."""
    model = onnx.load("model.onnx")
    model.ir_version = 11
    model.configuration.add(name=name, num_devices=number)
    placement = model.graph.node[0].device_configurations.add(configuration_id=name)
    spec = placement.sharding_spec.add(tensor_name="up", device=range(number))
    spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=number)
    onnx.save(model, "model.onnx")


def test_onnx_with_a_device_configuration(onnx_file, data, refused):
    """It is used where no mesh is given."""
    configured("columns", 4, 1)
    found = data("report", onnx_file, "--size", "n=8")
    assert {each["name"]: each["sharding"] for each in found["tensors"]}["up"] == "(None, 'x')"
    assert data("report", onnx_file, "--size", "n=8", "--configuration", "columns") == found
    other = data("report", onnx_file, "--size", "n=8", "--mesh", "dp=2", "--shard", "x=dp,-")
    assert {each["name"]: each["sharding"] for each in other["tensors"]}["up"] == "(None, None)"

    configured("rows", 2, 0)
    assert "name one: 'columns', 'rows'" in refused("report", onnx_file)
    assert data("report", onnx_file, "--size", "n=8", "--configuration", "columns") == found
    assert "did you mean 'rows'" in refused("report", onnx_file, "--configuration", "row")
    assert "sharded without --mesh" in refused(
        "report", onnx_file, "--configuration", "rows", "--mesh", "dp=2", status=2
    )
    other = ["--with-mesh", "dp=2", "--with-shard", "x=dp,-"]
    options = ["--size", "n=8", "--configuration", "columns"]
    compared = data("diff", onnx_file, *options, *other)
    assert compared["with"] == onnx_file


def test_broken_device_configurations(onnx_file, refused):
    configured("columns", 4, 9)
    said = refused("report", onnx_file)
    assert "node 0 (MatMul), tensor 'up': axis 9 is sharded, but it has 2 axes" in said


@pytest.mark.models
def test_torch_export(torch_file, data):
    shards = ["--mesh", "dp=2,tp=2", "--shard", "input.*=dp,-", "--shard", "p_0_weight=tp,-"]
    found = data("report", torch_file, *shards, "--shard", "p_2_weight=-,tp")
    assert found["flops"] == FLOPS


@pytest.mark.models
def test_a_saved_export_is_the_program_that_the_model_is(tmp_path):
    """Products of batches, lookups and constants are imported in the same way from both."""
    import torch

    from distir_ext.interop._program_files import read_program

    class Pooled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(16, 8)
            self.inner = torch.nn.Linear(8, 8)
            self.head = torch.nn.Linear(8, 16, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            h = self.table(ids) + torch.arange(6.0)[:, None]
            return self.head((torch.matmul(self.inner(h), h.transpose(1, 2)) @ h)[:, -1])

    model, ids = Pooled().eval(), torch.arange(24).reshape(4, 6) % 16
    program = torch.export.export(model, (ids,))
    torch.export.save(program, tmp_path / "model.pt2")
    wanted = dx.interop.torch.import_model(model, ids).mod
    for found in (
        read_program(str(tmp_path / "model.pt2")),
        dx.interop.torch.import_program(program).mod,
    ):
        tvm.ir.assert_structural_equal(found, wanted)
    with pytest.raises(TypeError, match=r"import_model exports a torch.nn.Module"):
        dx.interop.torch.import_program(model)


@pytest.mark.parametrize(
    "name", ["model.onnx", pytest.param("model.pt2", marks=pytest.mark.models)]
)
def test_broken_files(tmp_path, monkeypatch, refused, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("no model")
    assert f"{name} cannot be read: " in refused("report", name)


def test_names_within(onnx_file, refused):
    assert "has one program" in refused("report", f"{onnx_file}:main")
