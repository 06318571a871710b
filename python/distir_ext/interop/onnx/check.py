"""Checks the device configurations of an ONNX model, and lists all violations.

``onnx.checker`` looks at none of it: it accepts six shards on four devices.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from distir_ext.interop.onnx.configuration import Violation
from distir_ext.interop.onnx.ir_model import IR_VERSION, faults_of
from distir_ext.interop.onnx.proto import Node, Shape, model_proto, nodes_of, size_of
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

# Of how many names the one that is meant is looked for.
_MOST_KNOWN = 200


@short_tracebacks
def check(model: Any) -> list[Violation]:
    """Finds the errors in the device configurations of a model.

    Looked at are all nodes, also those of branches and functions. An axis is checked where the
    model says the rank of the tensor, which ``onnx.shape_inference`` adds.

    Args:
        model: An ``onnx.ModelProto``, an ``onnx_ir.Model``, the path of a file, or its bytes.

    Returns:
        The violations, in the order of the model; empty if there are none. Of an
        ``onnx_ir.Model`` those come first that its proto cannot have: of a configuration or a value
        that is None, has no name, or is another object than the model's.

    Raises:
        TypeError: It is no model.
        ValueError: The file is none, or has a name that is no text.
        OSError: The file cannot be read.
    """
    try:
        return [*faults_of(model), *violations(model_proto(model))]
    except UnicodeDecodeError as error:
        raise ValueError(f"the model has a name that is no UTF-8 text: {error}") from error


def violations(model: Any) -> Iterator[Violation]:
    """Yields the violations of an ``onnx.ModelProto``."""
    yield from _of_model(model)
    devices = {each.name: each.num_devices for each in model.configuration}
    hints = _Hints()
    for node in nodes_of(model):
        stated: set[str] = set()
        for placement in node.proto.device_configurations:
            name = placement.configuration_id
            if name in stated:
                yield Violation("the node states it twice", name, node.label)
            stated.add(name)
            yield from _of_placement(node, placement, devices, hints)


class _Hints:
    """Names that are meant where others are written, for the first mistakes: they take long."""

    def __init__(self, most: int = 20) -> None:
        self._left = most

    def __call__(self, name: str, known: Collection[str]) -> str:
        if self._left == 0 or len(known) > _MOST_KNOWN:
            return ""
        self._left -= 1
        return did_you_mean(name, known)


def _of_model(model: Any) -> Iterator[Violation]:
    has_any = bool(model.configuration)
    if has_any and model.ir_version < IR_VERSION:
        yield Violation(
            f"it has device configurations and IR version {model.ir_version}; they exist from "
            f"version {IR_VERSION} on"
        )
    names: set[str] = set()
    for index, each in enumerate(model.configuration):
        if not each.name:
            yield Violation(f"device configuration {index} has no name")
        elif each.name in names:
            yield Violation("the model has two of this name", each.name)
        names.add(each.name)
        if each.num_devices < 1:
            yield Violation(f"it has {each.num_devices} devices, not at least 1", each.name)
        elif each.device and len(each.device) != each.num_devices:
            names_given = counted(len(each.device), "name")
            yield Violation(
                f"it has {counted(each.num_devices, 'device')}, but {names_given} of devices",
                each.name,
            )


def _of_placement(
    node: Node, placement: Any, devices: Mapping[str, int], hints: _Hints
) -> Iterator[Violation]:
    name = placement.configuration_id
    if not name:
        yield Violation("it states shardings without a configuration_id", None, node.label)
    elif name not in devices:
        yield Violation(
            f"the model has no such configuration{hints(name, devices)}", name, node.label
        )
    if placement.pipeline_stage < 0:
        stage = placement.pipeline_stage
        yield Violation(f"its pipeline_stage is {stage}, not at least 0", name, node.label)
    tensors = dict.fromkeys(node.tensors)
    stated: set[str] = set()
    for spec in placement.sharding_spec:
        tensor = spec.tensor_name
        messages = list(_of_spec(spec, devices.get(name), node.shapes.get(tensor)))
        if not tensor:
            messages.insert(0, "a sharding has no tensor_name")
        elif tensor not in tensors:
            messages.insert(0, f"it is no input or output of it{hints(tensor, tensors)}")
        elif tensor in stated:
            messages.insert(0, "its sharding is stated twice")
        stated.add(tensor)
        for message in messages:
            yield Violation(message, name, node.label, tensor or None)


def _of_spec(spec: Any, num_devices: int | None, shape: Shape | None) -> Iterator[str]:
    yield from _of_devices(spec, num_devices)
    yield from _of_overlaps(spec)
    axes: set[int] = set()
    shards: int | None = 1
    for dim in spec.sharded_dim:
        parts = [part.num_shards for part in dim.simple_sharding]
        if not dim.HasField("axis"):
            yield "a sharded_dim has no axis"
        elif shape is not None:
            rank = len(shape)
            if not -rank <= dim.axis < rank:
                yield f"axis {dim.axis} is sharded, but it has {counted(rank, 'axis', 'axes')}"
            else:
                yield from _of_size(dim, shape[dim.axis])
        axis = dim.axis + len(shape) if shape is not None and dim.axis < 0 else dim.axis
        if axis in axes:
            yield f"axis {dim.axis} is sharded twice"
        axes.add(axis)
        if not parts:
            yield f"axis {dim.axis} is sharded without a simple_sharding, which has num_shards"
        for part in parts:
            if part < 1:
                yield f"axis {dim.axis} has {part} shards, not at least 1"
        is_right = bool(parts) and min(parts) >= 1
        shards = shards * math.prod(parts) if shards is not None and is_right else None
    if shards is not None:
        yield from _of_shards(spec, shards, num_devices)


def _of_shards(spec: Any, shards: int, num_devices: int | None) -> Iterator[str]:
    listed = len(spec.device)
    if listed:
        if shards == 1 and len(set(spec.device)) < listed:
            yield "it is not sharded, but a device is named twice"
        elif len(set(spec.device)) < listed:
            yield "a device is named twice, for two of its shards"
        # Without shards, the tensor is replicated.
        if shards != listed and (shards != 1 or _groups(spec).keys() & set(spec.device)):
            yield (
                f"it has {counted(shards, 'shard')} on {counted(listed, 'device')}; to have a shard"
                " on several devices, name a group in index_to_device_group_map"
            )
    elif num_devices is not None and shards > num_devices >= 1:
        yield f"it has {counted(shards, 'shard')} on {counted(num_devices, 'device')}"


def _of_overlaps(spec: Any) -> Iterator[str]:
    """Devices that would have several shards; those that are named twice are said already."""
    groups = _groups(spec)
    found: dict[int, int] = {}
    for key in dict.fromkeys(spec.device):
        for device in dict.fromkeys(groups.get(key, [key])):
            other = found.setdefault(device, key)
            if other != key:
                places = (f"group {each}" if each in groups else "device" for each in (other, key))
                yield f"device {device} is named twice, in {' and in '.join(places)}"


def _of_size(dim: Any, size: int | str | None) -> Iterator[str]:
    sizes = [size_of(part) for part in dim.simple_sharding]
    numbers = [each for each in sizes if isinstance(each, int)]
    if isinstance(size, int) and numbers and len(numbers) == len(sizes):
        stated = math.prod(numbers)
        if stated != size:
            yield f"axis {dim.axis} has size {size}, but its sharding says {stated}"


def _of_devices(spec: Any, num_devices: int | None) -> Iterator[str]:
    groups = _groups(spec)
    if len(groups) < len(spec.index_to_device_group_map):
        yield "index_to_device_group_map has a key twice"
    known = "" if num_devices is None or num_devices < 1 else f"0 to {num_devices - 1}"
    for key, group in groups.items():
        if not group:
            yield f"group {key} has no devices"
        if len(set(group)) < len(group):
            yield f"group {key} has a device twice"
        for device in group:
            if device < 0 or (num_devices is not None and device >= num_devices):
                yield f"device {device} of group {key} is none of the devices {known}".rstrip()
    for device in spec.device:
        if device not in groups and (
            device < 0 or (num_devices is not None and device >= num_devices)
        ):
            hint = ", nor a key of index_to_device_group_map" if device < 0 or groups else ""
            yield f"device {device} is none of the devices {known}".rstrip() + hint


def _groups(spec: Any) -> dict[int, list[int]]:
    return {entry.key: list(entry.value) for entry in spec.index_to_device_group_map}
