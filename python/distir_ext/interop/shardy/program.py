"""Annotates functions with Shardy shardings, and reads Shardy shardings from DTensor types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm.relax.distributed import DTensorType

from distir_ext.annotate.annotations import Mark, MeshTable, relax_function
from distir_ext.annotate.patterns import annotate as annotate_by_plan
from distir_ext.interop.shardy.mesh_dims import from_mesh_dims, mesh_of, to_mesh_dims
from distir_ext.interop.shardy.model import LogicalMesh, Sharding
from distir_ext.interop.shardy.text import parse
from distir_ext.mesh.dims import Dim, TensorDims, read_dim, replicated_axes, short_entry
from distir_ext.mesh.mesh import Mesh
from distir_ext.mesh.notation import Notation
from distir_ext.structure.annotated_function import (
    annotated_already,
    parameter_sites,
    result_sites,
)
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def annotate(
    mod: tvm.IRModule,
    shardings: Mapping[str, Sharding | str],
    mesh: Mesh | LogicalMesh | Mapping[str, Any] | Any = None,
    func: str = "main",
    inputs: Sequence[str] | None = None,
) -> tvm.IRModule:
    """Annotates the values of a function with Shardy's shardings.

    Args:
        mod: The module; it is not changed.
        shardings: From a pattern on names, as :func:`distir_ext.annotate` takes them, to a
            sharding or its text.
        mesh: The mesh that they name, or meshes by their names; not needed where meshes are
            written into the shardings.
        func: The name of the function.
        inputs: As for :func:`distir_ext.annotate`.

    Raises:
        ValueError: A text is none, and the message says where; a sharding is unreduced, or its
            mesh is missing or has no such axes; or as for :func:`distir_ext.annotate`.
        TypeError: A sharding is neither one nor a text; or as for :func:`distir_ext.annotate`.
    """
    if not isinstance(shardings, Mapping):
        raise TypeError(f"shardings are a mapping by name, not a {type(shardings).__name__}")
    plan: dict[str, Any] = {}
    bases: dict[Mesh, None] = {}  # a set that keeps its order
    for name, each in shardings.items():
        try:
            sharding = each if isinstance(each, Sharding) else parse(each)
            plan[name] = to_mesh_dims(sharding, mesh)
            bases[mesh_of(sharding, mesh).to_mesh()] = None
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        except TypeError as error:
            raise TypeError(f"{name}: {error}") from error
    return annotate_on(mod, list(bases), plan, func, inputs)


def annotate_on(
    mod: tvm.IRModule,
    bases: Sequence[Mesh],
    plan: Mapping[str, tuple[Mesh, Any]],
    func: str,
    inputs: Sequence[str] | None,
) -> tvm.IRModule:
    """Annotates by a plan whose meshes may have axes of others in parts.

    Args:
        mod: The module; it is not changed.
        bases: The meshes without cuts. The module has them first, and the others as views of them
            that have no names of their own, so that parts of axes are said as ``"y:(1)2"``.
        plan: From pattern to a mesh and dims.
        func: As for :func:`annotate`.
        inputs: As for :func:`annotate`.
    """
    if not plan:
        return mod
    entries: dict[str, Any] = dict(plan)
    if any(mesh not in bases for mesh, _ in plan.values()):
        table = MeshTable(mod)
        for base in bases:
            table.mark("the mesh", base, None, None)
        mod = table.store(mod)
        for name, (mesh, dims) in plan.items():
            if mesh not in bases and dims is not None:
                entries[name] = without_names(mesh, dims, table)
    return annotate_by_plan(mod, bases[0], entries, func, inputs)


def without_names(mesh: Mesh, dims: Any, table: MeshTable) -> tuple[Any, Any]:
    """TVM's form of a mesh, and dims with the names that its axes have in a module then."""
    names = dict(zip(mesh.axis_names, table.names_of(mesh), strict=True))
    stated = [read_dim("", entry) for entry in dims]
    entries = [
        Dim(*(names[axis] for axis in dim.axes), open=dim.open, priority=dim.priority)
        for dim in stated
    ]
    replicated = [names[axis] for axis in replicated_axes(dims)]
    return mesh.device_mesh, TensorDims(*map(short_entry, entries), replicated=replicated)


@short_tracebacks
def shardings(
    mod: tvm.IRModule, func: str = "main"
) -> tuple[dict[str, LogicalMesh], dict[str, Sharding]]:
    """The shardings of the parameters and the result of a function.

    Args:
        mod: An annotated or a propagated module.
        func: The name of the function.

    Returns:
        Meshes by name, ``mesh``, ``mesh_1`` and so on; and by the names of values, as
        :func:`annotate` takes them, shardings on these: parameters, and ``return``; fields of
        tuples are ``weights.0``. What has no sharding is left out.

    Raises:
        ValueError: The module has no such function, or a mesh has device ids that Shardy has not.
    """
    names: dict[LogicalMesh, str] = {}
    found = {}
    for value, (mesh, dims) in stated_dims(mod, func).items():
        logical = LogicalMesh.from_mesh(mesh)
        name = names.setdefault(logical, f"mesh_{len(names)}" if names else "mesh")
        try:
            logical.body()  # refuses meshes that Shardy does not have
            found[value] = from_mesh_dims(mesh, dims, name)
        except ValueError as error:
            raise ValueError(f"{value}: {error}") from error
    return {name: mesh for mesh, name in names.items()}, found


def stated_dims(mod: tvm.IRModule, func: str) -> dict[str, tuple[Mesh, tuple[Any, ...]]]:
    """The mesh and the dims of parameters and of the result, by the names of plans."""
    function = relax_function(mod, func)
    notation = Notation(mod)
    annotations = annotated_already(function)
    found: dict[str, tuple[Mesh, tuple[Any, ...]]] = {}
    for site, type_ in {**parameter_sites(function), **result_sites(function)}.items():
        if isinstance(type_, DTensorType):
            found[site.label] = notation.mesh(type_), notation.dims(type_)
        elif site in annotations:
            mark = Mark.of(annotations[site])
            mesh = notation.mesh(mark.type_of(type_))
            found[site.label] = mesh, mark.dims(notation, type_)
    return found
