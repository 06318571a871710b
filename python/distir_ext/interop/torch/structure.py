"""States the plan ``"tp"`` of a torch model, found by :mod:`distir_ext.annotate.structure`."""

from __future__ import annotations

from distir_ext.annotate.axes import Axes
from distir_ext.annotate.structure import find_structure
from distir_ext.interop.torch.importer import ImportedModel
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Statements


def state_structure(names: ModelNames, imported: ImportedModel, axes: Axes, to: Statements) -> None:
    """Shards products by columns and rows, and the largest table by rows.

    Args:
        names: Of the model.
        imported: The model in Relax.
        axes: The mesh.
        to: Gets it, and what was not sharded and why.
    """
    axis = axes.need("tp")
    found = find_structure(
        imported.mod["main"], axes.size(axis), axis, lambda name: imported.names.get(name, name)
    )
    to.notes += found.notes
    for exported, (dim, reason) in found.dims.items():
        name = imported.names[exported]
        to.shard(axes, name, names.parameters[name], dim, axis, reason)
