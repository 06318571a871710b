"""Reads the device configurations of an ONNX model into immutable data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distir_ext.interop.onnx.check import violations
from distir_ext.interop.onnx.configuration import (
    AxisPart,
    Configuration,
    NodePlacement,
    ShardedAxis,
    TensorSharding,
    Violation,
)
from distir_ext.interop.onnx.ir_model import faults_of
from distir_ext.interop.onnx.proto import Node, model_proto, nodes_of, size_of
from distir_ext.text.errors.spelling import counted
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import TextLines

_LINES = 100


@short_tracebacks
def read(model: Any) -> tuple[Configuration, ...]:
    """Reads the device configurations of a model, with their placements of nodes.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, the path of a file, or its bytes.

    Returns:
        One for each entry of the model's ``configuration``, in its order.

    Raises:
        TypeError: It is no model.
        ValueError: The file is none, or its configurations are not right: the error has all that
            :func:`check` finds.
        OSError: The file cannot be read.
    """
    return read_proto(model_proto(model), faults_of(model))


def read_proto(model: Any, faults: Sequence[Violation] = ()) -> tuple[Configuration, ...]:
    """Reads the device configurations of an ``onnx.ModelProto``.

    Args:
        model: The proto.
        faults: Errors in the ``onnx_ir.Model`` that it was written from.
    """
    try:
        found = [*faults, *violations(model)]
        if found:
            raise ValueError(listed("the model's device configurations are not right", found))
        return _read(model)
    except UnicodeDecodeError as error:
        raise ValueError(f"the model has a name that is no UTF-8 text: {error}") from error


def listed(what: str, found: Sequence[Violation | str]) -> str:
    """Formats a message with findings, one per line; long lists are cut."""
    if len(found) == 1:
        return f"{what}: {found[0]}"
    lines = [f"  {each}" for each in found[:_LINES]]
    lines += [f"  and {len(found) - _LINES} more"] if len(found) > _LINES else []
    return TextLines([f"{what} in {counted(len(found), 'place')}:", *lines])


def _read(model: Any) -> tuple[Configuration, ...]:
    placements: dict[str, list[NodePlacement]] = {each.name: [] for each in model.configuration}
    for node in nodes_of(model):
        for each in node.proto.device_configurations:
            placements[each.configuration_id].append(_placement(node, each))
    return tuple(
        Configuration(each.name, each.num_devices, tuple(each.device), tuple(placements[each.name]))
        for each in model.configuration
    )


def _placement(node: Node, proto: Any) -> NodePlacement:
    stage = proto.pipeline_stage if proto.HasField("pipeline_stage") else None
    tensors = tuple(_sharding(spec) for spec in proto.sharding_spec)
    return NodePlacement(node.label, node.index, tensors, stage)


def _sharding(spec: Any) -> TensorSharding:
    axes = tuple(
        ShardedAxis(
            dim.axis,
            tuple(AxisPart(part.num_shards, size_of(part)) for part in dim.simple_sharding),
        )
        for dim in spec.sharded_dim
    )
    groups = {entry.key: tuple(entry.value) for entry in spec.index_to_device_group_map}
    devices = tuple(groups.get(device, (device,)) for device in spec.device)
    is_sharded = any(part.shards > 1 for axis in axes for part in axis.parts)
    if not is_sharded and len(devices) > 1:  # replicated on them
        devices = (tuple(device for group in devices for device in group),)
    return TensorSharding(spec.tensor_name, axes, devices)
