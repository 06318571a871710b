"""Keeps a stack of the manual regions that are being written; the innermost is last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from distir_ext.mesh.dims import read_dim
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.text.errors.spelling import did_you_mean


@dataclass(frozen=True)
class Region:
    """A region, within others or not.

    Attributes:
        mesh: The mesh of all its devices.
        manual: The axes that are manual in it, those of the regions around it included.
        base: The mesh that values enter it from: without the axes that are manual around it.
        entered: The axes that are manual in it, and not around it.
    """

    mesh: Mesh
    manual: tuple[str, ...]
    base: Mesh
    entered: tuple[str, ...]

    @property
    def inner(self) -> Mesh | None:
        """The mesh of the axes that stay automatic; None if there are none."""
        return without(self.base, self.entered)


def without(mesh: Mesh, axes: Sequence[str]) -> Mesh | None:
    """The mesh of the other axes: of the devices that come first along these."""
    kept = tuple(name for name in mesh.axis_names if name not in axes)
    if not kept:
        return None
    ids = np.array(mesh.device_ids).reshape(mesh.shape)
    first = tuple(0 if name in axes else slice(None) for name in mesh.axis_names)
    return Mesh(ids[first], kept)


_open: ContextVar[tuple[Region, ...]] = ContextVar("open_regions", default=())


def current() -> Region | None:
    """The innermost region that is being written."""
    regions = _open.get()
    return regions[-1] if regions else None


@contextmanager
def inside(region: Region) -> Iterator[None]:
    """Makes a region the innermost one, until the block ends."""
    token = _open.set((*_open.get(), region))
    try:
        yield
    finally:
        _open.reset(token)


def opened(mesh: Mesh, axes: Sequence[str] | None) -> Region:
    """:func:`region_within` the one that is being written."""
    return region_within(current(), mesh, axes)


def region_within(around: Region | None, mesh: Mesh, axes: Sequence[str] | None) -> Region:
    """The region over some axes of a mesh, or over all that are not manual yet.

    Args:
        around: The region that it stands in; None if there is none.
        mesh: The mesh of all its devices.
        axes: The axes that are manual in it, and not around it; None for all others.

    Raises:
        ValueError: The mesh has no such axis, it is manual already, none is left, or the region
            around it is on another mesh.
    """
    if around is not None and around.mesh != mesh:
        raise ValueError(
            f"a manual region on {mesh!r} stands within one on {around.mesh!r}; nested regions "
            "are on one mesh"
        )
    taken = () if around is None else around.manual
    if axes is None:
        axes = [name for name in mesh.axis_names if name not in taken]
    for name in axes:
        check_axis("a manual region", name, mesh)
        if name in taken:
            raise ValueError(
                f"a manual region over axis {name!r} stands within one where {name!r} is manual "
                f"already; the axes that stay automatic there are "
                f"{listed(name for name in mesh.axis_names if name not in taken)}"
            )
    base = mesh if around is None else around.inner
    if base is None or not axes:
        raise ValueError("a manual region needs an axis that is not manual yet")
    entered = tuple(name for name in mesh.axis_names if name in axes)
    manual = tuple(name for name in mesh.axis_names if name in axes or name in taken)
    return Region(mesh, manual, base, entered)


def automatic(mesh: Any, dims: Any) -> Any:
    """The mesh on which dims annotate a value: in a region, that of its automatic axes.

    Raises:
        ValueError: Dims name an axis that is manual, or the mesh is not that of the region.
    """
    region = current()
    if region is None:
        return mesh
    named = as_mesh(mesh, "constrained value: the mesh")
    if named != region.mesh:
        raise ValueError(
            f"a value is constrained on {named!r} in a manual region on {region.mesh!r}; a region "
            "has one mesh"
        )
    entries = dims if isinstance(dims, list | tuple) else ()
    for number, entry in enumerate(entries):
        for axis in read_dim("constrained value", entry).axes:
            if axis in region.manual:
                raise ValueError(
                    f"constrained value dimension {number}: axis {axis!r} is manual in this "
                    "region, whose values are those of one device along it; only axes that stay "
                    "automatic shard them"
                )
    # Without automatic axes the first device stands for all.
    return region.inner or Mesh((1,), ("device",), named.device_ids[:1])


def check_axis(what: str, name: object, mesh: Mesh) -> None:
    """Raises a ValueError if a mesh has no such axis."""
    if name not in mesh.axis_names:
        raise ValueError(
            f"{what}: the mesh has no axis {name!r}; its axes are {listed(mesh.axis_names)}"
            f"{did_you_mean(str(name), mesh.axis_names)}"
        )


def listed(names: Iterator[str] | Sequence[str]) -> str:
    """Names in quotes, or "none"."""
    return ", ".join(map(repr, names)) or "none"
