"""The Shardy shardings of a StableHLO module, in the words of plans: a mesh, and dims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy
from tvm.relax.distributed import DeviceMesh

from distir_ext._manual.regions import Region, listed, region_within
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

# What operations of sdy state shardings by.
_OF_ONE = ("sharding", "out_sharding")
_OF_SEVERAL = ("in_shardings", "out_shardings", "sdy.sharding")


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
        self._parsed: dict[str, shardy.Sharding] = {}
        self._parts: dict[shardy.LogicalMesh, list[shardy.Sharding]] = {}
        for attribute in _stated(module):
            self._note_parts(self._parse(attribute))

    def _parse(self, attribute: Any) -> shardy.Sharding:
        """The sharding of an attribute, or of its text: many values have the same."""
        text = str(attribute)
        if text not in self._parsed:
            self._parsed[text] = shardy.parse(text)
        return self._parsed[text]

    def _note_parts(self, sharding: shardy.Sharding) -> None:
        """Notes a sharding by parts of axes, if it is one: the mesh is cut alike for all values."""
        if all(ref.size is None for ref in sharding.refs()):
            return
        try:
            mesh = mesh_of(sharding, self._meshes)
            self._parts.setdefault(mesh, []).append(sharding.on(mesh))
        except ValueError:
            return  # said where the value is read

    def read(
        self, attribute: Any, region: Region | None = None
    ) -> tuple[Mesh, Mesh | DeviceMesh, tuple[Any, ...]] | None:
        """The mesh and the dims of an ``sdy.sharding``.

        Args:
            attribute: The sharding, or its text.
            region: The manual region that the value is in: the mesh is that of the axes that stay
                automatic there.

        Returns:
            The mesh of the module; the mesh with axes in parts, without names, if any value is
            sharded by parts, or else the same; and the dims on this. None if the sharding says
            nothing: it leaves all dimensions open, or its mesh has no axes.

        Raises:
            UnsupportedError: It names no mesh of the module, or unreduced axes.
        """
        sharding = self._parse(attribute)
        if isinstance(sharding.mesh, str):
            known = self._meshes.get(sharding.mesh)
            if known is not None and not known.axes and not known.is_maximal:
                return None
        if _says_nothing(sharding) or (region is not None and not sharding.dims):
            return None
        try:
            logical = mesh_of(sharding, self._meshes)
            parts = self._parts.get(logical, [])
            if region is not None:
                _check_automatic(sharding, logical, region)
                if region.inner is None:
                    return None
                sharding, *parts = (_within(each, region) for each in (sharding, *parts))
                logical = mesh_of(sharding)
                if _says_nothing(sharding):
                    return None
            mesh, dims = shardy.to_mesh_dims(sharding, self._meshes, parts)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
        base = logical.to_mesh()
        if mesh == base:
            return base, base, dims
        meshes = [each.to_mesh() for each in self._meshes.values() if each.axes]
        names = {(each.shape, each.device_ids): each.axis_names for each in meshes}
        return base, *without_names(mesh, dims, names)

    def region(
        self, around: Region | None, shardings: Sequence[Any], axes: Sequence[str]
    ) -> Region | None:
        """The manual region over axes of the mesh of shardings; None where they are on none.

        Args:
            around: The region that it stands in.
            shardings: Of what enters and leaves.
            axes: The names of its manual axes.

        Raises:
            UnsupportedError: The mesh has no such axis, or it is manual around it; or it is not
                the mesh around it.
        """
        try:
            meshes = [mesh_of(self._parse(each), self._meshes) for each in shardings]
            named = next((each for each in meshes if each.axes), None)
            return None if named is None else region_within(around, named.to_mesh(), axes)
        except ValueError as error:
            raise UnsupportedError(f"cannot be: {error}") from error

    def cuts(self, attribute: Any, region: Region) -> tuple[tuple[str, ...], ...]:
        """The manual axes that cut each dimension of what enters or leaves a region.

        Raises:
            UnsupportedError: They are parts of axes, or stand behind axes that stay automatic.
        """
        sharding = self._parse(attribute)
        if sharding.unreduced:
            raise UnsupportedError(
                f"gives or returns a value that is unreduced over "
                f"{', '.join(map(str, sharding.unreduced))}"
            )
        cuts = []
        for dim, each in enumerate(sharding.dims):
            manual = [ref for ref in each.axes if ref.name in region.entered]
            if (
                any(ref.size is not None for ref in manual)
                or manual != list(each.axes)[: len(manual)]
            ):
                raise UnsupportedError(
                    f"cuts dimension {dim} by {each}; whole axes, of its manual ones "
                    f"{listed(region.entered)}, come first"
                )
            cuts.append(tuple(ref.name for ref in manual))
        return tuple(cuts)

    def behind(self, attribute: Any, region: Region) -> shardy.Sharding:
        """What a sharding of :meth:`cuts` says of the axes that stay automatic."""
        sharding = self._parse(attribute)
        dims = tuple(
            replace(dim, axes=tuple(ref for ref in dim.axes if ref.name not in region.entered))
            for dim in sharding.dims
        )
        return replace(sharding, dims=dims)


def _says_nothing(sharding: shardy.Sharding) -> bool:
    is_open = all(dim.open and not dim.axes for dim in sharding.dims)
    return bool(sharding.dims) and is_open and not sharding.replicated


def _check_automatic(
    sharding: shardy.Sharding, logical: shardy.LogicalMesh, region: Region
) -> None:
    """A value in a region is sharded by axes that stay automatic there.

    Raises:
        ValueError: By others, or on another mesh.
    """
    if logical.to_mesh() != region.mesh:
        raise ValueError(f"its mesh is not {region.mesh!r}, that of the manual computation")
    for ref in (ref for dim in sharding.dims for ref in dim.axes):
        if ref.name in region.manual:
            raise ValueError(f"axis {ref.name!r} is manual in this computation")


def _within(sharding: shardy.Sharding, region: Region) -> shardy.Sharding:
    """The same on the mesh of the axes that stay automatic in a region, by these alone."""
    assert region.inner is not None
    names, shape = region.inner.axis_names, region.inner.shape
    inner = shardy.LogicalMesh(tuple(zip(names, shape, strict=True)), region.inner.device_ids)

    def kept(refs: Sequence[shardy.AxisRef]) -> tuple[shardy.AxisRef, ...]:
        return tuple(ref for ref in refs if ref.name in names)

    dims = tuple(replace(dim, axes=kept(dim.axes)) for dim in sharding.dims)
    return replace(sharding, mesh=inner, dims=dims, replicated=kept(sharding.replicated))


def _stated(module: Any) -> Iterator[Any]:
    """All shardings of values that a module states."""
    for op in nested_operations(module.operation):
        yield from results_shardings(op) or ()
        if op.name.startswith("sdy."):
            yield from (op.attributes[each] for each in _OF_ONE if each in op.attributes)
            for name in (each for each in _OF_SEVERAL if each in op.attributes):
                yield from per_value(op, name)
        for kind in ("arg_attrs", "res_attrs"):
            if op.name == "func.func" and kind in op.attributes:
                count = len(ir.ArrayAttr(op.attributes[kind]))
                found = (argument_sharding(op, kind, index) for index in range(count))
                yield from (each for each in found if each is not None)


def results_shardings(op: Operation) -> list[Any] | None:
    """The shardings that an operation states of its results; None if it states none."""
    if op.name.startswith("sdy.") or "sdy.sharding" not in op.attributes:
        return None
    return per_value(op, "sdy.sharding")


def per_value(op: Operation, name: str) -> list[Any]:
    """An attribute that lists shardings."""
    return list(sdy.TensorShardingPerValueAttr(op.attributes[name]).shardings)


def manual_axes(op: Operation) -> list[str]:
    """The names of the axes that are manual in a manual computation."""
    axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return [axes[index] for index in range(len(axes))]


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
