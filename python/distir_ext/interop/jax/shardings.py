"""The Shardy shardings of a StableHLO module, in the words of plans: a mesh, and dims."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from distir_ext.interop import shardy
from distir_ext.interop.jax.stablehlo import Operation, UnsupportedError, operations_of
from distir_ext.mesh import Mesh


class Shardings:
    """The meshes of a StableHLO module.

    Args:
        module: An ``ir.Module``.

    Raises:
        ValueError: A mesh is none that :class:`distir_ext.Mesh` can be.
    """

    def __init__(self, module: Any) -> None:
        self._meshes: dict[str, shardy.LogicalMesh] = {}
        for op in operations_of(module.body):
            if op.name == "sdy.mesh":
                name = ir.StringAttr(op.attributes["sym_name"]).value
                self._meshes[name] = shardy.parse_mesh(str(op.attributes["mesh"]))

    def read(self, attribute: Any) -> tuple[Mesh, tuple[Any, ...]] | None:
        """The mesh and the dims of an ``sdy.sharding``.

        Returns:
            None if it says nothing: it leaves all dimensions open, or its mesh has no axes.

        Raises:
            UnsupportedError: It names no mesh of the module, parts of axes, or unreduced axes.
        """
        sharding = shardy.parse(str(attribute))
        if isinstance(sharding.mesh, str):
            known = self._meshes.get(sharding.mesh)
            if known is not None and not known.axes and not known.is_maximal:
                return None
        says_nothing = all(dim.open and not dim.axes for dim in sharding.dims)
        if sharding.dims and says_nothing and not sharding.replicated:
            return None
        try:
            mesh, dims = shardy.to_mesh_dims(sharding, self._meshes)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
        parts = [name for name in mesh.axis_names if ":(" in name]
        if parts:
            raise UnsupportedError(
                f"has the sharding {sharding} by {parts[0]}, a part of an axis; state the mesh "
                "with that axis as two"
            )
        return mesh, dims


def results_shardings(op: Operation) -> list[Any] | None:
    """The shardings that an operation states of its results; None if it states none."""
    if op.name.startswith("sdy.") or "sdy.sharding" not in op.attributes:
        return None
    return list(sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"]).shardings)


def argument_sharding(function: Operation, kind: str, index: int) -> Any | None:
    """The sharding of an argument or result of a function.

    Args:
        function: The function.
        kind: "arg_attrs" or "res_attrs".
        index: Which of them.
    """
    if kind not in function.attributes:
        return None
    attributes = ir.ArrayAttr(function.attributes[kind])[index]
    return attributes["sdy.sharding"] if "sdy.sharding" in attributes else None  # noqa: SIM401
