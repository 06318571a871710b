"""Converts Shardy shardings to a mesh with dims on it, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from distir_ext.interop.shardy.model import AxisRef, DimSharding, LogicalMesh, Sharding
from distir_ext.mesh.dims import Dim, TensorDims, read_dim, replicated_axes, short_entry
from distir_ext.mesh.mesh import Mesh, as_mesh, is_mesh
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

_SUB_AXIS = re.compile(r"(.*):\(([0-9]{1,18})\)([0-9]{1,18})", re.DOTALL)


@short_tracebacks
def to_mesh_dims(
    sharding: Sharding,
    mesh: Mesh | LogicalMesh | Mapping[str, Any] | Any = None,
    others: Iterable[Sharding] = (),
) -> tuple[Mesh, tuple[Any, ...] | None]:
    """A mesh and dims, as :func:`distir_ext.annotate` takes them.

    Args:
        sharding: A sharding.
        mesh: The mesh that it names, or meshes by their names; not needed where a mesh is written
            into the sharding.
        others: Shardings on the same mesh, whose parts of axes the mesh has, too, where they fit:
            so it is one for all of them.

    Returns:
        The mesh, and one entry per dimension. Where the sharding uses part of an axis, the mesh
        has this axis in parts that are named as DistIR names them, ``"y:(1)2"``. Open dimensions
        and priorities are as :class:`distir_ext.Dim` states them. On a maximal mesh, whose one
        device has all of a tensor, None instead of entries.

    Raises:
        ValueError: The value is unreduced or manual over an axis, which no annotation says; a mesh
            is missing or does not have the axes; or replicated axes are parts of axes that dims
            do not cut.

    Example:
        >>> from distir_ext.interop.shardy import parse
        >>> to_mesh_dims(parse('<@mesh, [{"y":(1)2}, {}]>'), Mesh(x=2, y=4))
        (Mesh((2, 2, 2), ('x', 'y:(1)2', 'y:(2)2')), ('y:(1)2', None))
    """
    sharding = sharding.on(mesh_of(sharding, mesh))
    assert isinstance(sharding.mesh, LogicalMesh)
    for refs, words in (
        (sharding.unreduced, "is unreduced (partial)"),
        (sharding.manual, "is manual"),
    ):
        if refs:
            axes = ", ".join(map(str, refs))
            raise ValueError(
                f"the sharding {words} over {axes}, which an annotation cannot state: it says how "
                "a whole value is sharded"
            )
    if sharding.mesh.is_maximal or not sharding.mesh.axes:
        return sharding.mesh.to_mesh(), (None,) * len(sharding.dims) or None
    parts = _parts_of([sharding, *(each.on(sharding.mesh) for each in others)], sharding.mesh)
    entries = [
        short_entry(Dim(*_names(dim.axes, parts), open=dim.open, priority=dim.priority))
        for dim in sharding.dims
    ]
    dims: tuple[Any, ...] = tuple(entries)
    # A closed dimension is sharded as it says and not further, so this is only about open ones.
    if sharding.replicated and any(dim.open for dim in sharding.dims):
        dims = TensorDims(*entries, replicated=_names(sharding.replicated, parts))
    return _split(sharding.mesh.to_mesh(), parts), dims


@short_tracebacks
def from_mesh_dims(mesh: Mesh | Any, dims: Sequence[Any], name: str | None = None) -> Sharding:
    """The sharding that dims state on a mesh.

    Args:
        mesh: A mesh of any framework (see :class:`distir_ext.Mesh`).
        dims: One entry per tensor dimension, with parts of axes as DistIR writes them,
            ``"y:(1)2"``, also open ones and with priorities.
        name: Name of the mesh in the sharding; by default the mesh is written in.

    Raises:
        ValueError: Dims name an axis that the mesh lacks, or one twice.
        TypeError: They are no dims.

    Example:
        >>> print(from_mesh_dims(Mesh(x=2, y=4), (("y", "x"), None), name="mesh"))
        #sdy.sharding<@mesh, [{"y", "x"}, {}]>
    """
    logical = LogicalMesh.from_mesh(as_mesh(mesh, "the mesh of a sharding"))
    if logical.is_maximal:  # which has all of a tensor, of any number of dimensions
        return Sharding(logical if name is None else name)
    stated = [read_dim(f"dimension {number}", entry) for number, entry in enumerate(dims)]
    sharding = Sharding(
        logical,
        tuple(
            DimSharding(
                tuple(_ref(axis, logical) for axis in dim.axes), dim.open, dim.priority or None
            )
            for dim in stated
        ),
        replicated=tuple(_ref(axis, logical) for axis in replicated_axes(dims)),
    ).on(logical)
    if name is None:
        return sharding
    return Sharding(name, sharding.dims, sharding.replicated)


def mesh_of(
    sharding: Sharding, mesh: Mesh | LogicalMesh | Mapping[str, Any] | Any = None
) -> LogicalMesh:
    """The mesh of a sharding.

    Args:
        sharding: A sharding.
        mesh: As for :func:`to_mesh_dims`.

    Raises:
        ValueError: The sharding names a mesh, and it is not given.
        TypeError: The value is no mesh.
    """
    if isinstance(sharding.mesh, LogicalMesh):
        return sharding.mesh
    if mesh is None:
        raise ValueError(f"the sharding is on mesh @{sharding.mesh}; pass mesh=")
    if isinstance(mesh, Mapping) and not is_mesh(mesh):
        if sharding.mesh not in mesh:
            raise ValueError(
                f"there is no mesh @{sharding.mesh}; the meshes are "
                f"{', '.join(f'@{known}' for known in mesh) or 'none'}"
                f"{did_you_mean(sharding.mesh, mesh)}"
            )
        mesh = mesh[sharding.mesh]
    if isinstance(mesh, LogicalMesh):
        return mesh
    return LogicalMesh.from_mesh(as_mesh(mesh, f"mesh @{sharding.mesh}"))


def _ref(text: str, mesh: LogicalMesh) -> AxisRef:
    """An axis by its name, or a part of one as DistIR writes it."""
    found = None if text in mesh.sizes else _SUB_AXIS.fullmatch(text)
    return AxisRef(text) if found is None else AxisRef(found[1], int(found[2]), int(found[3]))


def _parts_of(shardings: Iterable[Sharding], mesh: LogicalMesh) -> dict[str, list[tuple[int, int]]]:
    """Returns the bounds of the parts of each axis, as products of sizes from its major end.

    An axis of size 6 is 2 x 3 or 3 x 2: the first sharding decides, and parts of others that do not
    fit are left out.
    """
    cuts = {name: {1, size} for name, size in mesh.axes}
    for ref in (ref for each in shardings for ref in each.refs()):
        together = sorted(cuts[ref.name] | set(ref.bounds(mesh)))
        if all(high % low == 0 for low, high in pairwise(together)):
            cuts[ref.name] = set(together)
    return {
        name: list(pairwise(sorted(ends))) or [(1, 1)]  # an axis of size 1
        for name, ends in cuts.items()
    }


def _part_names(name: str, parts: Sequence[tuple[int, int]]) -> list[str]:
    if len(parts) == 1:
        return [name]
    return [f"{name}:({begin}){end // begin}" for begin, end in parts]


def _names(refs: Iterable[AxisRef], parts: Mapping[str, list[tuple[int, int]]]) -> list[str]:
    found = []
    for ref in refs:
        names = _part_names(ref.name, parts[ref.name])
        begin, end = ref.pre_size, None if ref.size is None else ref.pre_size * ref.size
        found += [
            part
            for part, (low, high) in zip(names, parts[ref.name], strict=True)
            if low >= begin and (end is None or high <= end)
        ]
    return found


def _split(mesh: Mesh, parts: Mapping[str, list[tuple[int, int]]]) -> Mesh:
    """The mesh with its axes in parts; the very same where none is cut."""
    if all(len(each) == 1 for each in parts.values()):
        return mesh
    shape = [end // begin for each in parts.values() for begin, end in each]
    names = [name for axis, each in parts.items() for name in _part_names(axis, each)]
    return Mesh(shape, names, mesh.device_ids)
