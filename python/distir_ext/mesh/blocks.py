"""Computes which block of an array each device of a mesh holds, by the native library.

Example: rows on the second axis of a mesh (2, 2) of devices 4 to 7::

    >>> blocks_of((2, 2), (4, 5, 6, 7), (-1, 0), 2)
    Blocks(parts=(2, 1), of_device={4: (0, 0), 5: (1, 0), 6: (0, 0), 7: (1, 0)})
    >>> shard_shape((5, 8), (2, 1))  # the second shard ends in a row of padding
    (3, 8)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import tvm_ffi


class Blocks(NamedTuple):
    """Blocks of an array on the devices of a mesh.

    Attributes:
        parts: Number of parts of each dimension.
        of_device: By device of the mesh the index of its part of each dimension.
    """

    parts: tuple[int, ...]
    of_device: Mapping[int, tuple[int, ...]]


class DeviceRuns(Sequence[int]):
    """Devices as runs of ascending neighbours, which take no more memory the longer they are.

    Args:
        runs: Of each the first device and how many there are.
    """

    def __init__(self, runs: Sequence[tuple[int, int]]) -> None:
        self.runs = list(runs)
        self._ranges = [range(first, first + count) for first, count in runs]

    def __len__(self) -> int:
        return sum(map(len, self._ranges))

    def __iter__(self) -> Iterator[int]:
        return itertools.chain.from_iterable(self._ranges)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return tuple(self)[index]


@dataclass(frozen=True, eq=False)
class Layout:
    """Layout of arrays with some number of dimensions on a mesh; tensors may share one.

    Attributes:
        mesh_shape: Devices per mesh axis.
        device_ids: Devices of the mesh, row-major.
        placement: Per mesh axis the dimension that it shards, or -1.
        ndim: Dimensions of the arrays.
    """

    mesh_shape: tuple[int, ...]
    device_ids: Sequence[int]
    placement: tuple[int, ...]
    ndim: int

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The blocks of such an array."""
        return blocks_of(self.mesh_shape, self.device_ids, self.placement, self.ndim)

    @functools.cached_property
    def runs(self) -> list[tuple[int, int]]:
        """The devices as the first of ascending neighbours and how many they are; mostly few."""
        if isinstance(self.device_ids, DeviceRuns):
            return self.device_ids.runs
        found: list[tuple[int, int]] = []
        for device in self.device_ids:
            if found and sum(found[-1]) == device:
                found[-1] = found[-1][0], found[-1][1] + 1
            else:
                found.append((device, 1))
        return found


def blocks_of(
    mesh_shape: Sequence[int], device_ids: Sequence[int], placement: Sequence[int], ndim: int
) -> Blocks:
    """Computes the blocks of an array with ``ndim`` dimensions.

    Args:
        mesh_shape: Devices per mesh axis.
        device_ids: Devices of the mesh, row-major.
        placement: Per mesh axis the dimension that it shards, or -1.
        ndim: Dimensions of the array.

    Raises:
        ValueError: there is no such mesh, or the placement is not one of the array on it.
    """
    return _blocks_of(tuple(mesh_shape), tuple(device_ids), tuple(placement), ndim)


@functools.lru_cache(maxsize=1024)  # tensors that lie alike have the same object
def _blocks_of(
    mesh_shape: tuple[int, ...], device_ids: tuple[int, ...], placement: tuple[int, ...], ndim: int
) -> Blocks:
    found = tvm_ffi.get_global_func("distir.mesh.Blocks")(mesh_shape, device_ids, placement, ndim)
    parts, *blocks = (tuple(each) for each in found)
    return Blocks(parts, dict(zip(device_ids, blocks, strict=True)))


def shard_shape(shape: Sequence[int], parts: Sequence[int]) -> tuple[int, ...]:
    """The shape of every shard of an array that is cut into so many parts along each dimension.

    Raises:
        ValueError: no array has such a shape, or can be cut so.
    """
    return _shard_shape(tuple(shape), tuple(parts))


@functools.lru_cache(maxsize=4096)  # every call of a program asks for the same ones
def _shard_shape(shape: tuple[int, ...], parts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(tvm_ffi.get_global_func("distir.mesh.ShardShape")(shape, parts))
