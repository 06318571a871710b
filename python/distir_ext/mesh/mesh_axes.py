"""Finds the mesh axes that a group of devices, or a plan of who sends to whom, runs along."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tvm_ffi


class NamedMesh(NamedTuple):
    """A mesh as users know it.

    Attributes:
        shape: Devices per axis.
        axis_names: Name of each axis.
        device_ids: Devices, row-major.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    device_ids: tuple[int, ...]


class MeshAxes:
    """Meshes, by whose axis names groups of their devices are described.

    The native library finds the axes (``src/abi/plan_moves.h``).
    """

    def __init__(self, meshes: Iterable[NamedMesh]) -> None:
        make = tvm_ffi.get_global_func("distir.abi.MeshAxes")
        self._of_group, self._of_plan = make([list(map(list, each)) for each in meshes])

    def of_group(self, group: Sequence[int]) -> tuple[str, ...]:
        """The names of the axes that a group spans, in the order of their mesh.

        None if no mesh has all of its devices; of a part of an axis, that axis.

        Example: on ``Mesh((2, 4), ("dp", "tp"))`` the group ``[0, 1, 2, 3]`` lies along ``tp``.
        """
        return tuple(map(str, self._of_group(list(group))))

    def of_plan(self, kind: str, plan: str) -> tuple[str, ...]:
        """The names of the axes along which senders and receivers differ.

        None of one side of a transfer, and none where a tensor leaves its mesh.

        Args:
            kind: Name of the collective.
            plan: As JSON.

        Raises:
            ValueError: It is no plan.
        """
        return tuple(map(str, self._of_plan(kind, plan)))
