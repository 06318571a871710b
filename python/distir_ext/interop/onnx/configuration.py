"""Device configurations of an ONNX model, as immutable data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AxisPart:
    """Blocks of a tensor axis that are divided into shards (``SimpleShardedDimProto``)."""

    shards: int
    """Number of shards; 1 if the part is not divided."""

    size: int | str | None = None
    """Elements of the part, or the name of a symbolic size; None if the model does not say."""


@dataclass(frozen=True)
class ShardedAxis:
    """Sharding of one axis of a tensor (``ShardedDimProto``)."""

    axis: int
    """As the model says it. Negative numbers count from the last axis."""

    parts: tuple[AxisPart, ...]
    """One; several, from major to minor, where a reshape has fused several axes into this one."""


@dataclass(frozen=True)
class TensorSharding:
    """Sharding of one tensor on devices (``ShardingSpecProto``)."""

    tensor: str
    """Its name."""

    axes: tuple[ShardedAxis, ...] = ()
    """The axes that are sharded. Shards are numbered in row-major order of these, as they stand."""

    devices: tuple[tuple[int, ...], ...] = ()
    """For each shard the devices that have it. Empty where the model names none. Then shards lie in
    order on all devices of the node."""


@dataclass(frozen=True)
class NodePlacement:
    """Placement of one node in a configuration (``NodeDeviceConfigurationProto``)."""

    node: str
    """As messages call it, ``node 'fc1'``, or ``node 3 (MatMul)`` if it has no name."""

    index: int | None
    """Index of the node in the graph; None for nodes of branches and of functions."""

    tensors: tuple[TensorSharding, ...] = ()
    """Shardings that its inputs have when it reads them, and its outputs when it has made them."""

    stage: int | None = None
    """The stage of a pipeline that it belongs to."""


@dataclass(frozen=True)
class Configuration:
    """A set of devices, and how the model is distributed on it (``DeviceConfigurationProto``)."""

    name: str
    num_devices: int
    device_names: tuple[str, ...] = ()
    """Names of the devices; empty if they have numbers only."""

    nodes: tuple[NodePlacement, ...] = ()
    """In the order of the model; nodes of which nothing is said are left out."""


@dataclass(frozen=True)
class Violation:
    """Something that a model's device configurations must not say."""

    message: str
    """The error, and the form that is expected."""

    configuration: str | None = None
    node: str | None = None
    """As :attr:`NodePlacement.node`; None where it is about the model."""

    tensor: str | None = None

    def __str__(self) -> str:
        where = [] if self.configuration is None else [f"configuration {self.configuration!r}"]
        where += [] if self.node is None else [self.node]
        where += [] if self.tensor is None else [f"tensor {self.tensor!r}"]
        return f"{', '.join(where) or 'the model'}: {self.message}"
