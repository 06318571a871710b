"""Shows shardings of types in the users' notation: an entry of axis names per tensor dimension.

The names stand in a module attribute, one list for each entry of the module's global infos::

    I.module_attrs({"distir.mesh_axes": {"mesh": [["dp", "tp"]]}})
    I.module_global_infos({"mesh": [R.device_mesh((2, 4), I.Range(0, 8))]})

``dx.annotate``, ``ShardingMutator`` and ``AssignStages`` write it, and passes keep it. Axes of a
mesh without names are called x, y, z, w, a4, a5 and so on; errors say which axis that is. Type
inference, which sees no module, has the names of the module that is being parsed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType

from distir_ext.mesh.mesh import DimSharding, Mesh, device_ids_of
from distir_ext.native.modules import check_module
from distir_ext.text.errors.tracebacks import short_tracebacks

MESH_AXES_ATTR = "distir.mesh_axes"


def mesh_axes(mod: tvm.IRModule) -> list[tuple[str, ...]]:
    """The names of each mesh in ``mod.global_infos["mesh"]``; none for those without names.

    Raises:
        ValueError: the attribute has something else.
    """
    infos = mod.global_infos
    names = mod.attrs[MESH_AXES_ATTR] if mod.attrs and MESH_AXES_ATTR in mod.attrs else {}
    try:
        found = [tuple(str(name) for name in axes) for axes in names.get("mesh", [])]
    except (TypeError, AttributeError) as error:
        raise ValueError(
            f'the module\'s attribute {MESH_AXES_ATTR} is {names}; it must be {{"mesh": a list of '
            "names for each mesh}"
        ) from error
    count = len(infos["mesh"]) if "mesh" in infos else 0
    return found[:count] + [()] * (count - len(found))


def with_mesh_axes(mod: tvm.IRModule, names: Sequence[Sequence[str]]) -> tvm.IRModule:
    """A module that has these names for ``mod.global_infos["mesh"]``."""
    old = mod.attrs[MESH_AXES_ATTR] if mod.attrs and MESH_AXES_ATTR in mod.attrs else {}
    lists = {**dict(old), "mesh": [list(axes) for axes in names]}
    return mod.with_attr(MESH_AXES_ATTR, lists)


@short_tracebacks
def meshes(mod: tvm.IRModule) -> tuple[Mesh, ...]:
    """The meshes of a module, with the names of their axes, in the order of its global infos.

    Other views of a mesh that passes made have no names of their own and are called x, y, z, w.

    Args:
        mod: A module in any phase.

    Raises:
        TypeError: It is no module.

    Example:
        >>> mesh = Mesh((2, 4), ("dp", "tp"))
        >>> meshes(tvm.IRModule({}, global_infos={"mesh": [mesh.device_mesh]}))
        (Mesh((2, 4), ('x', 'y')),)
    """
    check_module(mod)
    infos = mod.global_infos
    known = list(infos["mesh"]) if "mesh" in infos else []
    default = tvm_ffi.get_global_func("distir.mesh.AxisName")
    found = []
    for info, names in zip(known, mesh_axes(mod), strict=True):
        if isinstance(info, DeviceMesh):
            shape = tuple(int(size) for size in info.shape)
            axes = names or tuple(str(default(axis)) for axis in range(len(shape)))
            found.append(Mesh(shape, axes, device_ids_of(info)))
    return tuple(found)


class Notation:
    """Formats the shardings of a module's types. Make one for many types.

    Args:
        mod: The module; None for types of which nothing else is known.

    Raises:
        ValueError: Names in the module do not fit its meshes.
    """

    def __init__(self, mod: tvm.IRModule | None) -> None:
        self._read = tvm_ffi.get_global_func("distir.op.Notation")(mod)
        self._mesh = tvm_ffi.get_global_func("distir.op.NamedMesh")(mod)

    def text(self, type_: DTensorType) -> str:
        """Formats dims as ``"('dp', None)"``, with the mesh if the module has several."""
        return str(self._read(type_, True))

    def mesh_text(self, type_: DTensorType) -> str:
        """Returns the part of :meth:`text` after the dims: nothing if the module has one mesh."""
        return self.text(type_).removeprefix(str(self._read(type_, False)))

    def dims(self, type_: DTensorType) -> tuple[DimSharding, ...]:
        """One entry per dimension, as plans take them; part of an axis is ``"tp:(1)2"``."""
        found: tuple[DimSharding, ...] = ast.literal_eval(str(self._read(type_, False)))
        return found

    def mesh(self, type_: DTensorType) -> Mesh:
        """The mesh whose axes :meth:`dims` names."""
        shape, names, devices = self._mesh(type_)
        return Mesh(tuple(shape), [str(name) for name in names], list(devices))


@short_tracebacks
def dims(mod: tvm.IRModule, value: relax.Expr | DTensorType) -> tuple[DimSharding, ...]:
    """Returns the sharding of a tensor of a propagated module, as dims of a plan.

    Args:
        mod: The module, which knows the names of mesh axes.
        value: A variable or another expression, or its type.

    Returns:
        For each dimension the name of a mesh axis, several from major to minor, or None. A
        part of an axis of size 8 is ``"tp:(2)4"``: the axis seen as 2 x 4, the last of these.

    Raises:
        TypeError: It is no DTensor, or ``mod`` is no module.
    """
    check_module(mod)
    type_ = value if isinstance(value, tvm.ir.Type) else value.ty
    if not isinstance(type_, DTensorType):
        raise TypeError(f"only a DTensor is sharded; this is {type_}")
    return Notation(mod).dims(type_)
