"""Invalid device configurations, each of which onnx.checker accepts."""

import dataclasses

import onnx
import onnx_ir as ir
import pytest

import distir_ext as dx

from . import models

check = dx.interop.onnx.check


@pytest.fixture
def proto():
    """A valid model: fc1 and fc2 are sharded, act has a stage."""
    model = models.tensor_parallel_mlp(4, hidden=8)
    (tp,) = model.device_configurations
    models.node_of(model, "act").set_pipeline_stage(tp, 0)
    return ir.to_proto(model)


def _of(proto, name):
    return next(each for each in proto.graph.node if each.name == name).device_configurations


def _spec(proto, name):
    return _of(proto, name)[0].sharding_spec[0]


def test_right_model(proto):
    assert check(proto) == []


def _six_shards(proto):
    _spec(proto, "fc1").sharded_dim[0].simple_sharding[0].num_shards = 6


def _two_shards(proto):
    _spec(proto, "fc1").sharded_dim[0].simple_sharding[0].num_shards = 2


def _device_77(proto):
    _spec(proto, "fc1").device[2] = 77


def _key_without_group(proto):
    _spec(proto, "fc1").device[2] = -3


def _group(proto, key, value):
    _spec(proto, "fc1").device[2] = key
    _spec(proto, "fc1").index_to_device_group_map.add(key=key, value=value)


def _group_twice(proto):
    _group(proto, -1, [2])
    _spec(proto, "fc1").index_to_device_group_map.add(key=-1, value=[3])


def _axis_9(proto):
    _spec(proto, "fc1").sharded_dim[0].axis = 9


def _axis_twice(proto):
    dim = _spec(proto, "fc1").sharded_dim.add(axis=-1)
    dim.simple_sharding.add(num_shards=1)


def _other_size(proto):
    _spec(proto, "fc1").sharded_dim[0].simple_sharding[0].dim_value = 9


def _clear(proto, field):
    _spec(proto, "fc1").sharded_dim[0].ClearField(field)


def _unknown_tensor(proto):
    _spec(proto, "fc1").tensor_name = "ups"


def _twice(proto):
    _of(proto, "fc1")[0].sharding_spec.add().CopyFrom(_spec(proto, "fc1"))


def _unknown_configuration(proto):
    _of(proto, "fc1")[0].configuration_id = "tpp"


def _no_configuration(proto):
    _of(proto, "fc1")[0].ClearField("configuration_id")


def _node_twice(proto):
    _of(proto, "fc1").add(configuration_id="tp")


def _stage(proto):
    _of(proto, "act")[0].pipeline_stage = -2


def _version(proto):
    proto.ir_version = 10


def _names(proto):
    proto.configuration[0].device.extend(["CPU", "GPU"])


def _same_name(proto):
    proto.configuration.add(name="tp", num_devices=4)


def _no_name(proto):
    proto.configuration.add(num_devices=4)


def _no_devices(proto):
    proto.configuration.add(name="none")


def _replicated_twice(proto):
    spec = _spec(proto, "fc1")
    del spec.sharded_dim[:]
    spec.device[:] = [0, 1, 1]


def _shards_of_one_device(proto):
    _spec(proto, "fc1").device[:] = [0, 1, 1, 2]


def _groups(proto, *groups):
    """Four shards on groups of devices."""
    spec = _spec(proto, "fc1")
    proto.configuration[0].num_devices = 8
    spec.device[:] = [-1 - number for number in range(len(groups))]
    for number, group in enumerate(groups):
        spec.index_to_device_group_map.add(key=-1 - number, value=group)


def _device_and_group(proto):
    _groups(proto, [0], [1], [2], [3])
    _spec(proto, "fc1").device[3] = 2


def _replicated_in_groups(proto):
    del _spec(proto, "fc1").sharded_dim[:]
    _groups(proto, [0, 1], [1, 2])


def _open_devices(proto):
    _six_shards(proto)
    del _spec(proto, "fc1").device[:]


