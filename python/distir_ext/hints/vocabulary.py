"""Defines the words of layer hints: layer types, modes of weights, distribution of devices.

They are those of AutoDeploy's sharding IR in TensorRT-LLM. All are plain values, which compare,
print and are written as YAML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

LAYER_TYPES = ("mha", "mla", "mlp", "moe", "ssm", "delta", "unknown")
"""Attention, attention with latents, feed-forward, experts, state space, delta rule, anything."""

TP_MODES = ("colwise", "rowwise", "none")
"""A weight's columns are sharded, its rows are, or it is replicated."""


@dataclass(frozen=True)
class WeightHint:
    """Role of one weight in tensor parallelism.

    Raises:
        ValueError: There is no such mode, or sizes are not positive, or are of a weight that is not
            sharded by columns.
    """

    tp_mode: str = "none"
    """One of :data:`TP_MODES`. ``"colwise"`` shards the columns of the product, dimension 0 of a
    weight of torch, and ``"rowwise"`` what the product adds up, so that results are reduced."""

    output_sizes: tuple[int, ...] = ()
    """Columns of each block of a fused weight (Q | K | V), in elements. Every block is sharded by
    itself."""

    tp_min_local_shape: int | tuple[int, ...] = 1
    """Columns (rows) that stay together, as those of a head do, in elements. Devices share a shard
    where there are fewer heads. One number, or one per block."""

    size: int = field(default=0, compare=False)
    """Expected number of columns (rows) in all, in elements. Not checked if it is 0."""

    why: str = field(default="", compare=False, repr=False)
    """Why the mode is none, where the weight was detected; reports say it."""

    @short_tracebacks
    def __post_init__(self) -> None:
        one_of(self.tp_mode, TP_MODES, "tp_mode")
        if self.output_sizes and self.tp_mode == "rowwise":
            raise ValueError("output_sizes are of weights that are sharded colwise, not rowwise")
        if any(size < 1 for size in self.output_sizes):
            raise ValueError(f"output_sizes {list(self.output_sizes)} are not all positive")
        if self.size < 0:
            raise ValueError(f"size {self.size} is negative")
        if any(unit < 1 for unit in self._units):
            raise ValueError(f"tp_min_local_shape {self.tp_min_local_shape} is not positive")
        if not isinstance(self.tp_min_local_shape, int) and len(self._units) != max(
            len(self.output_sizes), 1
        ):
            raise ValueError(
                f"tp_min_local_shape has {len(self._units)} numbers for "
                f"{len(self.output_sizes)} output_sizes"
            )

    @property
    def _units(self) -> tuple[int, ...]:
        stated = self.tp_min_local_shape
        return (stated,) if isinstance(stated, int) else tuple(stated)

    def units(self) -> tuple[int, ...]:
        """Returns the number of columns that stay together, per block."""
        count = max(len(self.output_sizes), 1)
        return self._units * count if isinstance(self.tp_min_local_shape, int) else self._units


@dataclass(frozen=True)
class LayerHint:
    """Layer: its type and its weights.

    Raises:
        ValueError: There is no such layer type.
    """

    layer_type: str = "unknown"
    """One of :data:`LAYER_TYPES`."""

    weights: Mapping[str, WeightHint] = field(default_factory=dict)
    """By the part of the name behind the layer's, as ``q_proj`` of ``model.layers.0.self_attn``."""

    shardable: bool = True
    """True if it may be sharded at all."""

    why: str = field(default="", compare=False, repr=False)
    """Evidence for its type, if the layer was detected."""

    @short_tracebacks
    def __post_init__(self) -> None:
        one_of(self.layer_type, LAYER_TYPES, "layer_type")


