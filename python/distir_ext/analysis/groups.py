"""Which mesh axes a group of devices lies along."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm

# What the axes of a mesh without names are called, as the native library does.
_LETTERS = "xyzw"
_NAMES_ATTR = "distir.mesh_axes"


@dataclass(frozen=True)
class _Axes:
    shape: tuple[int, ...]
    position: dict[int, int]  # by device id
    names: tuple[str, ...]

    def coordinates(self, device: int) -> tuple[int, ...]:
        rest, found = self.position[device], []
        for extent in reversed(self.shape):
            rest, coordinate = divmod(rest, extent)
            found.append(coordinate)
        return tuple(reversed(found))

    def varying(self, devices: Sequence[int]) -> list[int]:
        """The axes along which not all of the devices have the same place."""
        places = [self.coordinates(device) for device in devices]
        return [axis for axis, here in enumerate(zip(*places, strict=True)) if len(set(here)) > 1]


class MeshAxes:
    """The meshes of a module, to name what groups of their devices lie along."""

    def __init__(self, mod: tvm.IRModule) -> None:
        infos = mod.global_infos
        names = dict(mod.attrs[_NAMES_ATTR]) if mod.attrs and _NAMES_ATTR in mod.attrs else {}
        self._meshes = []
        for key in infos:
            named = list(names.get(key, ()))
            for index, mesh in enumerate(infos[key]):
                if not isinstance(mesh, tvm.relax.distributed.DeviceMesh):
                    continue
                shape = tuple(int(extent) for extent in mesh.shape)
                given = tuple(str(name) for name in named[index]) if index < len(named) else ()
                ids = {int(device): place for place, device in enumerate(mesh.device_ids)}
                self._meshes.append(_Axes(shape, ids, given or _letters(len(shape))))

    def of_group(self, group: Sequence[int]) -> tuple[str, ...]:
        """The names of the axes that a group spans, in the order of their mesh.

        None if no mesh has all of its devices; of a part of an axis, that axis.

        Example: on ``Mesh((2, 4), ("dp", "tp"))`` the group ``[0, 1, 2, 3]`` lies along ``tp``.
        """
        fallback: tuple[str, ...] = ()
        for mesh in self._meshes:
            if not all(device in mesh.position for device in group):
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
            axes = axes_on(mesh.shape, list(mesh.position))
            if axes is not None:
                return tuple(mesh.names[axis] for axis in axes)
        return ()


def _letters(count: int) -> tuple[str, ...]:
    return tuple(_LETTERS[i] if i < len(_LETTERS) else f"a{i}" for i in range(count))
