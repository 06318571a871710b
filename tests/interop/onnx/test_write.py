"""Shardings that propagation has found, in the model; and back."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings

import distir_ext as dx
from distir_ext.interop.onnx.targets import plan_targets

from . import models
from .strategies import RANKS, SIZES, shardings

MODELS = {
    "tensor parallel": models.tensor_parallel_mlp,
    "3 devices": lambda: models.tensor_parallel_mlp(3, width=7, hidden=11, out=5),
    "two axes": models.two_axes_mlp,
    "conv by batch": models.batch_sharded_conv_net,
    "conv by channels": models.channel_sharded_conv_net,
    "stages": models.staged_mlp,
    "stages back and forth": lambda: models.staged_mlp((4, 7, 7, 4)),
    "stages and tensor parallel": lambda: models.staged_mlp(named=True),
}


def propagated(model, configuration=None):
    return dx.transform.PropagateSharding()(dx.interop.onnx.from_onnx(model, configuration).mod)


def targets(model, name):
    """Targets of a configuration, by node index and tensor name."""
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    (chosen,) = (each for each in dx.interop.onnx.read(proto) if each.name == name)
    plan = plan_targets(chosen, proto.graph.node, [each.name for each in proto.graph.input])
    assert not plan.problems
    return {
        (index, tensor): target
        for index, node in plan.nodes.items()
        for side in (node.inputs, node.outputs)
        for tensor, target in side.items()
    }


def meaning(target, rank=4):
    """The devices of each shard, whatever order a file lists axes and devices in."""
    if target.arrangement is None:
        return ((), (target.devices,))
    axes = tuple(axis % rank for axis in target.axes)
    shape = target.arrangement.shards
    order = np.argsort(axes)
    numbers = np.arange(len(target.arrangement.groups)).reshape(shape).transpose(order).ravel()
    groups = [tuple(sorted(target.arrangement.groups[number])) for number in numbers]
    return (tuple((axes[i], shape[i]) for i in order), tuple(groups))


@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name):
    """Stated shardings are written unchanged, and propagated shardings survive a round trip."""
    model = MODELS[name]()
    (stated,) = model.device_configurations
    written = dx.interop.onnx.write(propagated(model), model, "found")
    assert dx.interop.onnx.check(written) == []
    assert dx.interop.onnx.read(written)[0] == dx.interop.onnx.read(model)[0]

    before, after = targets(model, stated.name), targets(written, "found")
    ranks = {
        value.name: len(value.shape)
        for node in model.graph
        for value in (*node.inputs, *node.outputs)
    }
    stages_alone = not any(each.tensors for each in dx.interop.onnx.read(model)[0].nodes)
    for (index, tensor), target in before.items():
        if not stages_alone:
            rank = ranks[tensor]
            assert meaning(after[index, tensor], rank) == meaning(target, rank), (index, tensor)

    again = dx.interop.onnx.write(propagated(written, "found"), written, "again")
    _, found, same = dx.interop.onnx.read(again)
    assert found.nodes == same.nodes
    stages = [[node.stage for node in each.nodes] for each in (found, same)]
    assert stages[0] == stages[1]


def test_results_are_the_same():
    model = models.two_axes_mlp()
    written = dx.interop.onnx.write(propagated(model), model, "found")
    (y,) = models.run(dx.interop.onnx.from_onnx(written, "found"), models.inputs_of(model))
    np.testing.assert_allclose(y, models.reference(model)[0], rtol=1e-5, atol=1e-5)


def test_what_onnx_ir_reads():
    """All tensors of all nodes are stated; devices and axes are those of onnx_ir's own API."""
    model = models.tensor_parallel_mlp(2)
    written = dx.interop.onnx.write(propagated(model), model, "found", device_names=("CPU", "GPU"))
    assert isinstance(written, ir.Model)
    found = written.device_configurations[1]
    assert found == ir.ModelConfiguration("found", 2, ("CPU", "GPU"))
    fc1 = models.node_of(written, "fc1")
    of_tp, of_found = fc1.sharding_of(models.value_of(fc1, "up"))
    assert of_tp.device == of_found.device == (0, 1)
    assert of_tp.sharded_dims == of_found.sharded_dims
    (rows,) = fc1.sharding_of(models.value_of(fc1, "rows"))
    (dim,) = rows.sharded_dims
    assert (dim.axis, dim.simple_shardings[0].num_shards, rows.device) == (1, 2, (0, 1))
    (x,) = fc1.sharding_of(models.value_of(fc1, "x"))
    assert x.device == (-1,)
    assert x.index_to_device_group_map == (ir.IndexToDeviceGroupMapEntry(-1, (0, 1)),)
    for each in written.graph:
        for value in (*each.inputs, *each.outputs):
            assert each.sharding_of(value), (each.name, value.name)


