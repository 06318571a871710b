"""Converts GSPMD tile assignments to shardings over mesh axes, and back.

A tile assignment is an array of devices: one dimension for each tensor dimension, and one for each
subgroup, which says what devices with the same tile do. On a mesh (x=2, y=4) the dims
``("y", None)`` give the array of shape (4, 1, 2) whose last dimension are replicas. Tiles lie along
the axes of a mesh if each dimension of the array is a product of axes, or of parts of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from distir_ext.interop._factors import (
    Factor,
    cut_at_strides,
    split_at_sizes,
    strided_factors,
)
from distir_ext.interop.shardy.model import (
    AxisRef,
    DimSharding,
    LogicalMesh,
    Sharding,
    joined,
    part,
)

SUBGROUPS = ("maximal", "manual", "unreduced", "replicated")
"""Roles of devices with the same tile, in the order of the canonical form."""


@dataclass(frozen=True)
class Tiles:
    """A tile assignment.

    Attributes:
        dims: Its shape, the subgroups last.
        devices: The devices in row-major order.
        subgroups: Roles of the last dimensions, of :data:`SUBGROUPS`.
    """

    dims: tuple[int, ...]
    devices: tuple[int, ...]
    subgroups: tuple[str, ...] = ()

    @property
    def data_dims(self) -> tuple[int, ...]:
        """Number of parts of each tensor dimension."""
        return self.dims[: len(self.dims) - len(self.subgroups)]

    def canonical(self) -> Tiles:
        """Merges subgroups of one kind, orders the kinds, and sorts replicas."""
        rank = len(self.data_dims)
        kinds: dict[str, list[int]] = {}
        for number, kind in enumerate(self.subgroups):
            if self.dims[rank + number] > 1:
                kinds.setdefault(kind, []).append(rank + number)
        order = [kind for kind in SUBGROUPS if kind in kinds]
        # Dimensions of size 1 change nothing, and NumPy has at most 64.
        shown = [dim for dim, size in enumerate(self.dims[:rank]) if size > 1]
        moved = shown + [dim for kind in order for dim in kinds[kind]]
        places = {dim: place for place, dim in enumerate(sorted(moved))}
        array = np.asarray(self.devices, np.int64)
        array = array.reshape([self.dims[dim] for dim in sorted(moved)])
        array = array.transpose([places[dim] for dim in moved])
        sizes = [math.prod(self.dims[dim] for dim in kinds[kind]) for kind in order]
        if order and order[-1] == "replicated":
            array = np.sort(array.reshape(-1, sizes[-1]), axis=1)
        devices = tuple(array.reshape(-1).tolist())
        return Tiles((*self.data_dims, *sizes), devices, tuple(order))


def tiles_of(sharding: Sharding) -> Tiles:
    """The tiles of a closed sharding on a mesh that is written in and has axes.

    Subgroups are manual, unreduced and replicated axes; those that are left out are replicated.
    """
    mesh = sharding.mesh
    assert isinstance(mesh, LogicalMesh)
    sharding = sharding.on(mesh)
    used = [ref for dim in sharding.dims for ref in dim.axes]
    special = {"manual": sharding.manual, "unreduced": sharding.unreduced}
    rest = _rest((*used, *sharding.manual, *sharding.unreduced), mesh)
    groups = {**special, "replicated": rest}
    order = [*used, *(ref for refs in groups.values() for ref in refs)]

    axis_stride = _axis_strides(mesh)
    devices = np.zeros(1, np.int64)
    for ref in order:
        begin, end = ref.bounds(mesh)
        stride = axis_stride[ref.name] * (mesh.sizes[ref.name] // end)
        steps = np.arange(end // begin) * stride
        devices = (devices[:, None] + steps).reshape(-1)
    if mesh.device_ids:
        devices = np.asarray(mesh.device_ids, np.int64)[devices]
    present = [kind for kind, refs in groups.items() if refs]
    return Tiles(
        (
            *(_size(dim.axes, mesh) for dim in sharding.dims),
            *(_size(groups[kind], mesh) for kind in present),
        ),
        tuple(devices.tolist()),
        tuple(present),
    ).canonical()


def sharding_of(tiles: Tiles, mesh: LogicalMesh) -> Sharding | None:
    """The sharding on a mesh that has these tiles; None if they do not lie along its axes.

    Raises:
        ValueError: The mesh has other devices.
    """
    devices = mesh.device_ids or tuple(range(mesh.size))
    pieces = _pieces(tiles, devices)
    strides = _axis_strides(mesh)
    bounds = sorted({*(strides[name] for name, size in mesh.axes if size > 1), mesh.size})
    refs: list[tuple[AxisRef, ...]] = []
    for dimension in pieces or ():
        found: list[AxisRef] = []
        for factor in dimension:
            within = cut_at_strides(factor, bounds)
            if within is None:
                return None
            found += [_ref(piece, mesh) for piece in within]
        refs.append(joined(found, mesh))
    if pieces is None:
        return None
    rank = len(tiles.data_dims)
    groups = dict(zip(tiles.canonical().subgroups, refs[rank:], strict=True))
    return Sharding(
        mesh,
        tuple(DimSharding(axes) for axes in refs[:rank]),
        unreduced=groups.get("unreduced", ()),
        manual=groups.get("manual", ()),
    ).on(mesh)


def factor_sizes(tiles: Sequence[Tiles]) -> tuple[int, ...] | None:
    """The axes of a mesh, over the sorted devices, that all of these tiles lie along.

    Returns:
        Sizes, major to minor, as few as there are; or None if there is no such mesh.

    Raises:
        ValueError: They have different devices.
    """
    devices = sorted(tiles[0].devices)
    bounds = {1, len(devices)}
    for each in tiles:
        pieces = _pieces(each, devices)
        if pieces is None:
            return None
        bounds |= {stride for dimension in pieces for _, stride in dimension}
        if any(high % low for low, high in pairwise(sorted(bounds))):
            return None
    sizes = [high // low for low, high in pairwise(sorted(bounds))]
    return tuple(reversed(sizes)) or (1,)


def _pieces(tiles: Tiles, devices: Sequence[int]) -> list[tuple[Factor, ...]] | None:
    """The factors of each dimension of canonical tiles, counted in places among these devices."""
    place = {device: number for number, device in enumerate(devices)}
    others = [device for device in tiles.devices if device not in place]
    if others or len(place) != len(tiles.devices):
        raise ValueError(
            f"the sharding has {len(tiles.devices)} devices{_shown(tiles.devices)}, the mesh has "
            f"{len(place)}{_shown(devices)}"
        )
    numbered = Tiles(tiles.dims, tuple(place[each] for each in tiles.devices), tiles.subgroups)
    canonical = numbered.canonical()
    factors = strided_factors(np.asarray(canonical.devices, np.int64))
    return None if factors is None else split_at_sizes(factors, canonical.dims)


def _shown(devices: Iterable[int]) -> str:
    listed = sorted(devices)
    text = ", ".join(map(str, listed[:4])) + (", ..." if len(listed) > 4 else "")
    return f" ({text}{f', {listed[-1]}' if len(listed) > 5 else ''})"


def _ref(piece: Factor, mesh: LogicalMesh) -> AxisRef:
    """The part of an axis that a factor of places is.

    All factors of a sharding together count every place once. So if each lies within an axis, those
    within one axis are parts of it that fit.
    """
    size, stride = piece
    strides = _axis_strides(mesh)
    name = next(name for name, low in strides.items() if low <= stride < low * mesh.sizes[name])
    end = strides[name] * mesh.sizes[name] // stride
    return part(name, end // size, end, mesh)


def _axis_strides(mesh: LogicalMesh) -> dict[str, int]:
    """Returns the distance of neighbours along each axis, in positions of the mesh."""
    strides = {}
    stride = 1
    for name, size in reversed(mesh.axes):
        strides[name] = stride
        stride *= size
    return strides


def _size(refs: Iterable[AxisRef], mesh: LogicalMesh) -> int:
    size = 1
    for ref in refs:
        begin, end = ref.bounds(mesh)
        size *= end // begin
    return size


def _rest(refs: Iterable[AxisRef], mesh: LogicalMesh) -> tuple[AxisRef, ...]:
    """Returns the parts of the mesh's axes that `refs` leave unused, in the order of the mesh."""
    used: dict[str, list[tuple[int, int]]] = {}
    for ref in refs:
        used.setdefault(ref.name, []).append(ref.bounds(mesh))
    found = []
    for name, size in mesh.axes:
        at = 1
        for begin, end in [*sorted(used.get(name, ())), (size, size)]:
            if begin > at:
                found.append(part(name, at, begin, mesh))
            at = end
    return tuple(found)
