"""Import of ONNX models with device configurations to annotated modules."""

import importlib
import sys
import warnings

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

import distir_ext as dx
from distir_ext.structure.annotated_function import bindings_of

from . import models
from .models import node

from_onnx = dx.interop.onnx.from_onnx


def annotations(mod):
    """Name of what is annotated, name of the annotated variable, mesh's devices, placement."""
    return [
        (
            binding.value.args[0].name,
            binding.var.name,
            [int(i) for i in binding.value.attrs.device_mesh.device_ids],
            str(binding.value.attrs.placement).strip('"'),
        )
        for binding in bindings_of(mod["main"].body)
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.dist.annotate_sharding"
    ]


def names(mod):
    return [binding.var.name for binding in bindings_of(mod["main"].body)]


def test_annotations_of_two_axes():
    imported = from_onnx(models.two_axes_mlp())
    assert imported.mesh == dx.Mesh(x=2, y=2)
    assert annotations(imported.mod) == [
        ("x", "x_operand", [0, 1, 2, 3], "S[0], R"),
        ("up", "up_operand", [0, 1, 2, 3], "R, S[1]"),
        ("active", "active_sharded", [0, 1, 2, 3], "S[0], S[1]"),
        ("down", "down_operand", [0, 1, 2, 3], "R, S[0]"),
    ]


def test_variables_are_called_as_tensors():
    model = models.mlp()
    mod, mesh, params = from_onnx(model)
    assert mesh is None
    assert [param.name for param in mod["main"].params] == ["x", "up", "bias", "down"]
    assert names(mod)[:4] == ["rows", "hidden", "active", "y"]
    assert [each.shape for each in params["main"]] == [(6, 8), (8,), (8, 7)]
    annotated = dx.annotate(mod, dx.Mesh(tp=2), {"up": (None, "tp"), "hidden": (None, "tp")})
    dx.transform.PropagateSharding()(annotated)


def test_tensors_called_as_the_frontend_calls_its_own():
    """TVM's names give way: lv, lv1, gv are its own."""
    nodes = [
        node("Gemm", ["gv", "lv1", "onnx::b"], ["lv"], name="one", alpha=2.0),
        node("Relu", ["lv"], ["lv_sharded"], name="two"),
        node("Gemm", ["lv_sharded", "w", "/m/w.0:1"], ["mark"], name="three", alpha=2.0),
    ]
    weights = {
        "lv1": models.array(6, 8),
        "onnx::b": models.array(8),
        "w": models.array(8, 4),
        "/m/w.0:1": models.array(4),
    }
    model = models.model(nodes, {"gv": [5, 6]}, ["mark"], weights)
    tp = model.add_device_configuration("tp", num_devices=2)
    models.shard(model, tp, "one", "lv", {1: 2})
    models.shard(model, tp, "three", "/m/w.0:1", {0: 2})
    imported = from_onnx(model)
    params = [param.name for param in imported.mod["main"].params]
    assert params == ["gv", "lv1", "onnx::b", "w", "/m/w.0:1"]
    found = names(imported.mod)
    assert len(set(found)) == len(found)
    assert {"lv", "lv_sharded", "lv_sharded_", "mark"} <= set(found)
    assert not {"gv", "lv1"} & set(found)
    (y,) = models.run(imported, models.inputs_of(model))
    np.testing.assert_allclose(y, models.reference(model)[0], rtol=1e-5, atol=1e-5)


def test_one_tensor_read_in_two_ways():
    """Each node gets its own; equal ones share a variable."""
    nodes = [
        node("Relu", ["x"], ["a"], name="a"),
        node("Exp", ["x"], ["b"], name="b"),
        node("Neg", ["x"], ["c"], name="c"),
        node("Sum", ["a", "b", "c"], ["y"], name="y"),
    ]
    model = models.model(nodes, {"x": [4, 6]}, ["y"], {})
    two = model.add_device_configuration("two", num_devices=2)
    models.shard(model, two, "a", "x", {0: 2})
    models.shard(model, two, "b", "x", {1: 2})
    models.shard(model, two, "c", "x", {-2: 2})
    imported = from_onnx(model)
    assert annotations(imported.mod) == [
        ("x", "x_operand", [0, 1], "S[0]"),
        ("x", "x_operand_1", [0, 1], "S[1]"),
    ]
    (y,) = models.run(imported, models.inputs_of(model))
    np.testing.assert_allclose(y, models.reference(model)[0], rtol=1e-5, atol=1e-5)