UP = "configuration 'tp', node 'fc1', tensor 'up': "
MISTAKES = [
    (_six_shards, UP + "it has 6 shards on 4 devices; to have a shard on several devices, name a"),
    (_two_shards, UP + "it has 2 shards on 4 devices; to have"),
    (_open_devices, UP + "it has 6 shards on 4 devices"),
    (_device_77, UP + "device 77 is none of the devices 0 to 3"),
    (_key_without_group, UP + "device -3 is none of the devices 0 to 3, nor a key of index_to_dev"),
    (lambda m: _group(m, -1, []), UP + "group -1 has no devices"),
    (lambda m: _group(m, -1, [2, 2]), UP + "group -1 has a device twice"),
    (lambda m: _group(m, -1, [2, 9]), UP + "device 9 of group -1 is none of the devices 0 to 3"),
    (_group_twice, UP + "index_to_device_group_map has a key twice"),
    (_axis_9, UP + "axis 9 is sharded, but it has 2 axes"),
    (_axis_twice, UP + "axis -1 is sharded twice"),
    (_other_size, UP + "axis 1 has size 8, but its sharding says 9"),
    (lambda m: _clear(m, "axis"), UP + "a sharded_dim has no axis"),
    (lambda m: _clear(m, "simple_sharding"), UP + "axis 1 is sharded without a simple_sharding"),
    (_replicated_twice, UP + "it is not sharded, but a device is named twice"),
    (_shards_of_one_device, UP + "a device is named twice, for two of its shards"),
    (
        lambda m: _groups(m, [0, 1], [2, 3], [4, 5], [6, 1]),
        UP + "device 1 is named twice, in group -1 and in group -4",
    ),
    (_device_and_group, UP + "device 2 is named twice, in group -3 and in device"),
    (_replicated_in_groups, UP + "device 1 is named twice, in group -1 and in group -2"),
    (
        _unknown_tensor,
        "configuration 'tp', node 'fc1', tensor 'ups': it is no input or output of it; did you "
        "mean 'up'?",
    ),
    (_twice, UP + "its sharding is stated twice"),
    (
        _unknown_configuration,
        "configuration 'tpp', node 'fc1': the model has no such configuration; did you mean 'tp'?",
    ),
    (_no_configuration, "node 'fc1': it states shardings without a configuration_id"),
    (_node_twice, "configuration 'tp', node 'fc1': the node states it twice"),
    (_stage, "configuration 'tp', node 'act': its pipeline_stage is -2, not at least 0"),
    (_version, "the model: it has device configurations and IR version 10; they exist from"),
    (_names, "configuration 'tp': it has 4 devices, but 2 names of devices"),
    (_same_name, "configuration 'tp': the model has two of this name"),
    (_no_name, "the model: device configuration 1 has no name"),
    (_no_devices, "configuration 'none': it has 0 devices, not at least 1"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[each for _, each in MISTAKES])
def test_mistake(proto, change, message):
    change(proto)
    onnx.checker.check_model(proto)  # sees nothing
    found = [str(each) for each in check(proto)]
    assert any(each.startswith(message) for each in found), found
    with pytest.raises(ValueError, match="device configurations are not right") as raised:
        dx.interop.onnx.read(proto)
    assert all(each in str(raised.value) for each in found)


def test_all_at_once(proto):
    _six_shards(proto)
    _stage(proto)
    _spec(proto, "fc2").device[0] = 4
    found = check(proto)
    assert [(each.node, each.tensor) for each in found] == [
        ("node 'fc1'", "up"),
        ("node 'act'", None),
        ("node 'fc2'", "down"),
    ]
    with pytest.raises(ValueError, match="not right in 3 places:\n  configuration 'tp'"):
        dx.interop.onnx.from_onnx(proto)


def test_objects_that_are_missing_or_others():
    model = models.tensor_parallel_mlp(4, hidden=8)
    (tp,) = model.device_configurations
    (placement,) = models.node_of(model, "fc1").device_configurations
    (spec,) = placement.sharding_specs
    twin = ir.ModelConfiguration(tp.name, 9)
    replaced = dataclasses.replace
    namesake, other = ir.Value(name="up"), ir.Value(name=None)
    faults = {
        "its configuration is None": replaced(placement, configuration=None),
        "its configuration has no name": replaced(
            placement, configuration=ir.ModelConfiguration("", 4)
        ),
        "its configuration is another object": replaced(placement, configuration=twin),
        "the value of a sharding is None": replaced(
            placement, sharding_specs=(spec, replaced(spec, value=None))
        ),
        "the value of a sharding has no name": replaced(
            placement, sharding_specs=(replaced(spec, value=other),)
        ),
        "the value of its sharding is another object": replaced(
            placement, sharding_specs=(replaced(spec, value=namesake),)
        ),
    }
    for message, given in faults.items():
        models.node_of(model, "fc1").device_configurations = (given,)
        (found,) = check(model)
        assert (found.node, found.message.startswith(message)) == ("node 'fc1'", True), found
        assert models.node_of(model, "fc1").device_configurations == (given,)
        for read in (dx.interop.onnx.read, dx.interop.onnx.from_onnx):
            with pytest.raises(ValueError, match=f"not right: .*node 'fc1'.*{message}"):
                read(model)

    # All at once, also what the proto says, and of nodes of functions.
    models.node_of(model, "fc1").device_configurations = (
        faults["its configuration is None"],
        faults["the value of a sharding is None"],
    )
    models.node_of(model, "act").set_pipeline_stage(tp, 0)
    (act,) = models.node_of(model, "act").device_configurations
    models.node_of(model, "act").device_configurations = (replaced(act, pipeline_stage=-2),)
    body = ir.Node("", "Relu", [ir.Value(name="p")], name="r")
    body.device_configurations = (ir.NodeDeviceConfiguration(None),)
    function = ir.Function(
        "my", "F", graph=ir.Graph(list(body.inputs), body.outputs, nodes=[body]), attributes=[]
    )
    model.functions[function.identifier()] = function
    assert [each.node for each in check(model)] == [
        "node 'fc1'",
        "node 'fc1'",
        "node 'r' of function 'F'",
        "node 'act'",
    ]
    with pytest.raises(ValueError, match="not right in 4 places"):
        dx.interop.onnx.from_onnx(model)
    model.ir_version = 10
    assert check(model)[0].message.startswith("it has device configurations and IR version 10")
    assert model.ir_version == 10


def test_nodes_of_branches_and_functions():
    inner = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["z"])],
        "inner",
        [],
        [onnx.helper.make_tensor_value_info("z", 1, None)],
    )
    inner.node[0].device_configurations.add(configuration_id="a")
    nodes = [onnx.helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)]
    model = models.model(nodes, {"x": [4], "c": []}, ["y"], {})
    proto = ir.to_proto(model)
    body = onnx.helper.make_node("Relu", ["p"], ["q"], name="r")
    body.device_configurations.add(configuration_id="b")
    opsets = [onnx.helper.make_opsetid("", 18)]
    proto.functions.append(onnx.helper.make_function("my", "F", ["p"], ["q"], [body], opsets))
    inside = "node 0 (Identity) in '{}_branch' of node 0 (If)"
    assert [each.node for each in check(proto)] == [
        inside.format("else"),
        inside.format("then"),
        "node 'r' of function 'F'",
    ]


def test_what_is_no_model(tmp_path):
    with pytest.raises(TypeError, match="the model is of type int"):
        check(3)
    with pytest.raises(ValueError, match="the model is no ONNX model"):
        check(b"\xff\xff\xff")
    (tmp_path / "m.onnx").write_text("no model")
    with pytest.raises(ValueError, match="onnx is no ONNX model"):
        dx.interop.onnx.read(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        dx.interop.onnx.from_onnx(tmp_path / "other.onnx")
