"""The Shardy shardings of a StableHLO module, in the words of plans: a mesh, and dims."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from tvm.relax.distributed import DeviceMesh

from distir_ext.interop import shardy
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    nested_operations,
    operations_of,
)
from distir_ext.interop.shardy.mesh_dims import mesh_of
from distir_ext.interop.shardy.program import without_names
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
        self._parts: dict[shardy.LogicalMesh, list[shardy.Sharding]] = {}
        for attribute in _stated(module):
            self._note_parts(shardy.parse(str(attribute)))

    def _note_parts(self, sharding: shardy.Sharding) -> None:
        """Notes a sharding by parts of axes, if it is one: the mesh is cut alike for all values."""
        if all(ref.size is None for ref in sharding.refs()):
            return
        try:
            mesh = mesh_of(sharding, self._meshes)
            self._parts.setdefault(mesh, []).append(sharding.on(mesh))
        except ValueError:
            return  # said where the value is read

    def read(self, attribute: Any) -> tuple[Mesh, Mesh | DeviceMesh, tuple[Any, ...]] | None:
        """The mesh and the dims of an ``sdy.sharding``.

        Returns:
            The mesh of the module; the mesh with axes in parts, without names, if any value is
            sharded by parts, or else the same; and the dims on this. None if the sharding says
            nothing: it leaves all dimensions open, or its mesh has no axes.

        Raises:
            UnsupportedError: It names no mesh of the module, or unreduced axes.
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
            logical = mesh_of(sharding, self._meshes)
            parts = self._parts.get(logical, [])
            mesh, dims = shardy.to_mesh_dims(sharding, self._meshes, parts)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
        base = logical.to_mesh()
        if mesh == base:
            return base, base, dims
        meshes = [each.to_mesh() for each in self._meshes.values() if each.axes]
        names = {(each.shape, each.device_ids): each.axis_names for each in meshes}
        return base, *without_names(mesh, dims, names)


def _stated(module: Any) -> Iterator[Any]:
    """All shardings of values that a module states."""
    for op in nested_operations(module.operation):
        yield from results_shardings(op) or ()
        if op.name == "sdy.sharding_constraint":
            yield op.attributes["sharding"]
        for kind in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and kind in op.attributes:
                count = len(ir.ArrayAttr(op.attributes[kind]))
                found = (argument_sharding(op, kind, index) for index in range(count))
                yield from (each for each in found if each is not None)


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
