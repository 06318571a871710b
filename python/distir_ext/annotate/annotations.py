"""Annotations: mesh and dims, as users state them, checked against a tensor.

Every way to annotate (``annotate``, ``constrain``, ``ShardingMutator``) comes through here, so all
of them take the same meshes and dims and refuse the same mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import tvm
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement, PlacementSpec

from distir_ext.mesh.dims import (
    Dim,
    DimEntry,
    TensorDims,
    check_axes,
    dims_text,
    read_dim,
    replicated_axes,
    short_entry,
)
from distir_ext.mesh.frameworks import read_dims, read_sharding
from distir_ext.mesh.mesh import Mesh, as_mesh, device_ids_of, has_names, is_mesh
from distir_ext.mesh.notation import Notation, mesh_axes, with_mesh_axes
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase

Dims: TypeAlias = Sequence[DimEntry]
"""For each tensor dimension a mesh axis, several (major to minor), or None; with ``...`` at the end
of a dimension that is open; or a :class:`distir_ext.Dim`."""


# TVM's text of a placement, such as "S[0], R".
_PLACEMENT_TEXT = re.compile(r"\s*(R|S\[\d+\])\s*(,\s*(R|S\[\d+\])\s*)*")


@dataclass(frozen=True)
class Mark:
    """Arguments of one ``dist.annotate_sharding``.

    Attributes:
        device_mesh: The mesh.
        placement: Placement of the tensor on it.
        open: The tensor dimensions that propagation may shard further.
        priorities: For each tensor dimension, beginning with the first, when propagation begins to
            use its axes. Those that are left out have the priority 0.
        replicated: The axes of the mesh, by number, that propagation must not shard it by.
    """

    device_mesh: DeviceMesh
    placement: Placement
    open: tuple[int, ...] = ()
    priorities: tuple[int, ...] = ()
    replicated: tuple[int, ...] = ()

    @classmethod
    def of(cls, call: relax.Call) -> Mark:
        """Reads the arguments of a call of ``dist.annotate_sharding``."""
        attrs = call.attrs
        if not isinstance(attrs, tvm.ir.DictAttrs):
            return cls(attrs.device_mesh, attrs.placement)
        lists = (attrs.get(name, ()) for name in _LISTS)
        terms = (tuple(int(number) for number in each) for each in lists)
        return cls(attrs["device_mesh"], attrs["placement"], *terms)

    def on(self, value: relax.Expr) -> relax.Call:
        """The annotated value."""
        lists = {name: list(getattr(self, name)) for name in _LISTS if getattr(self, name)}
        if not lists:
            return relax.op.distributed.annotate_sharding(value, self.device_mesh, self.placement)
        attrs = tvm.ir.make_node(
            "ir.DictAttrs", device_mesh=self.device_mesh, placement=self.placement, **lists
        )
        return relax.Call(tvm.ir.Op.get("relax.dist.annotate_sharding"), [value], attrs)

    def type_of(self, tensor: relax.TensorType) -> DTensorType:
        """A tensor that is sharded as stated, and not further."""
        return DTensorType(tensor, self.device_mesh, self.placement)

    def dims(self, notation: Notation, tensor: relax.TensorType) -> tuple[DimEntry, ...]:
        """Returns the annotation as dims of a plan.

        Args:
            notation: That of the module.
            tensor: The type of what is annotated.
        """
        entries: list[DimEntry] = []
        for number, axes in enumerate(notation.dims(self.type_of(tensor))):
            names = read_dim("an annotation", axes).axes
            priority = self.priorities[number] if number < len(self.priorities) else 0
            entries.append(short_entry(Dim(*names, open=number in self.open, priority=priority)))
        if not self.replicated:
            return tuple(entries)
        # The name of an axis is read off the notation of a vector that is sharded by it.
        vector = relax.TensorType(ndim=1, dtype="float32")
        replicated: list[str] = []
        for axis in self.replicated:
            specs = [PlacementSpec.replica() for _ in self.device_mesh.shape]
            specs[axis] = PlacementSpec.sharding(0)
            (name,) = notation.dims(DTensorType(vector, self.device_mesh, Placement(specs)))
            replicated += read_dim("an annotation", name).axes
        return TensorDims(*entries, replicated=replicated)

    def says_the_same(self, other: Mark) -> bool:
        """Returns whether both shard a tensor alike, on equal meshes."""
        return (
            _same_devices(self.device_mesh, other.device_mesh)
            and str(self.placement) == str(other.placement)
            and all(getattr(self, name) == getattr(other, name) for name in _LISTS)
        )


_LISTS = ("open", "priorities", "replicated")


class MeshTable:
    """The device meshes in a module's global infos, where TVMScript refers to them by index.

    The printer finds a mesh by object identity, so a mesh that is equal to a known one has to be
    replaced by the known object wherever it is used.
    """

    def __init__(self, mod: Any) -> None:
        infos = mod.global_infos
        self._meshes: list[DeviceMesh] = list(infos["mesh"]) if "mesh" in infos else []
        self._known = len(self._meshes)
        self._axes = mesh_axes(mod)
        self._known_axes = list(self._axes)

    def mark(self, entity: str, mesh: Any, dims: Any, tensor: Any) -> Mark:
        """The annotation that a mesh and dims mean; its mesh is in the table then.

        Args:
            entity: Name of the annotated value in messages: "parameter w1".
            mesh: A mesh of any framework (see :class:`distir_ext.Mesh`). One without names has
                those that the module knows, if it does.
            dims: Dims, None for replicated, or those of another framework (see
                :func:`distir_ext.annotate`).
            tensor: The type of what is annotated; None if it is not known yet.

        Raises:
            ValueError: See :func:`distir_ext.annotate`.
            TypeError: The mesh is none; or dims are neither a tuple or list of names nor None.
        """
        named = as_mesh(mesh, f"{entity}: the mesh")
        if has_names(mesh):
            self._add(named.device_mesh, named.axis_names)
        else:
            names = self._axes[self._add(named.device_mesh, ())]
            named = Mesh(named, names) if names else named
        ordered, mark = checked_mark(entity, named, dims, tensor)
        # The user's own mesh comes first: the passes name axes after it.
        return replace(mark, device_mesh=self._meshes[self._add(ordered.device_mesh, ())])

    def names_of(self, mesh: Mesh) -> tuple[str, ...]:
        """Returns :meth:`mark`'s axis names for an unnamed mesh of this shape and devices."""
        for known, names in zip(self._meshes, self._axes, strict=True):
            if names and _same_devices(known, mesh.device_mesh):
                return names
        return Mesh(mesh.device_mesh).axis_names

    def _add(self, device_mesh: DeviceMesh, names: tuple[str, ...]) -> int:
        """The index of a mesh with this shape and these devices.

        Raises:
            ValueError: The module has other names for its axes.
        """
        for index, known in enumerate(self._meshes):
            if _same_devices(known, device_mesh):
                self._name(index, names)
                return index
        self._meshes.append(device_mesh)
        self._axes.append(names)
        return len(self._meshes) - 1

    def _name(self, index: int, names: tuple[str, ...]) -> None:
        known = self._axes[index]
        if known and names and known != names:
            raise ValueError(
                f"the axes of one mesh have two names: the module says {known}, and the mesh of "
                f"the same shape and devices that is given now says {names}"
            )
        self._axes[index] = known or names

    def store(self, mod: tvm.IRModule) -> tvm.IRModule:
        """The module with the table in it; the same one if the table has not changed."""
        if len(self._meshes) > self._known:
            mod = mod.clone()
            mod.update_global_info("mesh", self._meshes)
        return with_mesh_axes(mod, self._axes) if self._has_new_names() else mod

    def store_in_place(self, mod: Any) -> None:
        """Writes the table into a module that is being built, or into TVMScript's frame of one."""
        if len(self._meshes) > self._known:
            _set_field(mod, "global_infos", {**dict(mod.global_infos), "mesh": self._meshes})
        if self._has_new_names():
            named = with_mesh_axes(tvm.IRModule({}, attrs=_attrs_of(mod)), self._axes)
            attrs = named.attrs
            is_module = isinstance(mod, tvm.IRModule)
            _set_field(mod, "attrs", attrs if is_module else dict(attrs.items()))

    def _has_new_names(self) -> bool:
        return any(self._axes) and self._axes != self._known_axes


