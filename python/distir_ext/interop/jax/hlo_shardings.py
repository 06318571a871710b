"""Converts GSPMD's ``mhlo.sharding`` attributes in a StableHLO module to Shardy's shardings.

HLO's texts name devices, not axes of a mesh. So there is one mesh for all texts of a module: one
that the module or the user names, if all of them lie along its axes, or else the smallest that they
have in common::

    %arg0 {mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"}

is ``<mesh<["x"=2, "y"=4]>, [{"y"}, {}]>``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir

from distir_ext.interop import gspmd, shardy
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    attributes_of_values,
    frontend_text,
    nested_operations,
    rank_of_type,
    target_of,
    text,
)
from distir_ext.mesh.mesh import Mesh

HLO_SHARDING = "mhlo.sharding"
SHARDING = "Sharding"
TO_SHARD = "SPMDFullToShardShape"
TO_FULL = "SPMDShardToFullShape"
OF_RESULT = "xla.sdy.FuncResultSharding"
TARGETS = (SHARDING, TO_SHARD, TO_FULL, OF_RESULT)
"""Custom calls that only state shardings."""

_OPEN_DIMS = re.compile(r"unspecified_dims=\[(\d+(?:,\d+)*)\]")
_PARTITIONED = ("mhlo.spmd_parameters_shardings", "mhlo.spmd_output_sharding")


@dataclass(frozen=True)
class HloStated:
    """Sharding that a text of HLO states for one tensor.

    Attributes:
        text: The text.
        rank: Dimensions of the tensor.
        open: The dimensions that the text leaves to propagation, ``unspecified_dims``.
        element: Index of the sharding in a tuple; None if it is not of a tuple.
    """

    text: str
    rank: int
    open: tuple[int, ...] = ()
    element: int | None = None

    def parsed(self) -> gspmd.HloSharding:
        """The sharding.

        Raises:
            ValueError: The text is none, or the tuple has no such element.
        """
        found = gspmd.parse(self.text)
        if found.kind != "tuple":
            return found
        if self.element is None or self.element >= len(found.elements):
            raise ValueError(
                f"{self.text} is a tuple of {len(found.elements)}, which the operation has not"
            )
        return found.elements[self.element]


class HloShardings:
    """The texts of a module, on one mesh.

    Args:
        module: An ``ir.Module``.
        meshes: Those that the module names.
        wanted: The mesh whose axes the user wants.

    Attributes:
        mesh: The mesh; None if no text names devices.
        on_mesh: The shardings that name devices, on it.
        has_manual: Whether a text says of a value that it is in a manual region.

    Raises:
        ValueError: They are on no mesh, or on one of fewer or more devices than the module says; or
            the module is partitioned already.
    """

    def __init__(
        self, module: Any, meshes: Iterable[shardy.LogicalMesh], wanted: Mesh | None
    ) -> None:
        self.mesh: shardy.LogicalMesh | None = None
        self.on_mesh: list[shardy.Sharding] = []
        self.has_manual = False
        _check_unpartitioned(module)
        texts = list(dict.fromkeys(_texts(module)))
        if not texts:
            return
        self.has_manual = any("manual" in each for each in texts)
        leaves = list(_naming_devices(texts))
        tiled = [each for each in leaves if each.kind == "tiled"]
        # Named shardings, of HLO's third version, have the axes of a mesh written in.
        named = [each.named.mesh for each in leaves if each.named is not None]
        known = [*meshes, *(each for each in named if isinstance(each, shardy.LogicalMesh))]
        try:
            self.mesh = _mesh_of(module, tiled, known, wanted)
        except ValueError as error:
            raise ValueError(f"the shardings of the module are on no mesh: {error}") from error
        if self.mesh is not None:
            self.on_mesh = [found for each in tiled if (found := _on(each, self.mesh)) is not None]

    def sharding(self, stated: HloStated) -> shardy.Sharding:
        """Converts a stated sharding to Shardy's, with the mesh written in.

        Raises:
            ValueError: It is no sharding of such a tensor, or not on the mesh of the others.
        """
        found = replace(stated.parsed(), shard_group=None)
        if found.kind in ("manual", "unreduced") and self.mesh is None:
            raise ValueError(f"{found} is over all devices, and the module does not say which")
        is_named = found.kind == "named"
        mesh = None if self.mesh is None or is_named else self.mesh.to_mesh()
        sharding = found.to_shardy(mesh, None if found.kind == "maximal" else stated.rank)
        beyond = [number for number in stated.open if number >= stated.rank]
        if beyond:
            raise ValueError(f"dimension {beyond[0]} is unspecified, of {stated.rank}")
        dims = tuple(
            replace(dim, open=True) if number in stated.open else dim
            for number, dim in enumerate(sharding.dims)
        )
        return replace(sharding, dims=dims)


def only_states(op: Operation) -> bool:
    """Returns whether an operation only states a sharding of its operand."""
    if op.name == "sdy.sharding_constraint":
        return True
    return target_of(op) == SHARDING


def source_of(value: Value) -> Value:
    """The value that operations which only state a sharding give on as this one."""
    while not isinstance(value.owner, ir.Block) and only_states(value.owner):
        value = value.owner.operands[0]
    return value


def constrained_to(op: Operation) -> Iterator[HloStated]:
    """Yields the shardings that calls of ``@Sharding`` state for an operation's results."""
    if target_of(op) in TARGETS:
        return
    for use in (use for result in op.results for use in result.uses):
        user = use.owner.operation
        if only_states(user):
            yield from stated_by(user) or ()


