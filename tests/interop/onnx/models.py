"""Small models, made with ONNX's helpers and annotated through onnx_ir."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator
from tests.targets import QUICK

import distir_ext as dx

node = helper.make_node


def array(*shape, seed=0):
    """Float32, scaled so that products stay of the order of 1."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) / max(shape[0], 1) ** 0.5).astype("float32")


def model(nodes, inputs, outputs, weights, opset=18):
    """An ``onnx_ir.Model``; inputs by name and shape, weights by name and value."""
    float32 = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, float32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, float32, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    return ir.from_proto(shape_inference.infer_shapes(made))


def node_of(model_, name):
    return next(each for each in model_.graph if each.name == name)


def value_of(node_, name):
    values = [value for value in (*node_.inputs, *node_.outputs) if value is not None]
    return next(value for value in values if value.name == name)


def shard(model_, configuration, node_name, tensor, shards, devices=()):
    """Shards a tensor through onnx_ir's API: ``shards`` is from axis to number."""
    at = node_of(model_, node_name)
    for axis, number in shards.items():
        at.shard(
            value_of(at, tensor),
            configuration=configuration,
            axis=axis,
            num_shards=number,
            device_indices=devices,
        )


def state(model_, configuration, node_name, tensor, shards, groups):
    """Shards a tensor that is replicated in groups of devices, which ``Node.shard`` cannot."""
    at = node_of(model_, node_name)
    value = value_of(at, tensor)
    keys = [-1 - i for i in range(len(groups))]
    spec = ir.ShardingSpec(
        value=value,
        device=tuple(keys),
        index_to_device_group_map=tuple(
            ir.IndexToDeviceGroupMapEntry(key, tuple(group))
            for key, group in zip(keys, groups, strict=True)
        ),
        sharded_dims=tuple(
            ir.ShardedDim(axis, (ir.SimpleShardedDim(num_shards=number),))
            for axis, number in shards.items()
        ),
    )
    others = [each for each in at.device_configurations if each.configuration is not configuration]
    mine = [each for each in at.device_configurations if each.configuration is configuration]
    specs = (*(mine[0].sharding_specs if mine else ()), spec)
    stage = mine[0].pipeline_stage if mine else None
    at.device_configurations = (*others, ir.NodeDeviceConfiguration(configuration, specs, stage))


def mlp(batch=5, width=6, hidden=8, out=7):
    """x -> fc1 -> + bias -> Relu -> fc2: y."""
    nodes = [
        node("MatMul", ["x", "up"], ["rows"], name="fc1"),
        node("Add", ["rows", "bias"], ["hidden"], name="add"),
        node("Relu", ["hidden"], ["active"], name="act"),
        node("MatMul", ["active", "down"], ["y"], name="fc2"),
    ]
    weights = {"up": array(width, hidden), "bias": array(hidden), "down": array(hidden, out)}
    return model(nodes, {"x": [batch, width]}, ["y"], weights)


def tensor_parallel_mlp(devices=2, **sizes):
    """Megatron's way."""
    made = mlp(**sizes)
    tp = made.add_device_configuration("tp", num_devices=devices)
    ids = tuple(range(devices))
    shard(made, tp, "fc1", "up", {1: devices}, ids)
    shard(made, tp, "add", "bias", {0: devices}, ids)
    shard(made, tp, "fc2", "down", {0: devices}, ids)
    return made


def two_axes_mlp():
    """Batch over two groups of devices, columns within them; one negative axis."""
    made = mlp()
    both = made.add_device_configuration("both", num_devices=4)
    state(made, both, "fc1", "x", {0: 2}, [(0, 1), (2, 3)])
    state(made, both, "fc1", "up", {-1: 2}, [(0, 2), (1, 3)])
    shard(made, both, "act", "active", {0: 2, 1: 2}, (0, 1, 2, 3))
    state(made, both, "fc2", "down", {-2: 2}, [(0, 2), (1, 3)])
    return made


def conv_net(batch=6, channels=5):
    nodes = [
        node("Conv", ["x", "k", "kb"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "scale", "shift", "mean", "var"], ["b"], name="norm"),
        node("Relu", ["b"], ["c"], name="act"),
        node("MaxPool", ["c"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["d"], name="mean"),
        node("Flatten", ["d"], ["e"], name="flat"),
        node("Gemm", ["e", "w", "wb"], ["y"], name="head", transB=1),
    ]
    weights = {
        "k": array(channels, 3, 3, 3),
        "kb": array(channels),
        "scale": array(channels, seed=1),
        "shift": array(channels, seed=2),
        "mean": array(channels, seed=3),
        "var": np.abs(array(channels, seed=4)) + 0.5,
        "w": array(4, channels),
        "wb": array(4),
    }
    return model(nodes, {"x": [batch, 3, 7, 9]}, ["y"], weights)


def batch_sharded_conv_net():
    """On three devices, in an order of their own."""
    made = conv_net()
    dp = made.add_device_configuration("dp", num_devices=3)
    shard(made, dp, "conv", "x", {0: 3}, (2, 0, 1))
    return made


def channel_sharded_conv_net():
    """Five output channels on two devices."""
    made = conv_net()
    tp = made.add_device_configuration("tp", num_devices=2)
    shard(made, tp, "conv", "k", {0: 2}, (0, 1))
    shard(made, tp, "head", "w", {1: 2}, (1, 0)[::-1])
    return made


def staged_mlp(stages=(1, 1, 1, 2), devices=4, named=False):
    """Two stages; if named, the tensors of the second one name its devices."""
    made = mlp()
    pp = made.add_device_configuration("pp", num_devices=devices)
    for each, stage in zip(made.graph, stages, strict=True):
        each.set_pipeline_stage(pp, stage)
    if named:
        shard(made, pp, "fc1", "up", {1: 2}, (0, 1))
        shard(made, pp, "fc2", "down", {0: 2}, (2, 3))
    return made


def inputs_of(model_):
    """A value for each input."""
    return {value.name: array(*value.shape.numpy(), seed=7) for value in model_.graph.inputs}


def reference(model_):
    proto = model_ if not isinstance(model_, ir.Model) else ir.to_proto(model_)
    return ReferenceEvaluator(proto).run(None, inputs_of(ir.from_proto(proto)))


def run(imported, inputs):
    """The result of function main on CPU workers."""
    exe = dx.build(imported.mod, target=QUICK)
    with dx.Session(imported.mesh) as session:
        result = session.load(exe, params=imported.params)["main"](*inputs.values())
        return [each.numpy() for each in (result if isinstance(result, tuple) else (result,))]