def _attrs_of(mod: Any) -> Any:
    if isinstance(mod, tvm.IRModule) or not mod.attrs:
        return mod.attrs or None
    return tvm.ir.make_node("ir.DictAttrs", **dict(mod.attrs.items()))


def _set_field(value: Any, name: str, content: Any) -> None:
    # TVM's functions change the attributes of a copy only, but a builder keeps its module.
    fields = type(value).__tvm_ffi_type_info__.fields
    (field,) = (each for each in fields if each.name == name)
    field.setter(value, tvm.runtime.convert(content))


def relax_function(mod: tvm.IRModule, func: str) -> relax.Function:
    """The Relax function of this name.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: There is none; names those that exist.
    """
    check_module(mod)
    names = sorted(
        var.name_hint for var, base in mod.functions.items() if isinstance(base, relax.Function)
    )
    if func not in names:
        raise ValueError(
            f"the module has no Relax function named {func!r}; "
            f"it has {', '.join(names) if names else 'none'}"
        )
    return mod[func]


def function_to_annotate(mod: tvm.IRModule, func: str) -> relax.Function:
    """The Relax function of this name, in a module that shardings can still be stated of.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: There is no such function; or the module is lowered, so that the function is a
            program of one worker on local shards.
    """
    function = relax_function(mod, func)
    reached = phase(mod)
    if reached in ("lowered", "runtime"):
        raise ValueError(
            f"the module is {reached} already: {func!r} is the program of a worker, on shards; "
            "annotate the module that dx.lower was given, and lower that"
        )
    return function


