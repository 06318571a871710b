"""Shardings of global arrays: the part of an array that each device of a mesh has.

Example, five rows on four devices, the last of which has padding alone::

    >>> from distir_ext.mesh.mesh import Mesh
    >>> rows = sharding_of((5, 8), "float32", Mesh(dp=4), ("dp", None))
    >>> rows.shard_shape
    (2, 8)
    >>> rows.indices[2], rows.indices[3]
    ((slice(4, 5, None), slice(0, 8, None)), (slice(5, 5, None), slice(0, 8, None)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Any

from tvm.relax.distributed import DeviceMesh, DTensorType, Placement

from distir_ext.mesh.mesh import DimSharding, Mesh
from distir_ext.mesh.mesh_axes import NamedMesh
from distir_ext.signature.sizes import Dim
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.display import Shown
from distir_ext.text.printable import shown


@dataclass(frozen=True)
class Sharding(Shown):
    """Sharding of a global array on a mesh."""

    spec: TensorSpec
    """The type of the array, with its mesh and the names of axes."""

    devices: tuple[int, ...]
    """The devices that hold a part, in the order of the mesh."""

    @cached_property
    def mesh(self) -> Mesh:
        """The mesh, with the names of its axes."""
        assert self.spec.named_mesh is not None
        return Mesh(*self.spec.named_mesh)

    @property
    def dims(self) -> tuple[DimSharding, ...]:
        """Per dimension the mesh axis that shards it, several from major to minor, or None.

        A part of an axis of size 8 is ``"tp:(2)4"``: the axis seen as 2 x 4, the last of these.
        """
        return tuple(
            names if len(names) > 1 else names[0] if names else None for names in self.spec.dims
        )

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The global sizes; a string is a symbolic one."""
        return self.spec.shape

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of parts that each dimension is cut into."""
        return self.spec.parts

    @property
    def blocks(self) -> Mapping[int, tuple[int, ...]]:
        """Index of the part of each dimension, by device."""
        return {device: self.spec.blocks[device] for device in self.devices}

    @property
    def shard_shape(self) -> tuple[Dim, ...]:
        """The shape of every shard, with padding where the parts do not divide a size."""
        known = [size if isinstance(size, int) else 0 for size in self.shape]
        local = self.spec.local_shape(known)
        return tuple(
            held if isinstance(size, int) else fraction(size, 1, count)
            for size, held, count in zip(self.shape, local, self.parts, strict=True)
        )

    @property
    def indices(self) -> dict[int, tuple[slice, ...]]:
        """Part of the global array without padding, by device.

        ``array[sharding.indices[3]]`` is the part of a NumPy array on device 3. A device that has
        only padding has an empty part.

        Raises:
            ValueError: A size is symbolic.
        """
        symbolic = [size for size in self.shape if not isinstance(size, int)]
        if symbolic:
            raise ValueError(f"the indices are not known, as size {symbolic[0]} is symbolic")
        return {
            device: tuple(
                slice(*_bounds(size, held, part))
                for size, held, part in zip(self.shape, self.shard_shape, block, strict=True)
            )
            for device, block in self.blocks.items()
        }

    def bounds(self, dim: int, part: int) -> tuple[str, str, int]:
        """Returns the range of one part of a dimension, and the padding behind it.

        Args:
            dim: A dimension of the tensor, from 0.
            part: One of its ``parts[dim]`` parts, from 0.

        Returns:
            Begin and end, in elements, as text, since sizes may be symbolic; and the elements of
            the padding, 0 where the size is symbolic.

        Example:
            >>> columns = sharding_of((7, "n"), "float32", Mesh(dp=2, tp=4), ("dp", "tp"))
            >>> columns.bounds(0, 1), columns.bounds(1, 2)
            (('4', '7', 1), ('n/2', '3n/4', 0))
        """
        size, held, count = self.shape[dim], self.shard_shape[dim], self.parts[dim]
        if isinstance(size, str) or isinstance(held, str):
            return fraction(str(size), part, count), fraction(str(size), part + 1, count), 0
        begin, end = _bounds(size, held, part)
        return str(begin), str(end), held - (end - begin)

    def __str__(self) -> str:
        text = shown(", ".join(map(str, self.shape)))
        return f"{self.spec.dtype}[{text}] {self.dims} on {self.mesh!r}"

    def __repr__(self) -> str:
        return f"<Sharding {self}>"


def _bounds(size: Any, held: Any, part: int) -> tuple[int, int]:
    return min(size, part * held), min(size, (part + 1) * held)


def fraction(symbol: str, numerator: int, denominator: int) -> str:
    """A part of a symbolic size, which shards always divide.

    Example:
        >>> fraction("n", 2, 4), fraction("n + 1", 3, 4), fraction("n", 0, 4), fraction("n", 4, 4)
        ('n/2', '3(n + 1)/4', '0', 'n')
    """
    if numerator == 0:
        return "0"
    shared = gcd(numerator, denominator)
    over, under = numerator // shared, denominator // shared
    text = symbol if symbol.isidentifier() else f"({symbol})"
    times = "" if over == 1 else str(over)
    return symbol if over == under == 1 else f"{times}{text}" + (f"/{under}" if under > 1 else "")


def sharding_of(
    shape: Sequence[Dim], dtype: str, mesh: Mesh, dims: Sequence[DimSharding]
) -> Sharding:
    """The sharding that dims, which were checked, state on a mesh."""
    ordered = mesh.ordered_for(*dims)
    return _sharding(shape, dtype, ordered.device_mesh, ordered.placement(*dims), mesh, dims)


def sharding_of_type(
    type_: DTensorType, shape: Sequence[Dim], mesh: Mesh, dims: Sequence[DimSharding]
) -> Sharding:
    """The sharding of a DTensor.

    Args:
        type_: Its type, whose mesh may be a view that has axes in another order, or split.
        shape: Its sizes.
        mesh: The mesh that users know.
        dims: Its dims, by axis names of that mesh.
    """
    dtype = str(type_.tensor_ty.dtype or "")
    return _sharding(shape, dtype, type_.device_mesh, type_.placement, mesh, dims)


def sharding_of_shards(
    spec: TensorSpec, shape: tuple[int, ...], shards: Mapping[int, Any]
) -> Sharding:
    """The sharding of an array of which some devices hold shards.

    Args:
        spec: Its type, as an executable states it.
        shape: Its sizes.
        shards: By device id what it holds.
    """
    if len(spec.shape) != len(shape):  # the data decides the shape; every device has a copy
        spec = replace(
            spec, placement=(-1,) * len(spec.placement), dims=((),) * len(shape), shards=()
        )
    assert spec.named_mesh is not None
    devices = tuple(device for device in spec.named_mesh.device_ids if device in shards)
    return Sharding(replace(spec, shape=shape), devices)


def _sharding(
    shape: Sequence[Dim],
    dtype: str,
    device_mesh: DeviceMesh,
    placement: Placement,
    mesh: Mesh,
    dims: Sequence[DimSharding],
) -> Sharding:
    names = tuple((each,) if isinstance(each, str) else tuple(each or ()) for each in dims)
    spec = TensorSpec(
        tuple(shape),
        dtype,
        tuple(int(size) for size in device_mesh.shape),
        tuple(int(device) for device in device_mesh.device_ids),
        tuple(int(each.axis) for each in placement.dim_specs),
        dims=names,
        named_mesh=NamedMesh(mesh.shape, mesh.axis_names, mesh.device_ids),
    )
    return Sharding(spec, mesh.device_ids)
