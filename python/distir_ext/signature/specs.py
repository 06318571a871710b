"""Global types of parameters and results, and the sharding of their tensors.

A string among the sizes is a symbolic variable. Where a mesh does not divide a size, shards are
rounded up: the last of them end in padding; what is cut in whole heads says how large a shard is.
A placement has, per mesh axis, the tensor dimension that it shards, or -1; several axes on one
dimension nest in mesh order. The sharding is the same in the words of users, for people to read.

Example: a type of shape ``[8, "n"]`` on a mesh of shape ``[2, 2]`` with placement ``[0, -1]`` is
cut in two along dimension 0; devices 0 and 1 hold the first half, devices 2 and 3 the second.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from distir_ext.mesh.blocks import Blocks, Layout, shard_shape
from distir_ext.mesh.mesh_axes import NamedMesh
from distir_ext.signature.sizes import Dim, names_in, size_of
from distir_ext.text.printable import shown


@dataclass(frozen=True)
class TensorSpec:
    """The global type of one tensor and where its shards are.

    Attributes:
        shape: Sizes; a string is the name of a symbolic variable.
        dtype: TVM's name of the element type.
        mesh_shape: Devices per mesh axis.
        device_ids: Devices of the mesh, row-major.
        placement: Per mesh axis the tensor dimension that it shards, or -1.
        sharding: The same in the words of a plan, with names of mesh axes: ``"('dp', None)"``.
        dims: The names alone, per dimension from major to minor.
        named_mesh: The mesh that has these axes.
        shards: Per dimension the size of every shard, where it is cut in whole grains (heads) and
            so is not the least; else 0. A string is an expression of symbolic variables. Empty
            where that is so of none.
    """

    shape: tuple[Dim, ...]
    dtype: str
    mesh_shape: tuple[int, ...]
    device_ids: tuple[int, ...]
    placement: tuple[int, ...]
    sharding: str = ""
    dims: tuple[tuple[str, ...], ...] = ()
    named_mesh: NamedMesh | None = None
    shards: tuple[Dim, ...] = ()

    def __post_init__(self) -> None:
        if prod(self.mesh_shape) != len(self.device_ids):
            raise ValueError(
                f"a mesh of shape {list(self.mesh_shape)} has {len(self.device_ids)} devices"
            )
        if len(self.placement) != len(self.mesh_shape) or not all(
            -1 <= dim < len(self.shape) for dim in self.placement
        ):
            raise ValueError(
                f"placement {list(self.placement)} does not fit a tensor of shape "
                f"{list(self.shape)} on a mesh of shape {list(self.mesh_shape)}"
            )
        if self.named_mesh is not None and len(self.dims) != len(self.shape):
            raise ValueError(f"dims {self.dims} do not fit a tensor of shape {list(self.shape)}")
        if self.shards and not self._shards_fit():
            raise ValueError(f"shards {self.shards} do not fit a tensor of {list(self.shape)}")

    def _shards_fit(self) -> bool:
        """Returns whether the shards together hold every dimension, and none is larger than it."""
        return len(self.shards) == len(self.shape) and all(
            held == 0
            or isinstance(held, str)
            or isinstance(size, str)
            or (isinstance(size, int) and -(-size // parts) <= held <= size)
            for size, parts, held in zip(self.shape, self.parts, self.shards, strict=True)
        )

    @cached_property
    def layout(self) -> Layout:
        """The layout of the tensor on its mesh."""
        return Layout(self.mesh_shape, self.device_ids, self.placement, len(self.shape))

    @property
    def _cut(self) -> Blocks:
        return self.layout.blocks

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash of the fields that mostly differ: there may be thousands of devices."""
        return hash((self.shape, self.dtype, self.mesh_shape, self.placement))

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of parts of each dimension."""
        return self._cut.parts

    @property
    def blocks(self) -> Mapping[int, tuple[int, ...]]:
        """Index of the part of each dimension, by device of the mesh."""
        return self._cut.of_device

    @cached_property
    def first_holders(self) -> dict[tuple[int, ...], int]:
        """First device that holds each block."""
        return self._holders(self._cut.of_device)

    def holders(self, devices: Container[int]) -> dict[tuple[int, ...], int]:
        """Returns the first of some devices that holds each block."""
        if all(device in devices for device in self.first_holders.values()):
            return self.first_holders
        return self._holders(devices)

    def _holders(self, devices: Container[int]) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for device, block in self.blocks.items():
            if device in devices:
                found.setdefault(block, device)
        return found

    @property
    def placement_text(self) -> str:
        """The placement as TVM writes it: ``"S[0], R"``."""
        return ", ".join("R" if dim < 0 else f"S[{dim}]" for dim in self.placement)

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of every shard of a global array of this shape.

        Where the parts do not divide a size, the last of them are padded. What of a symbolic
        dimension is cut in whole grains is known of :meth:`with_sizes` alone.
        """
        least = shard_shape(shape, self.parts)
        if not self.shards:
            return least
        return tuple(
            held if isinstance(held, int) and held else size
            for held, size in zip(self.shards, least, strict=True)
        )

    def with_sizes(self, sizes: Mapping[str, int], where: str) -> TensorSpec:
        """The type with the sizes of shards that follow from those of symbolic variables.

        Args:
            sizes: Of the variables.
            where: Name of the tensor in messages.

        Raises:
            ValueError: some are not given.
        """
        if not any(isinstance(held, str) for held in self.shards):
            return self
        shards: list[Dim] = []
        for held in self.shards:
            size = size_of(held, sizes)
            if size is None:
                lacking = [name for name in names_in(held) if name not in sizes]
                raise ValueError(
                    f"how {where} is cut, {self}, depends on {', '.join(lacking)}, which is not "
                    "the size of any argument that is given with it"
                )
            shards.append(size)
        known = replace(self, shards=tuple(shards))
        known.__dict__["layout"] = self.layout  # where it lies is the same
        return known

    def begin(self, device: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the first index of a device's shard in a global array of this shape."""
        extent = self.local_shape(shape)
        return tuple(i * size for i, size in zip(self.blocks[device], extent, strict=True))

    def uneven(self, shape: Sequence[int]) -> list[int]:
        """The dimensions of an array of this shape that the parts do not divide."""
        sizes = zip(shape, self.local_shape(shape), self.parts, strict=True)
        return [dim for dim, (size, local, parts) in enumerate(sizes) if local * parts != size]

    def __str__(self) -> str:
        shape = ", ".join(shown(str(dim)) for dim in self.shape)
        text = f"{self.dtype}[{shape}]"
        return f"{text} {self.sharding}" if self.sharding and len(self.device_ids) > 1 else text


@dataclass(frozen=True)
class TupleSpec:
    """A tuple of types."""

    fields: tuple[Spec, ...]

    def __str__(self) -> str:
        return "(" + ", ".join(str(each) for each in self.fields) + ")"


@dataclass(frozen=True)
class ShapeSpec:
    """A shape value; every worker gets all of it.

    Attributes:
        dims: Sizes; a string is a symbolic variable or an expression, None a size that is not
            stated. None in place of all of them: not even their number is.
    """

    dims: tuple[Dim | None, ...] | None = None

    def __str__(self) -> str:
        if self.dims is None:
            return "shape"
        sizes = ("?" if dim is None else shown(str(dim)) for dim in self.dims)
        return f"shape[{', '.join(sizes)}]"


@dataclass(frozen=True)
class NumberSpec:
    """A number; every worker gets it. One of integers is a symbolic size of its own name.

    Attributes:
        dtype: TVM's name of its type, ``"int64"``.
    """

    dtype: str

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True)
class ValueSpec:
    """Anything else; every worker has one of its own, which it keeps."""

    def __str__(self) -> str:
        return "value"


Leaf = TensorSpec | ShapeSpec | NumberSpec | ValueSpec
Spec = Leaf | TupleSpec


def leaves(spec: Spec) -> Iterator[Leaf]:
    """The types in a nested tuple, left to right."""
    if isinstance(spec, TupleSpec):
        for each in spec.fields:
            yield from leaves(each)
    else:
        yield spec


def size_names(leaf: Leaf) -> Iterator[str]:
    """Yields the variables in the sizes of a type."""
    if isinstance(leaf, TensorSpec):
        dims: Sequence[Dim | None] = leaf.shape
    else:
        dims = leaf.dims or () if isinstance(leaf, ShapeSpec) else ()
    for dim in dims:
        yield from names_in(dim) if dim is not None else ()


def unflatten(spec: Spec, values: Iterator[Any]) -> Any:
    """Nests values, given in the order of :func:`leaves`, as tuples of the type's form."""
    if isinstance(spec, TupleSpec):
        return tuple(unflatten(each, values) for each in spec.fields)
    return next(values)