def group_of(stated: Any) -> int | None:
    """The number of a value's sharding group, ``shard_as`` or ``shard_like``; None without one."""
    if not isinstance(stated, HloStated) or "shard_" not in stated.text:
        return None
    group = stated.parsed().shard_group
    return None if group is None else group.number


def stated_by(op: Operation) -> list[HloStated] | None:
    """Reads the shardings that an operation, or a call of ``@Sharding``, states for its results.

    Returns:
        None if it states nothing.

    Raises:
        UnsupportedError: It leaves dimensions open in words that are not known.
    """
    words = hlo_text(op.attributes)
    if words is None:
        return None
    is_call = target_of(op) in TARGETS
    is_tuple = len(op.results) != 1 or words.replace(" ", "").startswith("{{")
    return [
        HloStated(
            words,
            rank_of_type(result.type),
            _open_dims(op) if is_call else (),
            index if is_tuple else None,
        )
        for index, result in enumerate(op.results)
    ]


def hlo_text(attributes: Any) -> str | None:
    """The text among some attributes, or among their frontend attributes; None without one."""
    if HLO_SHARDING in attributes:
        return str(ir.StringAttr(attributes[HLO_SHARDING]).value)
    return frontend_text(attributes, HLO_SHARDING)


def _texts(module: Any) -> Iterator[str]:
    """All texts of a module."""
    for op in nested_operations(module.operation):
        texts = map(hlo_text, (op.attributes, *attributes_of_values(op)))
        yield from (each for each in texts if each is not None)


def _naming_devices(texts: Iterable[str]) -> Iterator[gspmd.HloSharding]:
    """The shardings that cut a mesh; what is wrong with a text is said where it is read."""
    for each in texts:
        try:
            sharding = gspmd.parse(each)
        except ValueError:
            continue
        for leaf in sharding.elements if sharding.kind == "tuple" else (sharding,):
            if leaf.kind in ("tiled", "named"):
                yield replace(leaf, shard_group=None)


def _open_dims(op: Operation) -> tuple[int, ...]:
    if "backend_config" not in op.attributes:
        return ()
    try:
        words = text(op, "backend_config").replace(" ", "")
    except (TypeError, ValueError):
        words = str(op.attributes["backend_config"])
    found = _OPEN_DIMS.fullmatch(words)
    if words and found is None:
        raise UnsupportedError(f"has the backend_config {words!r}, which says no unspecified_dims")
    return tuple(map(int, found[1].split(","))) if found else ()


def _check_unpartitioned(module: Any) -> None:
    """Raises an error if GSPMD has partitioned a module: its values are those of one device."""
    for name in _PARTITIONED:
        if name in module.operation.attributes:
            raise ValueError(
                f"the module states {name}: GSPMD has partitioned it already, for one device each"
            )


def _mesh_of(
    module: Any,
    leaves: list[gspmd.HloSharding],
    meshes: Iterable[shardy.LogicalMesh],
    wanted: Mesh | None,
) -> shardy.LogicalMesh | None:
    """The mesh for all shardings of a module.

    Raises:
        ValueError: There is none, or it has more or fewer devices than the module has partitions.
    """
    if wanted is not None:
        return shardy.LogicalMesh.from_mesh(wanted)
    partitions = _partitions(module)
    for mesh in meshes:
        if leaves and mesh.axes and all(_on(each, mesh) is not None for each in leaves):
            return mesh
    if leaves:
        found = gspmd.common_mesh(leaves)
    elif partitions > 1:
        found = Mesh((partitions,), ("x",))
    else:
        return None
    if partitions > 1 and found.size != partitions:
        raise ValueError(
            f"the module has mhlo.num_partitions = {partitions}, but its shardings have "
            f"{found.size} devices"
        )
    return shardy.LogicalMesh.from_mesh(found)


def _partitions(module: Any) -> int:
    attributes = module.operation.attributes
    name = "mhlo.num_partitions"
    return int(ir.IntegerAttr(attributes[name]).value) if name in attributes else 1


def _on(sharding: gspmd.HloSharding, mesh: shardy.LogicalMesh) -> shardy.Sharding | None:
    """Converts a sharding to a mesh; None if it does not fit its axes."""
    try:
        return sharding.to_shardy(mesh.to_mesh())
    except ValueError:
        return None
