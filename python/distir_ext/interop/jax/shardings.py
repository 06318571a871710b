"""Converts Shardy's shardings in a StableHLO module to meshes and dims of this package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from distir_ext.annotate.open_regions import Region, listed, region_within
from distir_ext.interop import shardy
from distir_ext.interop.jax.hlo_shardings import (
    HLO_SHARDING,
    HloShardings,
    HloStated,
    hlo_text,
    stated_by,
)
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    attributes_of_values,
    frontend_text,
    nested_operations,
    operations_of,
    rank_of_type,
)
from distir_ext.interop.shardy.mesh_dims import mesh_of
from distir_ext.mesh.mesh import Mesh

_SDY = "sdy.sharding"
FRONTEND_SHARDING = "xla.sdy.sharding"
FRONTEND_MESHES = "xla.sdy.meshes"

# Attributes of sdy operations that state shardings.
_OF_ONE = ("sharding", "out_sharding")
_OF_SEVERAL = ("in_shardings", "out_shardings")


class Shardings:
    """The meshes of a StableHLO module, and the shardings on them.

    Args:
        module: An ``ir.Module``.
        wanted: The mesh whose axes stand for the devices that GSPMD's texts list.

    Raises:
        ValueError: A mesh is none that :class:`distir_ext.Mesh` can be, or GSPMD's shardings are on
            none (:class:`HloShardings`).
    """

    def __init__(self, module: Any, wanted: Mesh | None = None) -> None:
        self._meshes: dict[str, shardy.LogicalMesh] = {}
        for op in operations_of(module.body):
            if op.name == "sdy.mesh":
                name = ir.StringAttr(op.attributes["sym_name"]).value
                self._meshes[name] = shardy.parse_mesh(str(op.attributes["mesh"]))
        listed_meshes = frontend_text(module.operation.attributes, FRONTEND_MESHES)
        if listed_meshes is not None:
            for each in ir.DictAttr(ir.Attribute.parse(listed_meshes, module.context)):
                self._meshes[each.name] = shardy.parse_mesh(str(each.attr))
        self._hlo = HloShardings(module, self._meshes.values(), wanted)
        self._parsed: dict[Any, shardy.Sharding] = {}
        self._parts: dict[shardy.LogicalMesh, list[shardy.Sharding]] = {}
        self._used: dict[shardy.LogicalMesh, None] = {}  # a set that keeps its order
        for attribute in _stated(module):
            self._note(self._parse(attribute))
        for sharding in self._hlo.on_mesh:
            self._note(sharding)
        if self._hlo.mesh is not None:
            self._used[self._hlo.mesh] = None

    def _parse(self, attribute: Any) -> shardy.Sharding:
        """The sharding of an attribute, or of its text: many values have the same."""
        key = attribute if isinstance(attribute, HloStated) else str(attribute)
        if key not in self._parsed:
            if isinstance(key, HloStated):
                self._parsed[key] = self._hlo.sharding(key)
            else:
                self._parsed[key] = shardy.parse(key)
        return self._parsed[key]

    def _note(self, sharding: shardy.Sharding) -> None:
        """Notes the mesh of a sharding, and its parts of axes: all values cut the mesh alike."""
        try:
            mesh = mesh_of(sharding, self._meshes)
            if mesh.axes:
                self._used[mesh] = None
            if any(ref.size is not None for ref in sharding.refs()):
                self._parts.setdefault(mesh, []).append(sharding.on(mesh))
        except ValueError:
            return  # said where the value is read

    def read(
        self, attribute: Any, region: Region | None = None
    ) -> tuple[Mesh, Mesh, tuple[Any, ...] | None] | None:
        """The mesh and the dims of a sharding.

        Args:
            attribute: An ``sdy.sharding``, or its text; or what a text of HLO states.
            region: The manual region that the value is in: the mesh is that of the axes that stay
                automatic there.

        Returns:
            The mesh of the module; the mesh with axes in parts, if the value or others are sharded
            by parts that fit, or else the same; and the dims on this, None for replicated. None if
            the sharding says nothing: it leaves all dimensions open, or the module has no mesh with
            axes.

        Raises:
            UnsupportedError: It names no mesh of the module, or unreduced axes.
        """
        try:
            sharding = self._parse(attribute)
            logical = mesh_of(sharding, self._meshes)
            if _says_nothing(sharding):
                return None
            if not logical.size:
                common = self._any_mesh() if region is None else _logical(region.mesh)
                if common is None:
                    return None
                sharding, logical = replace(sharding, mesh=common), common
            parts = self._parts.get(logical, [])
            if region is not None:
                _check_automatic(sharding, logical, region)
                if region.inner is None or not sharding.dims:
                    return None
                sharding, *parts = (_within(each, region) for each in (sharding, *parts))
                logical = mesh_of(sharding)
                if _says_nothing(sharding):
                    return None
            mesh, dims = shardy.to_mesh_dims(sharding, self._meshes, parts)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
        return logical.to_mesh(), mesh, dims

    def _any_mesh(self) -> shardy.LogicalMesh | None:
        """The mesh on which a value stays replicated of which only that is said.

        Returns:
            None if no other value is sharded, and the module does not have one set of devices.

        Raises:
            ValueError: Other values are sharded over different devices.
        """
        meshes = list(self._used) or [each for each in self._meshes.values() if each.axes]
        if len({frozenset(each.device_ids or range(each.size)) for each in meshes}) > 1:
            if not self._used:
                return None
            raise ValueError(
                "the empty mesh does not say on which devices the value is replicated, and the "
                f"module has meshes over different ones: {', '.join(map(str, meshes))}"
            )
        return meshes[0] if meshes else None

    @property
    def has_manual_values(self) -> bool:
        """True if a text of HLO states that a value is in a manual region."""
        return self._hlo.has_manual

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

    def region_of(self, attribute: Any, around: Region | None) -> Region | None:
        """The manual region that a value is in by what is stated of it.

        Args:
            attribute: Attribute with its sharding as a text of HLO.
            around: The region that it stands in.

        Returns:
            None if no axis is manual that is not so around it.

        Raises:
            UnsupportedError: Parts of axes are manual; or axes of another mesh than around it.
        """
        try:
            sharding = self._parse(attribute)
            taken = () if around is None else around.manual
            refs = [ref for ref in sharding.manual if ref.name not in taken]
            if not refs:
                return None
            parts = [str(ref) for ref in refs if ref.size is not None]
            if parts:
                raise ValueError(f"{', '.join(parts)} is manual, which is part of an axis")
            mesh = mesh_of(sharding, self._meshes).to_mesh()
            return region_within(around, mesh, [ref.name for ref in refs])
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error

    def cuts(self, attribute: Any, region: Region) -> tuple[tuple[str, ...], ...]:
        """The manual axes that cut each dimension of what enters or leaves a region.

        Raises:
            UnsupportedError: They are parts of axes, or stand behind axes that stay automatic.
        """
        try:
            sharding = self._parse(attribute)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
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
        """Returns the part of a sharding of :meth:`cuts` that is on the automatic axes."""
        sharding = self._parse(attribute)

        def kept(refs: Sequence[shardy.AxisRef]) -> tuple[shardy.AxisRef, ...]:
            return tuple(ref for ref in refs if ref.name not in region.entered)

        dims = tuple(replace(dim, axes=kept(dim.axes)) for dim in sharding.dims)
        return replace(sharding, dims=dims, replicated=kept(sharding.replicated))


def _says_nothing(sharding: shardy.Sharding) -> bool:
    """Returns whether a sharding leaves all dimensions to propagation."""
    is_open = all(dim == shardy.DimSharding(open=True) for dim in sharding.dims)
    axes = (*sharding.replicated, *sharding.unreduced, *sharding.manual)
    return bool(sharding.dims) and is_open and not axes


def _check_automatic(
    sharding: shardy.Sharding, logical: shardy.LogicalMesh, region: Region
) -> None:
    """A value in a region is sharded by axes that stay automatic there.

    Raises:
        ValueError: By others, or on another mesh.
    """
    if logical.to_mesh() != region.mesh:
        raise ValueError(f"its mesh is not {region.mesh!r}, that of the manual computation")
    for ref in sharding.manual:
        if ref.name not in region.manual or ref.size is not None:
            raise ValueError(f"axis {ref} is not manual in this computation")
    for ref in (*(ref for dim in sharding.dims for ref in dim.axes), *sharding.unreduced):
        if ref.name in region.manual:
            raise ValueError(f"axis {ref.name!r} is manual in this computation")


def _logical(mesh: Mesh) -> shardy.LogicalMesh:
    axes = tuple(zip(mesh.axis_names, mesh.shape, strict=True))
    return shardy.LogicalMesh(axes, mesh.device_ids)


def _within(sharding: shardy.Sharding, region: Region) -> shardy.Sharding:
    """Restricts a sharding to the axes that stay automatic in a region, on the mesh of these."""
    assert region.inner is not None
    names = region.inner.axis_names

    def kept(refs: Sequence[shardy.AxisRef]) -> tuple[shardy.AxisRef, ...]:
        return tuple(ref for ref in refs if ref.name in names)

    return replace(
        sharding,
        mesh=_logical(region.inner),
        dims=tuple(replace(dim, axes=kept(dim.axes)) for dim in sharding.dims),
        replicated=kept(sharding.replicated),
        unreduced=kept(sharding.unreduced),
        manual=(),
    )


def _stated(module: Any) -> Iterator[Any]:
    """All of Shardy's shardings of values that a module states."""
    for op in nested_operations(module.operation):
        yield from _by_results(op) or ()
        if op.name.startswith("sdy."):
            yield from (op.attributes[each] for each in _OF_ONE if each in op.attributes)
            for name in (each for each in _OF_SEVERAL if each in op.attributes):
                yield from per_value(op, name)
        for each in attributes_of_values(op):
            found = each[_SDY] if _SDY in each else frontend_text(each, FRONTEND_SHARDING)
            if found is not None:
                yield found


