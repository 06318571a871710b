"""Lists the meshes of up to three axes in which a number of devices can be arranged."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from distir_ext.mesh.cluster import Cluster
from distir_ext.mesh.mesh import Mesh

AXES = ("x", "y", "z")


def meshes_of(devices: int, cluster: Cluster | None = None, most_axes: int = 3) -> list[Mesh]:
    """Meshes of up to three axes; the last axis joins neighbours.

    Of meshes that differ only in the order of axes with equal links there is one.

    Args:
        devices: At least 1.
        cluster: Their links; without it, all devices are joined alike.
        most_axes: Axes of a mesh, at most.

    Example:
        >>> [mesh.shape for mesh in meshes_of(8)]
        [(8,), (2, 4), (2, 2, 2)]
        >>> [mesh.shape for mesh in meshes_of(8, Cluster.of_hosts(2, 4), 2)]
        [(8,), (2, 4), (4, 2)]
    """
    found: dict[Any, Mesh] = {}
    for axes in range(1, most_axes + 1):
        for shape in _shapes(devices, axes):
            links = tuple(sorted(_links(shape, axis, cluster) for axis in range(axes)))
            found.setdefault(links, Mesh(shape, AXES[:axes]))
    return list(found.values())


def _shapes(devices: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a product of numbers above 1; of one axis, any number."""
    if axes == 1:
        yield (devices,)
        return
    for first in range(2, devices // 2 + 1):
        if devices % first == 0:
            yield from ((first, *rest) for rest in _shapes(devices // first, axes - 1))


def _links(shape: tuple[int, ...], axis: int, cluster: Cluster | None) -> tuple[int, ...]:
    """The size of an axis, and along which axes of the cluster its devices differ from the first.

    Two devices differ along the axes whose bits are set.
    """
    size = shape[axis]
    data = {} if cluster is None else cluster.as_data()
    if "shape" not in data:
        return (size,)
    of_cluster = tuple(data["shape"])
    place = {device: number for number, device in enumerate(data["device_ids"])}
    ids = np.arange(np.prod(shape)).reshape(shape)
    group = np.moveaxis(ids, axis, -1)[(0,) * (len(shape) - 1)]
    outside = (-1,) * len(of_cluster)
    at = [
        tuple(map(int, np.unravel_index(place[each], of_cluster))) if each in place else outside
        for each in map(int, group)
    ]
    differing = (
        sum((a != b) << bit for bit, (a, b) in enumerate(zip(at[0], each, strict=True)))
        for each in itertools.islice(at, 1, None)
    )
    return (size, *sorted(differing))
