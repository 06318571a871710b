"""Which part of an array a device has. The native library computes it, as it does for collectives.

Example: rows on the second axis of a mesh (2, 2) of devices 4 to 7::

    >>> blocks_of((2, 2), (4, 5, 6, 7), (-1, 0), 2)
    Blocks(parts=(2, 1), of_device={4: (0, 0), 5: (1, 0), 6: (0, 0), 7: (1, 0)})
    >>> shard_shape((5, 8), (2, 1))  # the second shard ends in a row of padding
    (3, 8)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tvm_ffi


class Blocks(NamedTuple):
    """How an array is cut.

    Attributes:
        parts: Into how many parts each dimension is cut.
        of_device: Which part of each dimension a device holds, for every device of the mesh.
    """

    parts: tuple[int, ...]
    of_device: Mapping[int, tuple[int, ...]]


def blocks_of(
    mesh_shape: Sequence[int], device_ids: Sequence[int], placement: Sequence[int], ndim: int
) -> Blocks:
    """How an array of ``ndim`` dimensions is cut.

    Args:
        mesh_shape: Devices per mesh axis.
        device_ids: Devices of the mesh, row-major.
        placement: Per mesh axis the dimension that it shards, or -1.
        ndim: Dimensions of the array.

    Raises:
        ValueError: there is no such mesh, or the placement is not one of the array on it.
    """
    library = tvm_ffi.get_global_func("distir.mesh.Blocks")
    found = library(tuple(mesh_shape), tuple(device_ids), tuple(placement), ndim)
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
