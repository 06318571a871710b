"""Derives the devices and the sharding of each node's tensors from an ONNX configuration.

What ONNX leaves open is decided here:

- A tensor without devices lies on those of its node, its shards in order, each on equally many.
- A stage of which no tensor has devices gets an equal part, in order, of those that no other stage
  has. Stage 0 and 1 of 4 devices are 0, 1 and 2, 3.
- An input without a sharding comes as it was made; one that was made on other devices than those
  of the node is moved there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distir_ext.interop._arrangements import Arrangement
from distir_ext.interop.onnx.configuration import (
    Configuration,
    NodePlacement,
    ShardedAxis,
    TensorSharding,
)
from distir_ext.mesh.mesh import MOST_DEVICES
from distir_ext.text.errors.spelling import counted


@dataclass(frozen=True)
class Target:
    """A sharding of a tensor, or its devices alone."""

    devices: tuple[int, ...]
    """In ascending order."""

    axes: tuple[int, ...] = ()
    """The axes that are sharded, as the model says them."""

    arrangement: Arrangement | None = None
    """Its shards; None if it has none."""


@dataclass
class NodeTargets:
    """The tensors of one node."""

    inputs: dict[str, Target] = field(default_factory=dict)
    outputs: dict[str, Target] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """The tensors of all nodes of the graph."""

    nodes: dict[int, NodeTargets]
    device_sets: list[tuple[int, ...]]
    """All sets of devices that tensors lie on, those of earlier stages first."""

    problems: list[str]
    """Shardings that cannot be stated on meshes."""


def plan_targets(
    configuration: Configuration, nodes: Sequence[Any], sources: Iterable[str]
) -> Plan:
    """Reads a configuration.

    Args:
        configuration: It has no violations.
        nodes: The nodes of the graph, as protos.
        sources: The names of its inputs; initializers are not among them.
    """
    return _Planner(configuration, nodes, sources).plan()


class _Planner:
    def __init__(
        self, configuration: Configuration, nodes: Sequence[Any], sources: Iterable[str]
    ) -> None:
        self._nodes = nodes
        self._sources = set(sources)
        self._placements: dict[int, NodePlacement] = {}
        self._problems: list[str] = []
        number = configuration.num_devices
        self._all = tuple(range(number)) if number <= MOST_DEVICES else None
        for each in configuration.nodes:
            if each.index is not None:
                self._placements[each.index] = each
            elif each.tensors or each.stage is not None:
                self._problems.append(
                    f"{each.node}: only nodes of the graph itself are sharded, not those of its "
                    "branches and functions"
                )
        self._stages = self._devices_of_stages()

    def plan(self) -> Plan:
        nodes: dict[int, NodeTargets] = {}
        homes: dict[str, tuple[int, ...]] = {}
        made: dict[str, Target] = {}
        for index, proto in enumerate(self._nodes):
            placement = self._placements.get(index)
            targets = self._stated(index, proto, placement) if placement else NodeTargets()
            devices = self._devices_of_node(placement, targets)
            if devices is not None:
                self._move(proto, devices, targets, homes, made)
            if targets.inputs or targets.outputs:
                nodes[index] = targets
            if devices is None:
                devices = next((homes[name] for name in proto.input if name in homes), None)
            for name in filter(None, proto.output):
                target = targets.outputs.get(name)
                if target is not None:
                    made[name] = target
                home = target.devices if target is not None else devices
                if home is not None:
                    homes[name] = home
        return Plan(nodes, self._ordered_sets(nodes), self._problems)

    def _stated(self, index: int, proto: Any, placement: NodePlacement) -> NodeTargets:
        targets = NodeTargets()
        default = self._stages.get(placement.stage, self._all)
        inputs = set(proto.input)
        for sharding in placement.tensors:
            try:
                target = _target(sharding, default)
            except ValueError as error:
                self._problems.append(f"{placement.node}, tensor {sharding.tensor!r}: {error}")
                continue
            side = targets.inputs if sharding.tensor in inputs else targets.outputs
            side[sharding.tensor] = target
        return targets

    def _devices_of_node(
        self, placement: NodePlacement | None, targets: NodeTargets
    ) -> tuple[int, ...] | None:
        if placement is None:
            return None
        sets = dict.fromkeys(target.devices for target in targets.inputs.values())
        if len(sets) > 1:
            names = ", ".join(map(repr, targets.inputs))
            self._problems.append(f"{placement.node}: its inputs {names} lie on different devices")
        sets.update(dict.fromkeys(filter(None, [self._stages.get(placement.stage)])))
        sets.update(dict.fromkeys(target.devices for target in targets.outputs.values()))
        return next(iter(sets), None)

    def _move(
        self,
        proto: Any,
        devices: tuple[int, ...],
        targets: NodeTargets,
        homes: Mapping[str, tuple[int, ...]],
        made: Mapping[str, Target],
    ) -> None:
        """Brings inputs of which nothing is stated to the devices of their node."""
        open_inputs = [name for name in proto.input if name and name not in targets.inputs]
        for name in open_inputs:
            if name in homes and homes[name] != devices:
                targets.inputs[name] = _moved(made.get(name), devices)
        # An output that is stated brings the others along, too.
        stated = (*targets.inputs.values(), *targets.outputs.values())
        is_there = any(target.devices == devices for target in stated)
        is_there = is_there or any(homes.get(name) == devices for name in open_inputs)
        if not is_there and open_inputs:
            # Weights follow; one input says where, if possible one that is none.
            chosen = next((name for name in open_inputs if name in self._sources), open_inputs[0])
            targets.inputs[chosen] = Target(devices)

    def _devices_of_stages(self) -> dict[int | None, tuple[int, ...]]:
        """Returns the devices of each stage; empty where all nodes belong to one."""
        named: dict[int, set[int]] = {}
        for placement in self._placements.values():
            if placement.stage is not None:
                devices = named.setdefault(placement.stage, set())
                for sharding in placement.tensors:
                    devices.update(device for group in sharding.devices for device in group)
        if len(named) < 2:
            return {}
        open_stages = sorted(stage for stage, devices in named.items() if not devices)
        found: dict[int | None, tuple[int, ...]] = {
            stage: tuple(sorted(devices)) for stage, devices in named.items() if devices
        }
        if not open_stages:
            return found
        taken = set().union(*named.values())
        free = [device for device in self._all or () if device not in taken]
        each, left = divmod(len(free), len(open_stages))
        if each == 0 or left:
            self._problems.append(
                f"stages {', '.join(map(str, open_stages))}: no tensor of theirs has devices, and "
                f"{counted(len(free), 'device')} cannot be divided equally among "
                f"{counted(len(open_stages), 'stage')}"
            )
            return found
        for place, stage in enumerate(open_stages):
            found[stage] = tuple(free[place * each : (place + 1) * each])
        return found

    def _ordered_sets(self, nodes: Mapping[int, NodeTargets]) -> list[tuple[int, ...]]:
        stages = sorted(stage for stage in self._stages if stage is not None)
        sets = dict.fromkeys(self._stages[stage] for stage in stages)
        used = dict.fromkeys(
            target.devices
            for targets in nodes.values()
            for side in (targets.inputs, targets.outputs)
            for target in side.values()
        )
        # A call on values of several meshes runs on the last of them.
        return [each for each in sets if each in used] + [each for each in used if each not in sets]


def _moved(made: Target | None, devices: tuple[int, ...]) -> Target:
    """A tensor on other devices: sharded as it was if there are as many of them."""
    if made is None or made.arrangement is None or len(made.devices) != len(devices):
        return Target(devices)
    new = dict(zip(made.devices, devices, strict=True))
    groups = tuple(tuple(new[device] for device in group) for group in made.arrangement.groups)
    return Target(devices, made.axes, Arrangement(made.arrangement.shards, groups))


def _target(sharding: TensorSharding, default: tuple[int, ...] | None) -> Target:
    """Converts a stated sharding to a target.

    Args:
        sharding: It has no violations.
        default: The devices where it names none; None if they are too many.

    Raises:
        ValueError: No mesh can say it.
    """
    axes = [(each.axis, _shards(each)) for each in sharding.axes]
    axes = [(axis, shards) for axis, shards in axes if shards > 1]
    number = 1
    for _, shards in axes:
        number *= shards
    groups = sharding.devices
    if not groups:
        if default is None:
            raise ValueError(f"it names no devices, and there are more than {MOST_DEVICES}")
        if len(default) % number:
            raise ValueError(
                f"its {number} shards cannot lie on {counted(len(default), 'device')} equally; "
                "name the devices"
            )
        size = len(default) // number
        groups = tuple(default[i * size : (i + 1) * size] for i in range(number))
    arrangement = Arrangement(tuple(shards for _, shards in axes), groups)
    arrangement.check()
    if not axes:
        return Target(arrangement.devices)
    return Target(arrangement.devices, tuple(axis for axis, _ in axes), arrangement)


def _shards(axis: ShardedAxis) -> int:
    """Returns the number of contiguous shards that an axis is cut into.

    Of an axis that a reshape has made of (6, 8), 6 shards of the major part, or these and 2 of
    the minor one, are contiguous; 2 shards of the minor part alone are not.

    Raises:
        ValueError: The shards are not contiguous.
    """
    shards = 1
    is_cut = True
    for part in axis.parts:
        if part.shards > 1 and not is_cut:
            raise ValueError(
                f"a shard of axis {axis.axis} is not contiguous, as a part of it is sharded and a "
                "part that is major to that is not cut into single elements"
            )
        shards *= part.shards
        is_cut = is_cut and part.size == part.shards
    return shards
