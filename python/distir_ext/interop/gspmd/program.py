"""Annotates functions with GSPMD shardings, and reads GSPMD shardings from DTensor types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm

from distir_ext.annotate.annotations import relax_function
from distir_ext.interop.gspmd.common_mesh import common_mesh
from distir_ext.interop.gspmd.sharding import HloSharding
from distir_ext.interop.gspmd.text import parse
from distir_ext.interop.shardy.program import annotate_on, stated_dims
from distir_ext.mesh.mesh import Mesh, as_mesh
from distir_ext.structure.annotated_function import parameter_sites, result_sites
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def annotate(
    mod: tvm.IRModule,
    shardings: Mapping[str, HloSharding | str],
    mesh: Mesh | Any = None,
    func: str = "main",
    inputs: Sequence[str] | None = None,
) -> tvm.IRModule:
    """Annotates the values of a function with GSPMD's shardings.

    Args:
        mod: The module; it is not changed.
        shardings: From a pattern on names, as :func:`distir_ext.annotate` takes them, to a
            sharding or its text. A tuple has one for each field of a tuple parameter, or of the
            result, ``return``; its key is a name then. What is unknown is not annotated.
        mesh: The mesh whose axes the annotations name; by default :func:`common_mesh` of all
            shardings.
        func: The name of the function.
        inputs: As for :func:`distir_ext.annotate`.

    Raises:
        ValueError: A text is none, and the message says where; a sharding is manual, unreduced or
            in a group, does not lie along the axes of the mesh, or has another number of
            dimensions than the value; or as for :func:`distir_ext.annotate`.
        TypeError: A sharding is neither one nor a text; or as for :func:`distir_ext.annotate`.
    """
    if not isinstance(shardings, Mapping):
        raise TypeError(f"shardings are a mapping by name, not a {type(shardings).__name__}")
    read = {name: _read(name, each) for name, each in shardings.items()}
    flat = _fields(relax_function(mod, func), read)
    stated = {name: each for name, each in flat.items() if each.kind != "unknown"}
    if not stated:
        return mod
    chosen = common_mesh(stated.values()) if mesh is None else as_mesh(mesh, "the mesh")
    plan: dict[str, Any] = {}
    for name, each in stated.items():
        try:
            plan[name] = each.to_mesh_dims(chosen)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return annotate_on(mod, [chosen], plan, func, inputs)


@short_tracebacks
def shardings(mod: tvm.IRModule, func: str = "main") -> dict[str, HloSharding]:
    """The shardings of the parameters and the result of a function.

    Args:
        mod: An annotated or a propagated module.
        func: The name of the function.

    Returns:
        By name, as :func:`annotate` takes them: parameters, and ``return``; fields of tuples are
        ``weights.0``. What has no sharding is left out. Devices are the ids of the meshes.

    Raises:
        ValueError: The module has no such function; or an annotation has open dimensions or
            priorities, which GSPMD does not have.
    """
    found = {}
    for name, (mesh, dims) in stated_dims(mod, func).items():
        try:
            found[name] = HloSharding.from_mesh_dims(mesh, dims)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return found


def _read(name: str, sharding: HloSharding | str) -> HloSharding:
    if isinstance(sharding, HloSharding):
        return sharding
    try:
        return parse(sharding)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from error


def _fields(function: Any, shardings: Mapping[str, HloSharding]) -> dict[str, HloSharding]:
    """Flattens shardings of tuples to shardings by the names of the fields."""
    labels = [site.label for site in (*parameter_sites(function), *result_sites(function))]
    flat: dict[str, HloSharding] = {}
    for name, sharding in shardings.items():
        if sharding.kind != "tuple":
            flat[name] = sharding
            continue
        fields = [label for label in labels if label.startswith(f"{name}.")]
        if len(fields) != len(sharding.elements):
            raise ValueError(
                f"{name} has {len(fields)} fields, but its sharding is a tuple of "
                f"{len(sharding.elements)}"
            )
        flat.update(zip(fields, sharding.elements, strict=True))
    return flat
