"""Chooses the mesh axes that shard each weight, from its layer hint and its shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tvm import relax

from distir_ext.hints.resolution import ResolvedLayer, ResolvedWeight
from distir_ext.hints.vocabulary import DistConfig
from distir_ext.structure.axes import LayerAxes, shards_of
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.program import Program, sizes_of
from distir_ext.structure.weights.blocks import Cut

# In these, all but experts is data parallel under attention-dp.
_EXPERTS_TYPE = "moe"


@dataclass(frozen=True)
class Placed:
    """Placement of a weight.

    Attributes:
        dims: As in plans, for the weight or each of its blocks.
        shards: Number of shards of each of them.
        cut: The cut into blocks; None if there is none.
        expert_dim: The dimension of experts; None if there is none.
        skipped: Reason why the weight is not sharded; empty if it is.
        is_by_columns: True if its columns are divided.
    """

    dims: tuple[tuple[object, ...], ...]
    shards: tuple[int, ...] = ()
    cut: Cut | None = None
    expert_dim: int | None = None
    skipped: str = ""
    is_by_columns: bool = False


@dataclass(frozen=True)
class _Part:
    """A dimension, or a block of it, that is to be divided.

    Attributes:
        size: In elements.
        unit: Number of them that stay together.
    """

    size: int
    unit: int

    @property
    def units(self) -> int:
        return self.size // self.unit


def place_weights(
    function: relax.Function, layers: Sequence[ResolvedLayer], dist: DistConfig
) -> tuple[dict[str, Placed], LayerAxes]:
    """Places all weights that hints name, and returns the axes of the mesh with them.

    Raises:
        ValueError: A hint contradicts the shape of its weight; names layer, weight and dimension.
    """
    geometry = _Geometry(function, dist)
    wanted: list[_Wanted] = []
    for layer in layers:
        found = [geometry.wanted(layer, weight) for weight in layer.weights]
        _in_units_of_rows(found)
        geometry.count(found)
        _skip_columns(found)
        wanted += found
    counts = {count for each in wanted for count in each.counts}
    axes = LayerAxes(dist.world_size // dist.tp_size, dist.moe_ep_size, dist.moe_tp_size, counts)
    return {each.weight.param: geometry.placed(each, axes) for each in wanted}, axes


@dataclass
class _Wanted:
    """Sharding that a hint asks for.

    Attributes:
        weight: The hint.
        rank: Dimensions of the weight.
        dim: The dimension that is divided; None if none is.
        parts: Of this dimension.
        expert_dim: The dimension of experts; None if there is none.
        over_group: True if it is divided among the devices of one group of experts.
        skipped: Reason why nothing is divided; empty if something is.
        counts: Number of shards that each part is to be divided into.
    """

    weight: ResolvedWeight
    rank: int
    dim: int | None = None
    parts: tuple[_Part, ...] = ()
    expert_dim: int | None = None
    over_group: bool = False
    skipped: str = ""
    counts: list[int] = field(default_factory=list)


class _Geometry:
    def __init__(self, function: relax.Function, dist: DistConfig) -> None:
        self._dist = dist
        program = Program(function)
        self._params = {str(each.name): each for each in program.weights}
        self._products: dict[str, Product] = {}
        for product in Stream(program).products.values():
            self._products.setdefault(str(product.param.name), product)

    def wanted(self, layer: ResolvedLayer, weight: ResolvedWeight) -> _Wanted:
        """Returns the sharding that a hint asks for, checked against the shape of its weight."""
        shape = sizes_of(self._params[weight.param])
        if shape is None or min(shape, default=1) < 0:
            raise ValueError(f"{_entity(weight)} has no static shape")
        found = _Wanted(weight, len(shape))
        self._divide(found, layer, weight, shape)
        found.skipped = self._skipped(layer, found)
        return found

    def count(self, layer: Iterable[_Wanted]) -> None:
        """Counts the shards of each part of what is not skipped."""
        for each in layer:
            if not each.skipped:
                devices = self._dist.moe_tp_size if each.over_group else self._dist.tp_size
                groups = self._dist.moe_ep_size if each.over_group else 1
                each.counts = [groups * shards_of(part.units, devices) for part in each.parts]

    def _divide(
        self, found: _Wanted, layer: ResolvedLayer, weight: ResolvedWeight, shape: Sequence[int]
    ) -> None:
        """Chooses the dimension that is divided, and its parts."""
        hint, product = weight.hint, self._products.get(weight.param)
        if product is not None and product.view.looked_up is not None:
            found.expert_dim = product.view.looked_up
            found.over_group = layer.hint.layer_type == _EXPERTS_TYPE
            experts = shape[found.expert_dim]
            if found.over_group and experts % self._dist.moe_ep_size:
                raise ValueError(
                    f"{_entity(weight)}: its {experts} experts (dimension {found.expert_dim}) "
                    f"cannot be divided into moe_ep_size={self._dist.moe_ep_size} groups"
                )
        if hint.tp_mode == "none":
            return
        if product is None and len(shape) > 1 and hint.tp_mode == "rowwise":
            raise ValueError(f"{_entity(weight)} is rowwise, but no product adds its rows up")
        by_columns = hint.tp_mode == "colwise"
        dim = 0 if product is None else product.out_dim if by_columns else product.in_dim
        sizes = hint.output_sizes or (shape[dim],)
        if sum(sizes) != shape[dim]:
            raise ValueError(
                f"{_entity(weight)}: output_sizes {list(sizes)} add up to {sum(sizes)}, but "
                f"dimension {dim} has {shape[dim]} elements"
            )
        if hint.size not in (0, shape[dim]):
            raise ValueError(
                f"{_entity(weight)}: size is {hint.size}, but dimension {dim} has {shape[dim]} "
                f"elements"
            )
        for size, unit in zip(sizes, hint.units(), strict=True):
            if size % unit:
                raise ValueError(
                    f"{_entity(weight)}: tp_min_local_shape {unit} does not divide the {size} "
                    f"elements of {'a block of ' if hint.output_sizes else ''}dimension {dim}"
                )
        found.dim = dim
        found.parts = tuple(_Part(s, u) for s, u in zip(sizes, hint.units(), strict=True))

    def _skipped(self, layer: ResolvedLayer, found: _Wanted) -> str:
        """Returns the reason why nothing of a weight is sharded; empty if something is."""
        dist, kind = self._dist, layer.hint.layer_type
        groups = dist.moe_ep_size if found.over_group else 1
        if not layer.hint.shardable:
            return "shardable is false"
        if dist.shard_layers is not None and kind not in dist.shard_layers:
            return f"{kind} is not among shard_layers"
        if dist.tp_size == 1:
            return "one device has all of a layer"
        if dist.enable_attention_dp and not found.over_group:
            return "data parallel under attention-dp"
        devices = dist.moe_tp_size if found.over_group else dist.tp_size
        if found.dim is None:
            why = found.weight.hint.why or (layer.hint.why if kind == "unknown" else "")
            return "" if groups > 1 else f"tp_mode is none{f': {why}' if why else ''}"
        if groups == 1 and all(shards_of(part.units, devices) == 1 for part in found.parts):
            units = max(part.units for part in found.parts)
            return f"{units} in dimension {found.dim} cannot be divided over {devices} devices"
        return ""

    def placed(self, wanted: _Wanted, axes: LayerAxes) -> Placed:
        """Places a weight on a mesh."""
        cut = None
        if not wanted.skipped and wanted.dim is not None and len(wanted.parts) > 1:
            cut = Cut(wanted.dim, tuple(part.size for part in wanted.parts))
        parts: Iterable[_Part | None] = wanted.parts if cut is not None else wanted.parts[:1]
        dims, shards = [], []
        for part in parts or (None,):
            entry: list[object] = [None] * wanted.rank
            count = 1
            if not wanted.skipped:
                count = self._place(entry, wanted, part, axes)
            dims.append(tuple(entry))
            shards.append(count)
        by_columns = wanted.weight.hint.tp_mode == "colwise"
        return Placed(
            tuple(dims), tuple(shards), cut, wanted.expert_dim, wanted.skipped, by_columns
        )

    def _place(
        self, entry: list[object], wanted: _Wanted, part: _Part | None, axes: LayerAxes
    ) -> int:
        """Enters axes into dims; returns the number of shards."""
        over: Mapping[int | None, tuple[str, ...]] = {}
        if part is not None:
            choices = axes.per_group if wanted.over_group else axes.layer
            over = {wanted.dim: axes.divide(part.units, choices)}
        if wanted.over_group:
            over = {**over, wanted.expert_dim: axes.groups}
        count = 1
        for dim, names in over.items():
            if dim is not None and names:
                entry[dim] = names if len(names) > 1 else names[0]
                for name in names:
                    count *= axes.sizes[name]
        return count


def _in_units_of_rows(layer: Iterable[_Wanted]) -> None:
    """Makes units of columns as large as those in which the layer's rows are added up.

    Of a state space with four groups of two heads no device has one head alone: what the norm of
    a group adds up would lie on two devices.
    """
    for over_group in (False, True):
        alike = [each for each in layer if each.over_group == over_group and not each.skipped]
        rows = {
            part.units
            for each in alike
            for part in each.parts
            if each.weight.hint.tp_mode == "rowwise"
        }
        if len(rows) != 1:
            continue
        (units,) = rows
        for each in alike:
            each.parts = tuple(
                _Part(part.size, part.size // units) if part.units % units == 0 else part
                for part in each.parts
            )


def _skip_columns(layer: Iterable[_Wanted]) -> None:
    """Skips the columns that no product of a layer can add up by rows.

    Of a state space whose two groups cannot be divided over three devices its eight heads could be,
    and would be gathered.
    """
    for over_group in (False, True):
        alike = [each for each in layer if each.over_group == over_group]
        rows = [each for each in alike if each.weight.hint.tp_mode == "rowwise"]
        if not rows or not all(each.skipped for each in rows):
            continue
        for each in alike:
            if not each.skipped and each.expert_dim is None:
                each.skipped = f"the rows of {rows[0].weight.param} are not sharded"
                each.counts = []


def _entity(weight: ResolvedWeight) -> str:
    """Names the weight that a message is about."""
    where = f"{weight.place}: " if weight.place else ""
    return f"{where}weight {weight.param} of layer {weight.layer}"