def _by_results(op: Operation) -> list[Any] | None:
    """Shardy's shardings that an operation states of its results; None if it states none."""
    if _SDY in op.attributes:
        return per_value(op, _SDY)
    words = frontend_text(op.attributes, FRONTEND_SHARDING)
    if words is None or op.name == "func.func":
        return None
    return list(map(str, shardy.parse_per_value(words)))


def results_shardings(op: Operation) -> list[Any] | None:
    """The shardings that an operation states of its results; None if it states none.

    Raises:
        UnsupportedError: It states them twice, as Shardy's and as GSPMD's.
    """
    if _SDY in op.attributes and HLO_SHARDING in op.attributes:
        raise UnsupportedError(f"states both {_SDY} and {HLO_SHARDING}")
    found = _by_results(op)
    return stated_by(op) if found is None else found


def sharding_of(value: Value) -> Any | None:
    """Returns the sharding that is stated where a value is made; None if there is none."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        function = owner.owner
        number = ir.BlockArgument(value).arg_number
        is_function = function.name == "func.func"
        return argument_sharding(function, "arg_attrs", number) if is_function else None
    stated = results_shardings(owner)
    return None if stated is None else stated[ir.OpResult(value).result_number]


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
        index: Index among them.

    Raises:
        UnsupportedError: It is stated twice, as Shardy's and as GSPMD's.
    """
    if kind not in function.attributes:
        return None
    attributes = ir.ArrayAttr(function.attributes[kind])[index]
    if _SDY in attributes and HLO_SHARDING in attributes:
        raise UnsupportedError(f"states both {_SDY} and {HLO_SHARDING}")
    if _SDY in attributes:
        return attributes[_SDY]
    found = frontend_text(attributes, FRONTEND_SHARDING)
    words = hlo_text(attributes)
    if found is not None or words is None:
        return found
    types = function.attributes["function_type"].value
    type_ = (types.inputs if kind == "arg_attrs" else types.results)[index]
    return HloStated(words, rank_of_type(type_))
