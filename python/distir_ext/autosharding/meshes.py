"""Meshes in which a number of devices can be arranged."""

from __future__ import annotations

from distir_ext.mesh.mesh import Mesh


def meshes_of(devices: int) -> list[Mesh]:
    """Meshes of one and two axes; the last axis joins neighbours.

    Args:
        devices: At least 1.

    Example:
        >>> [mesh.shape for mesh in meshes_of(8)]
        [(8,), (2, 4), (4, 2)]
    """
    inner = [size for size in range(2, devices) if devices % size == 0]
    return [
        Mesh((devices,), ("x",)),
        *(Mesh((devices // size, size), ("x", "y")) for size in reversed(inner)),
    ]