@dataclass(frozen=True)
class DistConfig:
    """Division of devices among the kinds of parallelism.

    Example:
        >>> DistConfig(world_size=4, moe_ep_size=2).moe_tp_size
        2

    Raises:
        ValueError: Sizes are not positive or do not divide each other; there is no such layer type.
    """

    world_size: int
    """Devices in all."""

    tp_size: int = 0
    """Devices that share a layer; the others have other parts of the batch. All, if it is 0."""

    moe_ep_size: int = 1
    """Into how many groups experts are divided."""

    moe_tp_size: int = 0
    """Devices that share an expert, so that ``moe_tp_size * moe_ep_size == tp_size``; 0 for what is
    left."""

    enable_attention_dp: bool = False
    """True if all but experts is data parallel, with a part of the batch on every device."""

    shard_layers: tuple[str, ...] | None = None
    """The layer types that are sharded; None for all, unknown ones with hints too."""

    @short_tracebacks
    def __post_init__(self) -> None:
        for name in ("world_size", "moe_ep_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, not positive")
        for name in ("tp_size", "moe_tp_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, not positive")
        object.__setattr__(self, "tp_size", self.tp_size or self.world_size)
        self._divide("world_size", "tp_size")
        self._divide("tp_size", "moe_ep_size")
        left = self.tp_size // self.moe_ep_size
        object.__setattr__(self, "moe_tp_size", self.moe_tp_size or left)
        if self.moe_tp_size != left:
            raise ValueError(
                f"moe_tp_size {self.moe_tp_size} times moe_ep_size {self.moe_ep_size} is not "
                f"tp_size {self.tp_size}"
            )
        for each in self.shard_layers or ():
            one_of(each, LAYER_TYPES, "shard_layers")

    def _divide(self, whole: str, part: str) -> None:
        if getattr(self, whole) % getattr(self, part):
            raise ValueError(
                f"{part} {getattr(self, part)} does not divide {whole} {getattr(self, whole)}"
            )


@dataclass(frozen=True)
class Hints:
    """Hints of a model: its layers, and perhaps how devices are shared out.

    :func:`to_yaml` writes what :func:`load` reads.
    """

    layers: Mapping[str, LayerHint] = field(default_factory=dict)
    """By name, in which ``*`` stands for any part, as in ``model.layers.*.mlp``."""

    dist: DistConfig | None = None
    """None if it is not stated."""

    places: Mapping[tuple[str, ...], str] = field(default_factory=dict, compare=False, repr=False)
    """Places of statements in a file, for messages."""

    def place(self, *path: str) -> str:
        """Returns the place where something is stated, for messages.

        Args:
            path: Names from the outside in: ``"layers", "model.layers.*.mlp"``.

        Returns:
            File and line where a file states it; else the names, joined by dots.
        """
        return self.places.get(path, ".".join(path))

    def merged(self, other: Hints) -> Hints:
        """These hints, with those of another in place of layers that both have.

        Args:
            other: Hints that win; its ``dist`` does if it states one.
        """
        return Hints(
            {**self.layers, **other.layers},
            other.dist or self.dist,
            {**self.places, **other.places},
        )

    def with_weight(self, layer: str, weight: str, **changes: Any) -> Hints:
        """These hints with fields of one weight changed.

        Args:
            layer: A name in ``layers``.
            weight: A name in the weights of that layer.
            changes: Fields of :class:`WeightHint`, by name.

        Raises:
            KeyError: There is no such layer or weight.
            ValueError: As :class:`WeightHint`.
        """
        found = _named(self.layers, layer, "layer")
        hint = replace(_named(found.weights, weight, f"weight of {layer}"), **changes)
        changed = replace(found, weights={**found.weights, weight: hint})
        return replace(self, layers={**self.layers, layer: changed})


def _named(known: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in known:
        raise KeyError(f"there is no {what} {name!r}{did_you_mean(name, known)}")
    return known[name]


def one_of(value: str, known: Sequence[str], what: str) -> None:
    """Raises ValueError unless the word is one of the known ones.

    Raises:
        ValueError: Names those that there are, and the nearest.
    """
    if value not in known:
        raise ValueError(
            f"there is no {what} {str(value)[:60]!r}, only {', '.join(known)}"
            f"{did_you_mean(str(value), known)}"
        )