def test_values_that_the_frontend_folds():
    """Shapes, axes and their arithmetic are no tensors for TVM; replicated, they need nothing."""
    nodes = [
        node("Shape", ["x"], ["shape"], name="shape"),
        node("Identity", ["rows"], ["rows_too"], name="identity"),
        node("Reshape", ["x", "rows_too"], ["flat"], name="flat"),
        node("Split", ["flat", "parts"], ["left", "right"], name="split", axis=0),
        node("Add", ["left", "right"], ["sum"], name="add"),
        node("ReduceSum", ["sum", "axes"], ["y"], name="reduce"),
    ]
    weights = {"rows": np.array([4, -1]), "parts": np.array([2, 2]), "axes": np.array([1])}
    model = models.model(nodes, {"x": [6, 4]}, ["y"], weights)
    three = model.add_device_configuration("three", num_devices=3)
    models.shard(model, three, "shape", "x", {0: 3})
    for at, tensor in (("identity", "rows"), ("identity", "rows_too"), ("flat", "rows_too")):
        models.state(model, three, at, tensor, {}, [(0, 1, 2)])
    models.shard(model, three, "split", "left", {1: 3})
    models.shard(model, three, "reduce", "axes", {0: 1}, (0, 1, 2))
    imported = from_onnx(model)
    assert [each[:2] for each in annotations(imported.mod)] == [
        ("rows", "rows_too_sharded"),
        ("left", "left_sharded"),
    ]
    (y,) = models.run(imported, models.inputs_of(model))
    np.testing.assert_allclose(y, models.reference(model)[0], rtol=1e-5, atol=1e-5)


def test_sharded_values_that_are_folded_are_named():
    nodes = [node("Reshape", ["x", "rows"], ["y"], name="flat")]
    model = models.model(nodes, {"x": [6, 4]}, ["y"], {"rows": np.array([4, -1])})
    two = model.add_device_configuration("two", num_devices=2)
    models.shard(model, two, "flat", "rows", {0: 2})
    with pytest.raises(ValueError, match="node 'flat', tensor 'rows': it is sharded, but TVM's"):
        from_onnx(model)


def test_symbolic_sizes():
    proto = ir.to_proto(models.tensor_parallel_mlp())
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        imported = from_onnx(proto)
    assert "n" in str(imported.mod["main"].params[0].ty)
    bound = from_onnx(proto, shape_dict={"x": [3, 6]})
    assert list(map(int, bound.mod["main"].params[0].ty.shape.values)) == [3, 6]


def test_initializers_that_are_inputs_too():
    """As before IR version 4."""
    proto = ir.to_proto(models.tensor_parallel_mlp())
    proto.graph.input.append(helper.make_tensor_value_info("up", TensorProto.FLOAT, [6, 8]))
    mod = from_onnx(proto).mod
    assert [param.name for param in mod["main"].params] == ["x", "up", "bias", "down"]
    assert int(mod["main"].attrs["num_input"]) == 1


def test_branches():
    def branch(name, op):
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [4, 6])
        return helper.make_graph([node(op, ["a"], [f"{name}_out"])], name, [], [out])

    exp, neg = branch("then", "Exp"), branch("else", "Neg")
    nodes = [
        node("Relu", ["x"], ["a"], name="a"),
        node(
            "If",
            ["c"],
            ["b"],
            name="if",
            then_branch=branch("t", "Exp"),
            else_branch=branch("e", "Neg"),
        ),
        node("Add", ["a", "b"], ["y"], name="y"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 6]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 6])],
    )
    opsets = [helper.make_opsetid("", 18)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=11))
    two = model.add_device_configuration("two", num_devices=2)
    models.shard(model, two, "a", "a", {0: 2})
    imported = from_onnx(model)
    exe = dx.build(imported.mod)
    x = models.array(4, 6)
    with dx.Session(imported.mesh) as session:
        main = session.load(exe)["main"]
        for condition in (True, False):
            inputs = {"x": x, "c": np.array(condition)}
            (expected,) = models.ReferenceEvaluator(ir.to_proto(model)).run(None, inputs)
            np.testing.assert_allclose(main(*inputs.values()).numpy(), expected, rtol=1e-6)


def test_fused_axes():
    """Of an axis that is (2, 3): both parts cut is 6 shards, the minor one alone is none."""
    nodes = [node("Relu", ["x"], ["y"], name="relu")]
    model = models.model(nodes, {"x": [6]}, ["y"], {})
    six = model.add_device_configuration("six", num_devices=6)
    proto = ir.to_proto(model)
    spec = proto.graph.node[0].device_configurations.add(configuration_id=six.name)
    spec = spec.sharding_spec.add(tensor_name="x", device=range(6))
    parts = spec.sharded_dim.add(axis=0).simple_sharding
    parts.add(dim_value=2, num_shards=2)
    parts.add(dim_value=3, num_shards=3)
    assert annotations(from_onnx(proto).mod) == [("x", "x_operand", list(range(6)), "S[0]")]
    parts[0].num_shards = 1
    spec.device[:] = range(3)
    with pytest.raises(ValueError, match="tensor 'x': a shard of axis 0 is not contiguous"):
        from_onnx(proto)


