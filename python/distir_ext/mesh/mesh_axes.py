"""Finds the mesh axes that a group of devices spans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple


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


@dataclass(frozen=True)
class _Axes:
    shape: tuple[int, ...]
    devices: tuple[int, ...]
    names: tuple[str, ...]

    @cached_property
    def positions(self) -> Mapping[int, int]:
        """The row-major place of each device, by id."""
        return {device: position for position, device in enumerate(self.devices)}

    def varying(self, devices: Sequence[int]) -> list[int]:
        """The axes along which not all of the devices have the same place."""
        places = [self._place(self.positions[device]) for device in devices]
        return [axis for axis, here in enumerate(zip(*places, strict=True)) if len(set(here)) > 1]

    def _place(self, position: int) -> list[int]:
        found = []
        for size in reversed(self.shape):
            position, place = divmod(position, size)
            found.append(place)
        return found[::-1]


class MeshAxes:
    """Meshes, by whose axis names groups of their devices are described."""

    def __init__(self, meshes: Iterable[NamedMesh]) -> None:
        self._meshes: list[_Axes] = []
        for mesh in meshes:
            devices = tuple(mesh.device_ids)
            self._meshes.append(_Axes(tuple(mesh.shape), devices, tuple(mesh.axis_names)))

    def of_group(self, group: Sequence[int]) -> tuple[str, ...]:
        """The names of the axes that a group spans, in the order of their mesh.

        None if no mesh has all of its devices; of a part of an axis, that axis.

        Example: on ``Mesh((2, 4), ("dp", "tp"))`` the group ``[0, 1, 2, 3]`` lies along ``tp``.
        """
        fallback: tuple[str, ...] = ()
        for mesh in self._meshes:
            if not all(device in mesh.positions for device in group):
                continue
            axes = mesh.varying(group)
            names = tuple(mesh.names[axis] for axis in axes)
            if math.prod(mesh.shape[axis] for axis in axes) == len(group):
                return names
            fallback = fallback or names
        return fallback

    def of_move(self, axes_on: Callable[[Sequence[int], Sequence[int]], Any]) -> tuple[str, ...]:
        """The names of the axes along which senders and receivers differ.

        Args:
            axes_on: From the shape and the devices of a mesh, the indices of these axes on it;
                None if it lacks a device that takes part.
        """
        for mesh in self._meshes:
            axes = axes_on(mesh.shape, mesh.devices)
            if axes is not None:
                return tuple(mesh.names[axis] for axis in axes)
        return ()
