"""Reads meshes and shardings of JAX, PyTorch, TVM and NumPy as plain data.

Nothing of JAX or PyTorch is imported: their objects are known by what they offer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax.distributed import DeviceMesh, Placement

from distir_ext.text.errors.spelling import counted


@dataclass(frozen=True)
class DeviceGrid:
    """Devices and axis names of a framework's mesh.

    Attributes:
        shape: Number of devices along each axis.
        axis_names: Name of each axis; None if it has no names.
        device_ids: Ids in row-major order.
    """

    shape: tuple[int, ...]
    axis_names: tuple[Any, ...] | None
    device_ids: tuple[int, ...]


def read_mesh(value: Any) -> DeviceGrid | None:
    """A mesh of another framework; None if the object is none.

    Args:
        value: ``jax.sharding.Mesh``, ``torch.distributed.DeviceMesh``, TVM's ``DeviceMesh``, or a
            NumPy array of ids or of objects that have an ``id``, as ``jax.devices()`` returns.

    Raises:
        TypeError: elements of an array are neither ids nor devices.
    """
    if isinstance(value, DeviceMesh):
        shape = tuple(int(size) for size in value.shape)
        return DeviceGrid(shape, None, tuple(int(i) for i in value.device_ids))
    if isinstance(value, np.ndarray):
        return _read_array(value, None)
    if hasattr(value, "axis_names") and isinstance(getattr(value, "devices", None), np.ndarray):
        return _read_array(value.devices, value.axis_names)  # jax.sharding.Mesh
    if hasattr(value, "mesh_dim_names") and hasattr(value, "mesh"):
        return _read_array(np.asarray(value.mesh), value.mesh_dim_names)  # torch's DeviceMesh
    return None


def _read_array(devices: Any, names: Sequence[Any] | None) -> DeviceGrid:
    ids = []
    for device in devices.flat:
        number = getattr(device, "id", device)
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"an array of devices has ids (integers) or devices, not {device!r}")
        ids.append(int(number))
    return DeviceGrid(devices.shape, None if names is None else tuple(names), tuple(ids))


def read_sharding(value: Any) -> tuple[Any, Any] | None:
    """The mesh and the spec of a ``jax.sharding.NamedSharding``; None if the object is none."""
    if hasattr(value, "mesh") and hasattr(value, "spec"):
        return value.mesh, value.spec
    return None


def read_dims(value: Any, axis_names: Sequence[str], ndim: int | None) -> Any:
    """Dims of another framework as a tuple with an entry per tensor dimension.

    Args:
        value: A ``jax.sharding.PartitionSpec``; TVM's ``Placement`` or PyTorch's placements (a
            sequence of ``Shard`` and ``Replicate``), which have an entry per mesh axis.
        axis_names: The axes of the mesh.
        ndim: Dimensions of the tensor; None if their number is not known.

    Returns:
        The dims; the object itself if it is none of these.

    Raises:
        ValueError: it says what dims do not: partial or strided; or does not fit
            the mesh or tensor.
    """
    if hasattr(type(value), "UNCONSTRAINED"):
        return _read_partition_spec(value, ndim)
    if isinstance(value, Placement):
        shards = [int(spec.axis) for spec in value.dim_specs]
        return _along_axes([None if i < 0 else i for i in shards], axis_names, ndim, value)
    if isinstance(value, list | tuple) and value and all(_is_torch_placement(i) for i in value):
        return _along_axes([_torch_dim(each, ndim) for each in value], axis_names, ndim, value)
    return value


def _read_partition_spec(spec: Any, ndim: int | None) -> tuple[Any, ...]:
    for field in ("unreduced", "reduced"):
        if getattr(spec, field, None):
            raise ValueError(f"{spec} has {field} axes; an annotation states none")
    dims = list(spec)
    for dimension, entry in enumerate(dims):
        if entry is type(spec).UNCONSTRAINED:
            dims[dimension] = ...
        elif entry == ():
            dims[dimension] = None
    # A spec may be shorter than the tensor has dimensions; the others are not sharded.
    return (*dims, *[None] * ((ndim or 0) - len(dims)))


def _is_torch_placement(value: Any) -> bool:
    return callable(getattr(value, "is_shard", None)) and hasattr(value, "is_replicate")


def _torch_dim(placement: Any, ndim: int | None) -> int | None:
    if placement.is_replicate():
        return None
    if type(placement).__name__ != "Shard":
        raise ValueError(f"{placement!r} is neither Shard nor Replicate")
    dim = int(placement.dim)
    return dim + (ndim or 0) if dim < 0 else dim


def _along_axes(
    shards: Sequence[int | None], axis_names: Sequence[str], ndim: int | None, source: Any
) -> tuple[Any, ...]:
    """Dims from the tensor dimension that each mesh axis shards."""
    if len(shards) != len(axis_names):
        raise ValueError(
            f"placement {source} has {counted(len(shards), 'entry', 'entries')} for a mesh with "
            f"{counted(len(axis_names), 'axis', 'axes')}"
        )
    if ndim is None:
        ndim = 1 + max((dim for dim in shards if dim is not None), default=-1)
    dims: list[tuple[str, ...]] = [() for _ in range(ndim)]
    for name, dim in zip(axis_names, shards, strict=True):
        if dim is None:
            continue
        if not 0 <= dim < ndim:
            raise ValueError(
                f"placement {source} shards dimension {dim} of a tensor of {ndim} dimensions"
            )
        dims[dim] = (*dims[dim], name)
    return tuple(axes if len(axes) > 1 else axes[0] if axes else None for axes in dims)
