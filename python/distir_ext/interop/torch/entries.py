"""Converts a plan's statements about a model to a plan of :func:`distir_ext.annotate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.named_plans import batch_of
from distir_ext.interop.torch.importer import ImportedModel
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Layout, Statements
from distir_ext.mesh.dims import TensorDims
from distir_ext.structure.annotated_function import bindings_of


def entries(
    names: ModelNames, imported: ImportedModel, stated: Statements, axes: Axes, kind: str
) -> dict[str, Any]:
    """Returns stated shardings by the names of parameters and variables in the module.

    Args:
        names: Of the model.
        imported: The model in Relax.
        stated: Statements of the plan; gets notes.
        axes: The mesh.
        kind: Of the plan; further axes shard the batch, unless it has dims of its own.
    """
    result = {**_parameters(names, imported, stated), **_values(imported, stated)}
    if not stated.entries:
        result.update(_batch(imported, axes, kind, result, stated))
    return {**result, **stated.entries}


def _parameters(names: ModelNames, imported: ImportedModel, stated: Statements) -> dict[str, Any]:
    """Dims by exported name; tied parameters have one name here, and maybe another in the plan."""
    by_tensor = {id(names.parameters[name]): dims for name, dims in stated.parameters.items()}
    found = {}
    for exported, name in imported.names.items():
        if name in stated.parameters:
            found[exported] = stated.parameters[name]
        elif id(names.parameters[name]) in by_tensor:
            found[exported] = by_tensor[id(names.parameters[name])]
    return found


def _values(imported: ImportedModel, stated: Statements) -> dict[str, Any]:
    function = imported.mod["main"]
    ranks = {
        str(binding.var.name): int(binding.var.ty.ndim)
        for binding in bindings_of(function.body)
        if isinstance(binding.var.ty, relax.TensorType)
    }
    results = _same_as_result(function)
    found = {}
    for value, layouts in stated.values.items():
        for number, variables in enumerate(imported.variables[value]):
            layout = layouts[number % len(layouts)]  # a module may be called several times
            for variable in variables:
                if layout.dim is None and variable in results:
                    stated.notes.append(
                        f"{value.label}: not gathered, as it is the result, whose shards are put "
                        "together for the caller"
                    )
                    continue
                found[variable] = _dims(layout, ranks[variable], value.label)
    return found


def _same_as_result(function: relax.Function) -> set[str]:
    """The variables that are another name of a result."""
    bound = {binding.var: binding.value for binding in bindings_of(function.body)}
    results: set[str] = set()
    pending = [function.body.body]
    while pending:
        value = pending.pop()
        if isinstance(value, relax.Tuple):
            pending.extend(value.fields)
        elif isinstance(value, relax.Var):
            results.add(str(value.name))
            if value in bound:
                pending.append(bound[value])
    return results


def _dims(layout: Layout, rank: int, label: str) -> TensorDims:
    if layout.dim is None:
        return TensorDims(*[...] * rank, replicated=(layout.axis,))
    if not -rank <= layout.dim < rank:
        raise ValueError(
            f"the plan shards dimension {layout.dim} of {label}, which has {rank} dimensions"
        )
    dims: list[Any] = [...] * rank
    dims[layout.dim % rank] = (layout.axis, ...)
    return TensorDims(*dims)


def _batch(
    imported: ImportedModel, axes: Axes, kind: str, given: Mapping[str, Any], stated: Statements
) -> dict[str, Any]:
    """Dims of the inputs that have the batch of the first one."""
    axis = axes.need("fsdp") if kind == "fsdp" else axes.find("batch")
    used = {name for dims in given.values() for entry in dims or () for name in _axes_of(entry)}
    if axis is None or (kind != "fsdp" and axis in used):
        return {}
    params = imported.mod["main"].params[: len(imported.inputs)]
    found, notes = batch_of(params, axes.size(axis), axis)
    stated.notes += notes
    return found


def _axes_of(entry: Any) -> tuple[str, ...]:
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, tuple | list):
        return tuple(each for each in entry if isinstance(each, str))
    return tuple(getattr(entry, "axes", ()))
