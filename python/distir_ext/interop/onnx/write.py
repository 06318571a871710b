"""Writes the shardings of a propagated module into the ONNX model that it was imported from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import relax_function
from distir_ext.interop.onnx.ir_model import IR_VERSION, faults_of, is_ir_model
from distir_ext.interop.onnx.load import CONFIGURATION_ATTR
from distir_ext.interop.onnx.proto import model_proto, nodes_of
from distir_ext.interop.onnx.read import read_proto
from distir_ext.interop.onnx.shardings import NodeShardings, devices_of, shardings_of_nodes
from distir_ext.interop.onnx.weight_names import names_of_proto
from distir_ext.native.steps import phase
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def write(
    mod: tvm.IRModule,
    model: Any,
    name: str,
    *,
    device_names: Sequence[str] = (),
    replace: bool = False,
) -> Any:
    """The model with the shardings of a propagated module as a device configuration.

    Each node of the graph says how its inputs are sharded when it reads them, and its outputs when
    it has made them. If the module was imported with a configuration that the model still has, its
    stages, its number of devices and their names are those of the new one; else there is a stage
    for each mesh, if there are several.

    Args:
        mod: Result of PropagateSharding on a module of :func:`from_onnx`.
        model: The model that it was imported from; it is not changed.
        name: The name of the configuration.
        device_names: Names of the devices; they number 0, 1, ...
        replace: Whether a configuration of this name may be there; it is left out then.

    Returns:
        A new model, an ``onnx_ir.Model`` if it was one, else an ``onnx.ModelProto``; of IR version
        11 at least.

    Raises:
        TypeError: It is no module or model.
        ValueError: The module is in another phase, or of another model; the name is empty or taken;
            the model's configurations are not right; or device names do not fit the devices.
        OSError: The file of the model cannot be read.
    """
    proto = model_proto(model, weights=True)
    names = [each.name for each in read_proto(proto, faults_of(model))]
    if not isinstance(name, str) or not name:
        raise ValueError(f"the configuration is called {name!r}; its name must be a text")
    if name in names and not replace:
        raise ValueError(
            f"the model has a configuration {name!r} already; replace=True replaces it"
        )
    renamed = names_of_proto(proto).renamed
    function = _propagated(mod, proto, renamed)
    source = _source(mod, proto)
    shardings = shardings_of_nodes(function, proto.graph, renamed)
    devices = _number_of_devices(shardings, source, device_names)
    stages = _stages(shardings, source, proto.graph)

    result = onnx.ModelProto()
    result.CopyFrom(proto)
    if name in names:
        _remove(result, name)
    result.ir_version = max(result.ir_version, IR_VERSION)
    entry = result.configuration.add(name=name, num_devices=devices)
    entry.device.extend(device_names or (source.device if source is not None else ()))
    for node, tensors, stage in zip(result.graph.node, shardings, stages, strict=True):
        if not tensors and stage is None:
            continue
        placement = node.device_configurations.add(configuration_id=name)
        if stage is not None:
            placement.pipeline_stage = stage
        for tensor, type_ in tensors.all():
            _write_sharding(placement.sharding_spec.add(tensor_name=tensor), type_)
    if not is_ir_model(model):
        return result
    import onnx_ir

    return onnx_ir.from_proto(result)


def _propagated(mod: tvm.IRModule, model: Any, renamed: Mapping[str, str]) -> relax.Function:
    """Function main of a module that is propagated and of this model."""
    function = relax_function(mod, "main")
    reached = phase(mod)
    if reached != "propagated":
        what = "has no shardings" if reached is None else f"is {reached}"
        raise ValueError(f"the module {what}; what is written is what PropagateSharding makes")
    parameters = [str(param.name) for param in function.params]
    for each in (*model.graph.input, *model.graph.initializer):
        if renamed.get(each.name, each.name) not in parameters:
            hint = did_you_mean(each.name, parameters)
            raise ValueError(
                f"function main has no parameter {each.name!r}, so it is not what "
                f"dx.interop.onnx.from_onnx makes of this model{hint}"
            )
    return function


def _source(mod: tvm.IRModule, model: Any) -> Any | None:
    """The configuration that a module was imported with."""
    if mod.attrs is None or CONFIGURATION_ATTR not in mod.attrs:
        return None
    name = str(mod.attrs[CONFIGURATION_ATTR])
    return next((each for each in model.configuration if each.name == name), None)


def _number_of_devices(
    shardings: Sequence[NodeShardings], source: Any | None, device_names: Sequence[str]
) -> int:
    used = {device for each in shardings for _, type_ in each.all() for device in devices_of(type_)}
    number = max(used, default=0) + 1
    if source is not None:
        number = max(number, int(source.num_devices))
    if device_names and len(device_names) < number:
        raise ValueError(
            f"there are {counted(number, 'device')}, but {counted(len(device_names), 'name')} of "
            "devices"
        )
    return len(device_names) or number


def _stages(shardings: Sequence[NodeShardings], source: Any | None, graph: Any) -> list[int | None]:
    """Per node its stage: as it was stated, else by the devices that it is on."""
    if source is not None:
        stated = [
            {each.configuration_id: each for each in node.device_configurations}.get(source.name)
            for node in graph.node
        ]
        return [
            each.pipeline_stage if each is not None and each.HasField("pipeline_stage") else None
            for each in stated
        ]
    places = [next((devices_of(type_) for _, type_ in each.all()), None) for each in shardings]
    order = list(dict.fromkeys(place for place in places if place is not None))
    if len(order) < 2:
        return [None] * len(places)
    return [None if place is None else order.index(place) for place in places]


def _remove(model: Any, name: str) -> None:
    """Takes a configuration out of a model."""
    for entries, key in (
        (model.configuration, "name"),
        *((node.proto.device_configurations, "configuration_id") for node in nodes_of(model)),
    ):
        kept = [each for each in entries if getattr(each, key) != name]
        if len(kept) < len(entries):
            del entries[:]
            entries.extend(kept)


def _write_sharding(spec: Any, type_: DTensorType) -> None:
    """Fills in a ``ShardingSpecProto``: axes ascend, and so do the devices of a group."""
    mesh = type_.device_mesh
    shape = [int(size) for size in mesh.shape]
    along: dict[int, list[int]] = {}
    for axis, each in enumerate(type_.placement.dim_specs):
        if shape[axis] > 1:
            along.setdefault(int(each.axis), []).append(axis)
    replicated = along.pop(-1, [])
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    order = [axis for dim in sorted(along) for axis in along[dim]]
    ids = np.reshape([int(device) for device in mesh.device_ids], shape)
    groups = ids.transpose([*order, *replicated, *ones])
    groups = groups.reshape(-1, math.prod(shape[axis] for axis in replicated))
    if groups.shape[1] == 1:
        spec.device.extend(groups.ravel().tolist())
    else:
        for key, group in enumerate(groups.tolist(), start=1):
            spec.device.append(-key)
            spec.index_to_device_group_map.add(key=-key, value=sorted(group))
    sizes = type_.tensor_ty.shape.values if type_.tensor_ty.shape is not None else None
    for dim in sorted(along):
        part = spec.sharded_dim.add(axis=dim).simple_sharding.add()
        part.num_shards = math.prod(shape[axis] for axis in along[dim])
        size = None if sizes is None else sizes[dim]
        if isinstance(size, tvm.tirx.IntImm):
            part.dim_value = int(size)
        elif isinstance(size, tvm.tirx.Var):
            part.dim_param = str(size.name)
