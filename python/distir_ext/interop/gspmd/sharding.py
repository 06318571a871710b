"""Shardings of HLO as data, and conversions between their versions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from distir_ext.interop.gspmd.iota import Iota, find_iota
from distir_ext.interop.gspmd.metadata import metadata_text
from distir_ext.interop.gspmd.named import named_text
from distir_ext.interop.gspmd.tiles import (
    SUBGROUPS,
    Tiles,
    factor_sizes,
    sharding_of,
    tiles_of,
)
from distir_ext.interop.shardy.mesh_dims import from_mesh_dims, mesh_of, to_mesh_dims
from distir_ext.interop.shardy.model import AxisRef, DimSharding, LogicalMesh, Sharding
from distir_ext.mesh.mesh import MOST_DEVICES, Mesh, as_mesh
from distir_ext.text.errors.tracebacks import short_tracebacks

SIMPLE_KINDS = ("replicated", "manual", "unknown", "unreduced")
"""Shardings that HLO states in one word."""


@dataclass(frozen=True)
class ShardGroup:
    """Values of one group get one sharding: ``shard_as 1`` and ``shard_like 1``."""

    relation: str
    """``"shard_as"`` or ``"shard_like"``."""

    number: int
    """Of the group."""

    def __str__(self) -> str:
        return f"{self.relation} {self.number}"


@dataclass(frozen=True, repr=False)
class HloSharding:
    """A sharding as HLO's text has it, of any version.

    :func:`distir_ext.interop.gspmd.parse` reads one, and ``str`` writes it.

    Example:
        >>> from distir_ext.interop import gspmd
        >>> sharding = gspmd.parse("{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}")
        >>> sharding.to_mesh_dims()
        (Mesh((2, 4), ('x', 'y')), ('y', None))

    Raises:
        ValueError: The parts do not fit together.
    """

    kind: str
    """``"tiled"``, ``"replicated"``, ``"maximal"`` (one device has all), ``"manual"``,
    ``"unknown"``, ``"unreduced"``, ``"named"`` or ``"tuple"``."""

    tile_dims: tuple[int, ...] = ()
    """Into how many parts each dimension is cut, and the sizes of the subgroups, if it is tiled."""

    devices: Iota | tuple[int, ...] = ()
    """The devices of the tiles in row-major order, as ids (version 1), or as how they follow from
    0, 1, 2, ... (version 2)."""

    subgroups: tuple[str, ...] = ()
    """Roles of the last of ``tile_dims``, for devices with the same tile: ``"replicated"``,
    ``"manual"``, ``"unreduced"`` or ``"maximal"``."""

    device: int | None = None
    """Of a maximal one."""

    elements: tuple[HloSharding, ...] = ()
    """One for each leaf of a tuple."""

    named: Sharding | None = None
    """Content of a named sharding, as version 3 has it, with its mesh and axes."""

    shard_group: ShardGroup | None = None
    """The values that have to be sharded alike."""

    metadata: str = field(default="", compare=False)
    """Text in the braces of ``metadata={...}``, as it is; not compared."""

    @short_tracebacks
    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ValueError(problem)

    @property
    def data_dims(self) -> tuple[int, ...]:
        """Number of parts of each tensor dimension, if it is tiled."""
        return self.tile_dims[: len(self.tile_dims) - len(self.subgroups)]

    @cached_property
    def device_list(self) -> tuple[int, ...]:
        """The devices of the tiles in row-major order, in any version, if it is tiled."""
        return self.devices.devices if isinstance(self.devices, Iota) else self.devices

    def to_v1(self) -> HloSharding:
        """Converts the sharding to version 1, which lists devices.

        Raises:
            ValueError: A named sharding has open dimensions or another reduction than a sum.

        Example:
            >>> from distir_ext.interop import gspmd
            >>> print(gspmd.parse("{devices=[4,2]<=[2,4]T(1,0)}").to_v1())
            {devices=[4,2]0,4,1,5,2,6,3,7}
        """
        return self._tiled(lambda tiled: replace(tiled, devices=tiled.device_list))

    def to_v2(self) -> HloSharding:
        """Converts the sharding to version 2: devices as an iota of as few dimensions as possible.

        Raises:
            ValueError: No reshaped and transposed iota has the order of the devices
                (:meth:`canonical` keeps the list then); or as for :meth:`to_v1`.

        Example:
            >>> from distir_ext.interop import gspmd
            >>> text = "{devices=[2,2,4]0,8,4,12,1,9,5,13,2,10,6,14,3,11,7,15}"
            >>> print(gspmd.parse(text).to_v2())
            {devices=[2,2,4]<=[2,2,4]T(2,1,0)}
        """
        return self._tiled(_with_iota)

    def canonical(self) -> HloSharding:
        """Returns the canonical form: version 2 where the devices have one, otherwise version 1.

        As in XLA, subgroups of size 1 are left out and equal ones merged; their order is manual,
        unreduced, replicated; replicas are sorted. A sharding that cuts no data and has all devices
        in one subgroup is written as that subgroup alone. Metadata is left out.

        Raises:
            ValueError: As for :meth:`to_v1`.

        Example:
            >>> from distir_ext.interop import gspmd
            >>> text = "{devices=[2,1,2,2]0,2,1,3,4,6,5,7 last_tile_dims={replicated, manual}}"
            >>> print(gspmd.parse(text).canonical())
            {devices=[2,1,2,2]<=[8] last_tile_dims={manual, replicated}}
        """
        return replace(self._tiled(_canonical), metadata="")

    def to_named(self, mesh: Mesh | None = None, rank: int | None = None) -> HloSharding:
        """Converts the sharding to version 3, which names the axes of a mesh.

        Args:
            mesh: See :meth:`to_shardy`.
            rank: See :meth:`to_shardy`.

        Raises:
            ValueError: See :meth:`to_shardy`.

        Example:
            >>> from distir_ext.interop import gspmd
            >>> print(gspmd.parse("{devices=[4,2]<=[2,4]T(1,0)}").to_named(Mesh(dp=2, tp=4)))
            {mesh['dp'=2,'tp'=4], [{'tp'}, {'dp'}]}
        """
        if self.kind == "tuple":
            return self._each(lambda each: each.to_named(mesh, rank))
        return HloSharding("named", named=self.to_shardy(mesh, rank), metadata=self.metadata)

    def to_shardy(self, mesh: Mesh | None = None, rank: int | None = None) -> Sharding:
        """Converts to Shardy's sharding, with the mesh written in.

        Args:
            mesh: The mesh whose axes are named. By default a mesh with as few axes as possible,
                which are called x, y, z, w; or of a named sharding its own. What is replicated
                everywhere is then on the empty mesh.
            rank: Dimensions of the tensor; needed where the text does not say it: replicated,
                manual, unknown and unreduced.

        Returns:
            The sharding. What is unknown has open dimensions.

        Raises:
            ValueError: The tiles do not lie along the axes of the mesh, or the mesh has other
                devices; the text has another rank, or none is given; it needs a mesh; it is a
                tuple or in a group (``shard_as``).
        """
        if self.kind == "tuple":
            raise ValueError("the sharding is one of a tuple; its elements have one each")
        if self.shard_group is not None:
            raise ValueError(
                f"the sharding has {self.shard_group}: other values have to be sharded alike, "
                "which Shardy and DistIR do not say of one value; dataclasses.replace(sharding, "
                "shard_group=None) leaves it out"
            )
        logical = None if mesh is None else LogicalMesh.from_mesh(as_mesh(mesh, "the mesh"))
        if self.kind == "maximal":
            assert self.device is not None
            return Sharding(LogicalMesh((), (self.device,)))
        if self.kind == "named" and self.named is not None:
            own = self.named.mesh
            assert isinstance(own, LogicalMesh)
            if logical is None or logical == own or own.is_maximal:
                return _with_rank(self.named, rank)
            if not own.axes:
                return _with_rank(replace(self.named, mesh=logical), rank)
            return self.canonical().to_shardy(mesh, len(self.named.dims) or rank)
        if self.kind == "tiled":
            return self._on_mesh(logical, rank)
        if logical is None and self.kind in ("manual", "unreduced"):
            raise ValueError(f"{{{self.kind}}} is over all axes of a mesh; pass mesh=")
        if rank is None:
            raise ValueError(f"{{{self.kind}}} is of any number of dimensions; pass rank=")
        where = logical or LogicalMesh()
        dims = (DimSharding(open=self.kind == "unknown"),) * rank
        axes = tuple(AxisRef(name) for name, _ in where.axes)
        return Sharding(
            where,
            dims,
            unreduced=axes if self.kind == "unreduced" else (),
            manual=axes if self.kind == "manual" else (),
        )

    @classmethod
    def from_shardy(cls, sharding: Sharding, mesh: Any = None) -> HloSharding:
        """Converts from Shardy's sharding: to version 2 where there is one, otherwise to version 1.

        Args:
            sharding: A closed sharding.
            mesh: The mesh that it names; not needed where the mesh is written into it.

        Raises:
            ValueError: It has open dimensions or priorities, which GSPMD does not have
                (``sharding.closed()`` leaves them out); it is reduced by a maximum or minimum; its
                mesh is missing, or has no such axes.

        Example:
            >>> from distir_ext.interop import shardy
            >>> sharding = shardy.parse('<@mesh, [{"y"}, {}]>')
            >>> print(HloSharding.from_shardy(sharding, Mesh(x=2, y=4)))
            {devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
        """
        return _of_shardy(replace(sharding, mesh=mesh_of(sharding, mesh)))

    def to_mesh_dims(
        self, mesh: Mesh | Any = None, rank: int | None = None
    ) -> tuple[Mesh, tuple[Any, ...] | None]:
        """A mesh and dims, as :func:`distir_ext.annotate` takes them.

        Args:
            mesh: The mesh whose axes are named; see :meth:`to_shardy`. Without it, tiles that lie
                along no axes of a mesh whose devices are in order get one in their own order.
            rank: Dimensions of the tensor, where the text does not say it.

        Returns:
            The mesh and one entry per dimension; None instead of them for what is replicated, if
            no rank is given. Parts of axes are as in
            :func:`distir_ext.interop.shardy.to_mesh_dims`.

        Raises:
            ValueError: As for :meth:`to_shardy`; or the value is manual or unreduced, which no
                annotation says; or a replicated one names no mesh.

        Example:
            >>> from distir_ext.interop import gspmd
            >>> gspmd.parse("{devices=[4,2]<=[8]}").to_mesh_dims(Mesh(dp=2, tp=4))
            (Mesh((2, 2, 2), ('dp', 'tp:(1)2', 'tp:(2)2')), (('dp', 'tp:(1)2'), 'tp:(2)2'))
        """
        named = self.to_shardy(mesh, 0 if rank is None and self.kind in SIMPLE_KINDS else rank)
        if isinstance(named.mesh, LogicalMesh) and not named.mesh.size:
            raise ValueError(f"{self} names no devices; pass mesh=")
        found, dims = to_mesh_dims(named)
        if dims or self.kind == "tiled":
            return found, dims
        # The text is of tensors of any rank.
        return found, None if rank is None else (None,) * rank

    @classmethod
    def from_mesh_dims(cls, mesh: Mesh | Any, dims: Sequence[Any]) -> HloSharding:
        """Converts from dims on a mesh: to version 2 where there is one, otherwise to version 1.

        The numbers of devices are the ids of the mesh. :meth:`to_named` gives version 3.

        Args:
            mesh: A mesh of any framework (see :class:`distir_ext.Mesh`).
            dims: One entry per tensor dimension.

        Raises:
            ValueError: Dims name an axis that the mesh lacks, or one twice; or they have open
                dimensions or priorities, which GSPMD does not have.
            TypeError: They are no dims, or the mesh is none.

        Example:
            >>> print(HloSharding.from_mesh_dims(Mesh(x=2, y=4), ("y", None)))
            {devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}
        """
        return cls.from_shardy(from_mesh_dims(mesh, dims))

    def _each(self, convert: Callable[[HloSharding], HloSharding]) -> HloSharding:
        return replace(self, elements=tuple(convert(each) for each in self.elements))

    def _tiled(self, convert: Callable[[HloSharding], HloSharding]) -> HloSharding:
        """Converts all tiled shardings by `convert`; a named sharding is tiled first."""
        if self.kind == "tuple":
            return self._each(lambda each: each._tiled(convert))
        if self.named is not None:
            return _of_shardy(self.named)._tiled(convert)
        return convert(self) if self.kind == "tiled" else self

    def _on_mesh(self, mesh: LogicalMesh | None, rank: int | None) -> Sharding:
        tiles = tiles_in(self).canonical()
        if "maximal" in tiles.subgroups:
            raise ValueError(f"{shown(self)} has a maximal subgroup, which no axes of a mesh say")
        if mesh is None:
            sizes = factor_sizes([tiles])
            mesh = _mesh_of(tiles, sizes)
        found = sharding_of(tiles, mesh)
        if found is None:
            raise ValueError(
                f"{shown(self)} does not lie along the axes of {shown(mesh.to_mesh())}: "
                "some dimension is no product of them or of parts of them"
            )
        return _with_rank(found, rank)

    def __str__(self) -> str:
        if self.kind == "tuple":
            # XLA numbers every fifth element.
            texts = (
                f"/*index={number}*/{each}" if number and number % 5 == 0 else str(each)
                for number, each in enumerate(self.elements)
            )
            return f"{{{', '.join(texts)}}}"
        if self.named is not None:
            return named_text(self.named, self.metadata)
        parts = [self.kind]
        if self.kind == "maximal":
            parts.append(f"device={self.device}")
        elif self.kind == "tiled":
            order = str(self.devices) if isinstance(self.devices, Iota) else _joined(self.devices)
            parts = [f"devices=[{_joined(self.tile_dims)}]{order}"]
            if self.subgroups == ("replicated",):
                parts.append("last_tile_dim_replicate")
            elif self.subgroups:
                parts.append(f"last_tile_dims={{{', '.join(self.subgroups)}}}")
        parts += [str(self.shard_group)] if self.shard_group is not None else []
        parts += [metadata_text(self.metadata)] if self.metadata else []
        return f"{{{' '.join(parts)}}}"

    def __repr__(self) -> str:
        return f"<HloSharding {self}>"


def tiles_in(sharding: HloSharding) -> Tiles:
    """The tiles of a tiled sharding."""
    return Tiles(sharding.tile_dims, sharding.device_list, sharding.subgroups)


def _problem(sharding: HloSharding) -> str | None:
    """Describes a contradiction in a sharding; None if there is none."""
    if sharding.kind != "tiled":
        return None
    dims, devices = sharding.tile_dims, sharding.devices
    if not dims or min(dims) < 1:
        return f"tile dims are positive sizes, not {list(dims)}"
    size = 1
    for extent in dims:
        size *= extent
        if size > MOST_DEVICES:
            return f"a sharding has at most {MOST_DEVICES} devices"
    if len(sharding.subgroups) > len(dims):
        return f"there are {len(sharding.subgroups)} subgroups, but {len(dims)} tile dims"
    unknown = [kind for kind in sharding.subgroups if kind not in SUBGROUPS]
    if unknown:
        return f"a subgroup is one of {', '.join(SUBGROUPS)}, not {unknown[0]}"
    count = devices.size if isinstance(devices, Iota) else len(devices)
    if count != size:
        return f"tile dims [{_joined(dims)}] have {size} devices, not {count}"
    if not isinstance(devices, Iota) and len(set(devices)) < count:
        return "a device is there twice"
    return None


def _canonical(sharding: HloSharding) -> HloSharding:
    tiles = tiles_in(sharding).canonical()
    is_one_group = len(tiles.subgroups) == 1 and math.prod(tiles.data_dims) == 1
    if is_one_group and tiles.subgroups[0] in SIMPLE_KINDS:
        return replace(sharding, kind=tiles.subgroups[0], tile_dims=(), devices=(), subgroups=())
    return replace(
        sharding,
        tile_dims=tiles.dims,
        devices=find_iota(tiles.devices) or tiles.devices,
        subgroups=tiles.subgroups,
    )


def _with_iota(sharding: HloSharding) -> HloSharding:
    if isinstance(sharding.devices, Iota):
        return replace(sharding, devices=sharding.devices.canonical())
    iota = find_iota(sharding.devices)
    if iota is None:
        shown = _joined(sharding.devices[:16]) + ",..." * (len(sharding.devices) > 16)
        raise ValueError(
            f"no version 2 has the devices {shown}: no transposed iota is in this order"
        )
    return replace(sharding, devices=iota)


def _of_shardy(sharding: Sharding) -> HloSharding:
    mesh = sharding.mesh
    assert isinstance(mesh, LogicalMesh)
    for number, dim in enumerate(sharding.dims):
        if dim.open or dim.priority is not None:
            raise ValueError(
                f"dimension {number} is {dim}: GSPMD has no open dimensions and no priorities; "
                "closed() leaves them out"
            )
    if sharding.unreduced and sharding.reduction != "sum":
        raise ValueError(f"the sharding is unreduced by {sharding.reduction}; GSPMD's are sums")
    if mesh.is_maximal:
        return HloSharding("maximal", device=mesh.device_ids[0])
    if not mesh.axes:
        return HloSharding("replicated")
    tiles = tiles_of(sharding)
    tiled = HloSharding("tiled", tiles.dims or (1,), tiles.devices, tiles.subgroups)
    return _canonical(tiled)


def _mesh_of(tiles: Tiles, sizes: Sequence[int] | None) -> LogicalMesh:
    """A mesh whose axes the tiles lie along: devices in order if sizes are known."""
    if sizes is None:
        shape, ids = tiles.dims, tiles.devices
    else:
        shape, ids = tuple(sizes), tuple(sorted(tiles.devices))
    kept = [size for size in shape if size > 1] or [1]
    return LogicalMesh.from_mesh(Mesh(np.asarray(ids).reshape(kept)))


def _with_rank(sharding: Sharding, rank: int | None) -> Sharding:
    """The sharding of a tensor of this rank; a text without dimensions is for any."""
    if rank is None or rank == len(sharding.dims):
        return sharding
    if sharding.dims:
        raise ValueError(
            f"the sharding has {len(sharding.dims)} dimensions, and the tensor has {rank}"
        )
    return replace(sharding, dims=(DimSharding(),) * rank)


def shown(value: Any) -> str:
    """A text for messages, without most of a long list of devices."""
    text = str(value)
    return text if len(text) < 200 else f"{text[:160]} ... {text[-30:]}"


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