def test_everything_that_cannot_be_placed_is_listed():
    model = models.mlp()
    six = model.add_device_configuration("six", num_devices=6)
    models.shard(model, six, "fc1", "up", {1: 6}, (0, 1, 2, 3, 4, 5))
    models.shard(model, six, "add", "bias", {0: 6}, (0, 1, 3, 2, 4, 5))
    models.state(model, six, "fc2", "down", {0: 2}, [(0, 1, 2), (3, 4)])
    models.shard(model, six, "fc2", "y", {0: 4})
    with pytest.raises(ValueError, match="cannot be stated on a mesh in 3 places") as raised:
        from_onnx(model)
    assert str(raised.value).splitlines()[1:] == [
        "  node 'fc2', tensor 'down': its shards lie on 2 to 3 devices; on a mesh each shard is on "
        "equally many",
        "  node 'fc2', tensor 'y': its 4 shards cannot lie on 6 devices equally; name the devices",
        "  node 'add', tensor 'bias': its shards on devices 0, 1, 3, 2, 4, 5 do not go with those "
        "of tensors before it: no mesh has axes for both",
    ]


def test_more_shards_than_elements():
    model = models.mlp(batch=3)
    four = model.add_device_configuration("four", num_devices=4)
    models.shard(model, four, "fc1", "x", {0: 4})
    with pytest.raises(ValueError, match="node 'fc1', tensor 'x' dimension 0 of size 3 has fewer"):
        from_onnx(model)


def test_inputs_on_different_devices():
    model = models.mlp()
    four = model.add_device_configuration("four", num_devices=4)
    models.shard(model, four, "fc1", "x", {0: 2}, (0, 1))
    models.shard(model, four, "fc1", "up", {1: 2}, (2, 3))
    with pytest.raises(ValueError, match="node 'fc1': its inputs 'x', 'up' lie on different dev"):
        from_onnx(model)


def test_stages_and_devices_that_do_not_divide():
    with pytest.raises(ValueError, match="stages 0, 1, 2: no tensor of theirs has devices, and 4"):
        from_onnx(models.staged_mlp((0, 1, 1, 2)))


def test_stages_without_devices_get_those_that_are_left():
    model = models.staged_mlp((3, 3, 3, 5), devices=6)
    (pp,) = model.device_configurations
    models.shard(model, pp, "fc1", "up", {1: 2}, (4, 1))
    imported = from_onnx(model)
    assert [mesh.device_ids for mesh in dx.meshes(imported.mod)] == [(4, 1), (0, 2, 3, 5)]
    assert imported.mesh.device_ids == (0, 1, 2, 3, 4, 5)


def test_which_configuration():
    model = models.tensor_parallel_mlp()
    model.add_device_configuration("other", num_devices=8)
    with pytest.raises(ValueError, match="several configurations; name one: 'tp', 'other'"):
        from_onnx(model)
    with pytest.raises(ValueError, match=r"no configuration 'tpp'; it has .* did you mean 'tp'"):
        from_onnx(model, "tpp")
    assert from_onnx(model, "tp").mesh == dx.Mesh(x=2)
    assert from_onnx(model, "other").mesh == dx.Mesh(x=8)
    plain = from_onnx(model, annotated=False)
    assert plain.mesh is None
    assert dx.phase(plain.mod) is None


def test_nodes_that_cannot_be_imported_are_named():
    proto = ir.to_proto(models.mlp())
    proto.graph.node[3].input[0] = "nowhere"
    with pytest.raises(ValueError, match=r"node 'fc2': no input .* is called 'nowhere'"):
        from_onnx(proto)
    proto.graph.node[3].input[0] = "bias"
    proto.graph.node[3].input[1] = "bias"
    proto.graph.node[3].op_type = "Conv"
    with pytest.raises(ValueError, match="node 'fc2': TVM's frontend cannot import this Conv"):
        from_onnx(proto)


def test_files(tmp_path):
    """With weights outside of it."""
    proto = ir.to_proto(models.tensor_parallel_mlp())
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    assert [each.name for each in dx.interop.onnx.read(tmp_path / "m.onnx")] == ["tp"]
    imported = from_onnx(str(tmp_path / "m.onnx"))
    up = numpy_helper.to_array(ir.to_proto(models.mlp()).graph.initializer[0])
    np.testing.assert_array_equal(imported.params["main"][0].numpy(), up)

    lazily = ir.load(tmp_path / "m.onnx")
    imported = from_onnx(lazily)
    np.testing.assert_array_equal(imported.params["main"][0].numpy(), up)
    mod = dx.transform.PropagateSharding()(imported.mod)
    written = dx.interop.onnx.write(mod, lazily, "found")
    np.testing.assert_array_equal(written.graph.initializers["up"].const_value.numpy(), up)

    proto = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(ValueError, match=r"3 initializers \('up', 'bias', 'down'\) are in files"):
        from_onnx(proto)


def test_without_onnx_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "distir_ext.interop.onnx.proto")
    with pytest.raises(ImportError, match=r"needs the package onnx: pip install 'distir-ext\[onnx"):
        importlib.import_module("distir_ext.interop.onnx.proto")


def test_module_prints_and_parses():
    mod = from_onnx(models.staged_mlp(named=True)).mod
    parsed = tvm.script.from_source(mod.script(show_meta=True))
    tvm.ir.assert_structural_equal(parsed, mod)
