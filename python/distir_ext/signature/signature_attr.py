"""Reads the signature that LowerDistIR leaves in a module as an attribute."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement

from distir_ext.mesh.mesh import device_ids_of
from distir_ext.signature import signature_form

SIGNATURE_ATTR = "distir.signature"


def has_signature(mod: tvm.IRModule) -> bool:
    """Returns whether LowerDistIR has been run on a module."""
    return mod.attrs is not None and SIGNATURE_ATTR in mod.attrs


def read_signature(mod: tvm.IRModule) -> dict[str, Any]:
    """The signature of a lowered module in full, see :class:`signature_form.Read`.

    Raises:
        ValueError: It was written by another version of this package, or is damaged.
    """
    return _read(mod).signature


def signature_for_executable(mod: tvm.IRModule) -> dict[str, Any]:
    """The signature of a lowered module as it is written, with the shardings in words.

    Raises:
        ValueError: As for :func:`read_signature`.
    """
    found = _read(mod)
    return {
        **_plain(mod.attrs[SIGNATURE_ATTR]),
        "shardings": {text: tensor["sharding"] for text, tensor in found.tensors.items()},
        "dims": {text: tensor["dims"] for text, tensor in found.tensors.items()},
        "named_meshes": _named_meshes(mod, found),
    }


def _named_meshes(mod: tvm.IRModule, found: signature_form.Read) -> list[Any]:
    """Returns the signature's meshes with axis names, then the module's other meshes."""
    named = {key: _named_mesh(mod, mesh) for key, mesh in _meshes(mod).items()}
    aligned = [named.get(_key(mesh)) for mesh in found.signature["meshes"]]
    others: list[Any] = []
    for mesh in named.values():
        if mesh not in aligned and mesh not in others:
            others.append(mesh)
    return [*aligned, *others]


def _read(mod: tvm.IRModule) -> signature_form.Read:
    try:
        written = _plain(mod.attrs[SIGNATURE_ATTR])
        if isinstance(written, str) or int(written["version"]) != signature_form.version():
            raise ValueError(
                "the module was lowered by another version of this package; lower it again"
            )
        found = signature_form.read(written)
        _say_shardings(mod, found)
        return found
    except (*signature_form.DAMAGED, tvm.error.InternalError) as error:
        raise ValueError(
            f"the module's attribute {SIGNATURE_ATTR} is damaged ({error}); lower the module again"
        ) from error


def _plain(value: Any) -> Any:
    """TVM's containers and numbers as those of Python."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tvm_ffi.Map | dict):
        return {str(key): _plain(each) for key, each in sorted(value.items())}
    if isinstance(value, tvm_ffi.Array | list | tuple):
        return [_plain(each) for each in value]
    return int(value)


def _say_shardings(mod: tvm.IRModule, found: signature_form.Read) -> None:
    """States how tensors are sharded, with the names that the module's mesh axes have."""
    # All devices of a module may be no mesh of it; all that is on them is replicated.
    notation = tvm_ffi.get_global_func("distir.op.Notation")
    of_module, of_none = notation(mod), notation(None)
    known = _meshes(mod)
    meshes = []
    for mesh in found.signature["meshes"]:
        same = known.get(_key(mesh))
        if same is None:
            meshes.append((DeviceMesh(mesh["shape"], mesh["device_ids"]), of_none))
        else:
            meshes.append((same, of_module))
            mesh["named"] = _named_mesh(mod, same)
    for tensor in found.tensors.values():
        mesh, notation_on = meshes[tensor["mesh"]]
        placement = ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in tensor["placement"])
        local = relax.TensorType(ndim=len(tensor["shape"]), dtype=tensor["dtype"] or None)
        type_ = DTensorType(local, mesh, Placement.from_text(placement))
        tensor["sharding"] = str(notation_on(type_, True))
        dims = ast.literal_eval(str(notation_on(type_, False)))
        tensor["dims"] = [[each] if isinstance(each, str) else list(each or ()) for each in dims]


def _meshes(mod: tvm.IRModule) -> dict[tuple[tuple[int, ...], tuple[int, ...]], DeviceMesh]:
    """The meshes of a module by shape and devices; of equal ones the first."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], DeviceMesh] = {}
    for mesh in mod.global_infos.get("mesh", ()):
        if isinstance(mesh, DeviceMesh):
            key = tuple(map(int, mesh.shape)), device_ids_of(mesh)
            found.setdefault(key, mesh)
    return found


def _key(mesh: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(mesh["shape"]), tuple(mesh["device_ids"])


def _named_mesh(mod: tvm.IRModule, mesh: DeviceMesh) -> list[list[Any]]:
    """Sizes, names of axes and devices of the mesh that a mesh is, or is a view of."""
    replicated = Placement.from_text(", ".join("R" for _ in mesh.shape))
    sizes, names, devices = tvm_ffi.get_global_func("distir.op.NamedMesh")(mod)(
        DTensorType(relax.TensorType((), "float32"), mesh, replicated)
    )
    return [
        [int(size) for size in sizes],
        [str(name) for name in names],
        [int(device) for device in devices],
    ]
