"""The signature that LowerDistIR leaves in a module."""

from __future__ import annotations

import ast
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.distributed import DeviceMesh, DTensorType, Placement

from distir_ext import _signature_form

SIGNATURE_ATTR = "distir.signature"


def has_signature(mod: tvm.IRModule) -> bool:
    """Whether LowerDistIR has been run."""
    return mod.attrs is not None and SIGNATURE_ATTR in mod.attrs


def read_signature(mod: tvm.IRModule) -> dict[str, Any]:
    """The signature of a lowered module in full, see :class:`distir_ext._signature_form.Read`.

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
        "named_meshes": [mesh["named"] for mesh in found.signature["meshes"]],
    }


def _read(mod: tvm.IRModule) -> _signature_form.Read:
    try:
        written = _plain(mod.attrs[SIGNATURE_ATTR])
        if isinstance(written, str) or int(written["version"]) != _signature_form.version():
            raise ValueError(
                "the module was lowered by another version of this package; lower it again"
            )
        found = _signature_form.read(written)
        _say_shardings(mod, found)
        return found
    except (*_signature_form.DAMAGED, tvm.error.InternalError) as error:
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


def _say_shardings(mod: tvm.IRModule, found: _signature_form.Read) -> None:
    """States how tensors are sharded, with the names that the module's mesh axes have."""
    # All devices of a module may be no mesh of it; all that is on them is replicated.
    notation = tvm_ffi.get_global_func("distir.op.Notation")
    named_mesh = tvm_ffi.get_global_func("distir.op.NamedMesh")
    of_module, of_none = notation(mod), notation(None)
    named = named_mesh(mod)
    known = {
        (tuple(mesh.shape), tuple(mesh.device_ids)): mesh
        for mesh in reversed(mod.global_infos.get("mesh", ()))
        if isinstance(mesh, DeviceMesh)
    }
    meshes = []
    for mesh in found.signature["meshes"]:
        shape, ids = tuple(mesh["shape"]), tuple(mesh["device_ids"])
        same = known.get((shape, ids))
        if same is None:
            meshes.append((DeviceMesh(shape, list(ids)), of_none))
        else:
            meshes.append((same, of_module))
            replicated = Placement.from_text(", ".join("R" for _ in shape))
            sizes, names, devices = named(
                DTensorType(relax.TensorType((), "float32"), same, replicated)
            )
            mesh["named"] = [
                [int(size) for size in sizes],
                [str(name) for name in names],
                [int(device) for device in devices],
            ]
    for tensor in found.tensors.values():
        mesh, notation_on = meshes[tensor["mesh"]]
        placement = ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in tensor["placement"])
        local = relax.TensorType(ndim=len(tensor["shape"]), dtype=tensor["dtype"] or None)
        type_ = DTensorType(local, mesh, Placement.from_text(placement))
        tensor["sharding"] = str(notation_on(type_, True))
        dims = ast.literal_eval(str(notation_on(type_, False)))
        tensor["dims"] = [[each] if isinstance(each, str) else list(each or ()) for each in dims]