def test_same_plan_through_onnx_ir_and_through_annotate():
    """A model without configurations, sharded by a plan on its tensors' names."""
    plain = models.mlp()
    mesh = dx.Mesh(tp=2)
    mod = dx.interop.onnx.from_onnx(plain).mod
    mod = dx.annotate(mod, mesh, {"up": (None, "tp"), "bias": ("tp",), "down": ("tp", None)})
    by_plan = dx.interop.onnx.write(dx.transform.PropagateSharding()(mod), plain, "tp")
    stated = models.tensor_parallel_mlp(2)
    by_file = dx.interop.onnx.write(propagated(stated), stated, "tp", replace=True)
    assert dx.interop.onnx.read(by_plan) == dx.interop.onnx.read(by_file)
    assert models.mlp().device_configurations == plain.device_configurations == ()


def test_outputs_that_are_redistributed():
    """The sharding of an output is the one that was stated, not that in which it is computed."""
    model = models.tensor_parallel_mlp(2)
    (tp,) = model.device_configurations
    models.shard(model, tp, "fc1", "rows", {0: 2}, (0, 1))
    written = dx.interop.onnx.write(propagated(model), model, "found")
    columns, rows = targets(model, "tp")[0, "up"], targets(written, "found")[0, "rows"]
    assert meaning(columns, 2) == (((1, 2),), ((0,), (1,)))
    assert meaning(rows, 2) == (((0, 2),), ((0,), (1,)))


def test_stages_by_meshes():
    """Without stages in the file, each mesh is one."""
    model = models.mlp()
    mod = dx.interop.onnx.from_onnx(model).mod
    first, second = dx.Mesh((2,), ("tp",)), dx.Mesh((2,), ("tp",), device_ids=(2, 3))
    plan = {"up": (first, (None, "tp")), "down": (second, ("tp", None))}
    mod = dx.transform.PropagateSharding()(dx.annotate(mod, first, plan))
    written = dx.interop.onnx.write(mod, ir.to_proto(model), "pp")
    (found,) = dx.interop.onnx.read(written)
    assert [node.stage for node in found.nodes] == [0, 0, 0, 1]
    assert found.num_devices == 4


def test_symbolic_sizes():
    proto = ir.to_proto(models.tensor_parallel_mlp())
    dim = proto.graph.input[0].type.tensor_type.shape.dim[0]
    dim.dim_param = "n"
    spec = proto.graph.node[0].device_configurations[0].sharding_spec.add(tensor_name="x")
    spec.device.extend([0, 1])
    part = spec.sharded_dim.add(axis=0).simple_sharding.add(num_shards=2)
    part.dim_param = "n"
    del proto.graph.node[0].device_configurations[0].sharding_spec[0]
    written = dx.interop.onnx.write(propagated(proto), proto, "found")
    read = dx.interop.onnx.read(written)[1].nodes[0].tensors[0]
    assert read.axes[0].parts == (dx.interop.onnx.AxisPart(2, "n"),)


def test_model_is_not_changed_and_gets_the_version_that_it_needs():
    proto = ir.to_proto(models.mlp())
    proto.ir_version = 8
    before = proto.SerializeToString()
    mod = dx.interop.onnx.from_onnx(proto).mod
    mod = dx.transform.PropagateSharding()(dx.annotate(mod, dx.Mesh(tp=2), {"up": (None, "tp")}))
    written = dx.interop.onnx.write(mod, proto, "tp")
    assert proto.SerializeToString() == before
    assert written.ir_version == 11
    onnx.checker.check_model(written)
    without = onnx.ModelProto()
    without.CopyFrom(written)
    for node in without.graph.node:
        node.ClearField("device_configurations")
    without.ClearField("configuration")
    without.ir_version = 8
    assert without.SerializeToString() == before


def test_mistakes():
    model = models.tensor_parallel_mlp(2)
    mod = propagated(model)
    write = dx.interop.onnx.write
    with pytest.raises(ValueError, match="a configuration 'tp' already; replace=True"):
        write(mod, model, "tp")
    with pytest.raises(ValueError, match="its name must be a text"):
        write(mod, model, "")
    with pytest.raises(ValueError, match="there are 2 devices, but 1 name of devices"):
        write(mod, model, "new", device_names=("CPU",))
    with pytest.raises(ValueError, match="the module is annotated; what is written is what"):
        write(dx.interop.onnx.from_onnx(model).mod, model, "new")
    with pytest.raises(ValueError, match="the module has no shardings"):
        write(dx.interop.onnx.from_onnx(model, annotated=False).mod, model, "new")
    with pytest.raises(ValueError, match="has no parameter 'k', so it is not what"):
        write(mod, models.conv_net(), "new")
    with pytest.raises(TypeError):
        write(3, model, "new")


def test_whatever_is_stated_comes_back(sample):
    @settings(max_examples=sample(15, 40, 150, 1000))
    @given(shardings())
    def check(stated):
        model = models.mlp(**SIZES)
        six = model.add_device_configuration("six", num_devices=6)
        for each in stated:
            models.state(model, six, *each)
        before = targets(model, "six")
        written = dx.interop.onnx.write(propagated(model), model, "found")
        after = targets(written, "found")
        for key, target in before.items():
            rank = RANKS[key[1]]
            assert meaning(after[key], rank) == meaning(target, rank), key

    check()