def split_mesh(entry: Any, default: Mesh) -> tuple[Any, Any]:
    """Splits a stated sharding of a tensor: dims, ``(mesh, dims)``, or JAX's NamedSharding."""
    if isinstance(entry, tuple) and len(entry) == 2 and is_mesh(entry[0]):
        return entry[0], entry[1]
    return read_sharding(entry) or (default, entry)


def checked_mark(entity: str, mesh: Mesh, dims: Any, tensor: Any) -> tuple[Mesh, Mark]:
    """Converts dims to an annotation of a tensor, and returns the mesh of its placement with it.

    Args:
        entity: As for :meth:`MeshTable.mark`.
        mesh: The mesh that dims refer to.
        dims: As for :meth:`MeshTable.mark`.
        tensor: The type; None if it is not known.

    Raises:
        ValueError: See :func:`distir_ext.annotate`.
        TypeError: Dims are neither a tuple or list of names nor None.
    """
    if tensor is not None and not isinstance(tensor, relax.TensorType):
        already = "; it has a sharding already" if isinstance(tensor, DTensorType) else ""
        raise ValueError(f"{entity} is not a tensor but has type {tensor}{already}")
    ndim = -1 if tensor is None else tensor.ndim
    if dims is None:
        return mesh, Mark(mesh.device_mesh, mesh.placement(*[None] * max(ndim, 0)))
    try:
        if isinstance(dims, str) and _PLACEMENT_TEXT.fullmatch(dims):
            dims = Placement.from_text(dims)
        dims = read_dims(dims, mesh.axis_names, ndim if ndim >= 0 else None)
    except ValueError as error:
        raise ValueError(f"{entity}: {error}") from error
    if isinstance(dims, str) or not isinstance(dims, Sequence):
        raise TypeError(
            f"{entity}: dims are {dims!r}, not a tuple with one entry per tensor dimension"
        )
    if tensor is not None:
        _check_rank(entity, dims, tensor)
    stated = [read_dim(entity, entry) for entry in dims]
    _check_axes(entity, mesh, stated, tensor)
    replicated = replicated_axes(dims)
    _check_replicated(entity, mesh, stated, replicated)
    axes = [dim.axes for dim in stated]
    try:
        ordered = mesh.ordered_for(*axes)
        placement = ordered.placement(*axes)
    except ValueError as error:
        raise ValueError(f"{entity}: {error}") from error
    priorities = [dim.priority for dim in stated]
    return ordered, Mark(
        ordered.device_mesh,
        placement,
        tuple(number for number, dim in enumerate(stated) if dim.open),
        tuple(priorities) if any(priorities) else (),
        tuple(sorted(ordered.axis_names.index(name) for name in replicated)),
    )


def _check_rank(entity: str, dims: Dims, tensor: relax.TensorType) -> None:
    if tensor.ndim < 0 and dims:
        raise ValueError(f"{entity} has an unknown number of dimensions, so it can only be None")
    if len(dims) != max(tensor.ndim, 0):
        raise ValueError(
            f"{entity} has {_count(tensor.ndim, 'dimension')}, but the plan's "
            f"{dims_text(tuple(dims))} has {_count(len(dims), 'entry', 'entries')}"
        )


def _check_axes(
    entity: str, mesh: Mesh, dims: Sequence[Dim], tensor: relax.TensorType | None
) -> None:
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    used: set[str] = set()
    for dimension, dim in enumerate(dims):
        check_axes(f"{entity} dimension {dimension}", dim.axes, mesh.axis_names)
        shards = 1
        for axis in dim.axes:
            if axis in used:
                raise ValueError(
                    f"{entity} dimension {dimension}: axis {axis!r} already shards this tensor; "
                    "an axis can be used once per tensor"
                )
            used.add(axis)
            shards *= sizes[axis]
        size = None if tensor is None else _static_size(tensor, dimension)
        if size and shards > size:
            raise ValueError(
                f"{entity} dimension {dimension} of size {size} has fewer elements than the "
                f"{shards} shards of mesh axis {', '.join(map(repr, dim.axes))}"
            )


def _check_replicated(
    entity: str, mesh: Mesh, dims: Sequence[Dim], replicated: Sequence[str]
) -> None:
    check_axes(f"{entity}, replicated", replicated, mesh.axis_names)
    for dimension, dim in enumerate(dims):
        for axis in dim.axes:
            if axis in replicated:
                raise ValueError(
                    f"{entity} is replicated over axis {axis!r}, which shards its dimension "
                    f"{dimension}"
                )


def _static_size(tensor: relax.TensorType, dimension: int) -> int | None:
    if not isinstance(tensor.shape, relax.ShapeExpr):
        return None
    size = tensor.shape.values[dimension]
    return int(size) if isinstance(size, tvm.tirx.IntImm) else None


def _same_devices(left: DeviceMesh, right: DeviceMesh) -> bool:
    if left is right:  # TVM's DeviceMesh.same_as calls itself without end
        return True
    return list(left.shape) == list(right.shape) and device_ids_of(left) == device_ids_of(right)


def _count(number: int, singular: str, plural: str | None = None) -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"
