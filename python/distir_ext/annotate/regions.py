"""Emits ``R.dist.enter_manual``, ``R.dist.leave_manual`` and the collectives of manual regions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.annotations import MeshTable
from distir_ext.annotate.emitting import emitted, known_type, module_being_written
from distir_ext.annotate.open_regions import listed
from distir_ext.mesh.dims import read_dim
from distir_ext.mesh.frameworks import read_dims
from distir_ext.mesh.mesh import Mesh, as_mesh


def enter_manual(x: relax.Expr, mesh: Any, dims: Any, axes: Sequence[str]) -> relax.Expr:
    """``R.dist.enter_manual``: the part of a tensor that one device has along manual axes.

    For what writes regions without :func:`distir_ext.manual`, as an importer. With a builder the
    value is emitted, otherwise it is an expression.

    Args:
        x: The value.
        mesh: The mesh that the region is entered from: in a nested one, that of the axes which
            stay automatic around it.
        dims: For each dimension the manual axes that cut it; None if none are cut.
        axes: All manual axes.

    Raises:
        ValueError: Dims do not fit the tensor, name an axis that is not manual, or are open.
        TypeError: The mesh or dims have a wrong type.
    """
    named = as_mesh(mesh, "the mesh of a manual region")
    return crossing("enter_manual", x, named, dims, axes, "what enters a manual region")


def leave_manual(x: relax.Expr, mesh: Any, dims: Any, axes: Sequence[str]) -> relax.Expr:
    """``R.dist.leave_manual``: the tensor of which devices along manual axes have parts.

    Args:
        x: A value of the region.
        mesh: As for :func:`enter_manual`.
        dims: As for :func:`enter_manual`; where they do not name a manual axis, the value is the
            same along it.
        axes: All manual axes.

    Raises:
        ValueError: See :func:`enter_manual`.
        TypeError: See :func:`enter_manual`.
    """
    named = as_mesh(mesh, "the mesh of a manual region")
    return crossing("leave_manual", x, named, dims, axes, "what leaves a manual region")


def crossing(
    operator: str,
    x: relax.Expr,
    mesh: Mesh,
    dims: Any,
    manual: Sequence[str],
    entity: str,
    type_: relax.TensorType | None = None,
) -> relax.Expr:
    """:func:`crossing_call` where a program is written."""
    x = emitted(x)
    mod = module_being_written()
    meshes = MeshTable(mod)
    call = crossing_call(meshes, operator, x, mesh, dims, manual, entity, type_)
    meshes.store_in_place(mod)
    return emitted(call)


def crossing_call(
    meshes: MeshTable,
    operator: str,
    x: relax.Expr,
    mesh: Mesh,
    dims: Any,
    manual: Sequence[str],
    entity: str,
    type_: relax.TensorType | None = None,
) -> relax.Call:
    """``R.dist.enter_manual`` or ``R.dist.leave_manual`` of a value, for a module with meshes.

    Args:
        meshes: Those of the module, which get the one that dims need.
        operator: One of these names.
        x: The value, on either side.
        mesh: The mesh that the region is entered from.
        dims: For each dimension the manual axes that cut it; None if none are cut.
        manual: All manual axes.
        entity: Name of the value in messages.
        type_: The type of the result, where its symbolic sizes say more than those of the value.

    Raises:
        ValueError: Dims do not fit the tensor, name an axis that is not manual, or are open.
        TypeError: Dims are no tuple.
    """
    known = known_type(x)
    mark = meshes.mark(entity, mesh, dims, _uncut(known))
    if mark.open or mark.priorities or mark.replicated:
        raise ValueError(f"{entity}: the dims of a manual region have axes only, got {dims!r}")
    entries = []
    if dims is not None:
        ndim = None if known is None else known.ndim
        read = read_dims(dims, mesh.axis_names, ndim)
        entries = [read_dim(entity, entry).axes for entry in read]
    for number, axes in enumerate(entries):
        for axis in axes:
            if axis not in manual:
                raise ValueError(
                    f"{entity} dimension {number}: axis {axis!r} stays automatic in this region, "
                    f"whose manual axes are {listed(manual)}; leave it out, propagation shards "
                    "along it"
                )
    order = mesh.ordered_for(*entries).axis_names
    attrs = {
        "device_mesh": mark.device_mesh,
        "placement": mark.placement,
        "manual_axes": sorted(order.index(name) for name in manual),
    }
    return _call(operator, x, attrs, [] if type_ is None else [type_])


def cuts(mesh: Mesh, dims: Any) -> list[tuple[int, int]]:
    """The dimensions that dims of a border cut, and into how many parts."""
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    found = []
    for number, entry in enumerate(dims if isinstance(dims, list | tuple) else ()):
        axes = read_dim("a manual region", entry).axes
        parts = math.prod(int(sizes.get(axis, 1)) for axis in axes)
        if parts > 1:
            found.append((number, parts))
    return found


def _uncut(type_: Any) -> Any:
    """A type of which only the number of dimensions is checked."""
    if isinstance(type_, relax.TensorType):
        return relax.TensorType(ndim=type_.ndim, dtype=type_.dtype)
    return type_


def collective(kind: str, x: relax.Expr, mesh: Mesh, axes: Sequence[str], **attrs: Any) -> Any:
    """:func:`collective_call` where a program is written."""
    mod = module_being_written()
    meshes = MeshTable(mod)
    call = collective_call(meshes, kind, x, mesh, axes, **attrs)
    meshes.store_in_place(mod)
    return emitted(call)


def collective_call(
    meshes: MeshTable, kind: str, x: relax.Expr, mesh: Mesh, axes: Sequence[str], **attrs: Any
) -> relax.Call:
    """``R.dist.manual_<kind>`` of a value, for a module with meshes.

    Args:
        meshes: Those of the module, which get ``mesh``.
        kind: Of the collective.
        x: A value of a region.
        mesh: The mesh of the region's devices.
        axes: The names of manual axes of it, major to minor.
        **attrs: What else the operator is told.
    """
    numbers = [mesh.axis_names.index(name) for name in axes]
    device_mesh = meshes.mark("a collective", mesh, None, None).device_mesh
    return _call(f"manual_{kind}", x, {"device_mesh": device_mesh, "axes": numbers, **attrs})


def _call(
    operator: str, x: relax.Expr, attrs: dict[str, Any], types: Sequence[Any] = ()
) -> relax.Call:
    node = tvm.ir.make_node("ir.DictAttrs", **attrs)
    return relax.Call(tvm.ir.Op.get(f"relax.dist.{operator}"), [x], node, list(types))
