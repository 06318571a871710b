"""Finds the mesh axes along which device groups, or pairs of sender and receiver, communicate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from distir_ext.mesh.mesh import Mesh


def axes_of_groups(mesh: Mesh, groups: Sequence[Sequence[int]]) -> tuple[str, ...] | None:
    """The axes along which a mesh falls into these groups, major to minor.

    Args:
        mesh: A mesh.
        groups: Of device ids; the order of the groups does not matter, that within one does.

    Returns:
        The axes, without any of size 1; None if the mesh does not fall into these groups.

    Example:
        >>> axes_of_groups(Mesh(dp=2, tp=2), [[0, 1], [2, 3]])
        ('tp',)
        >>> axes_of_groups(Mesh(dp=2, tp=2), [[0, 2, 1, 3]])
        ('tp', 'dp')
        >>> axes_of_groups(Mesh(dp=2, tp=2), [[0, 3], [1, 2]])
    """
    wanted = {tuple(group) for group in groups}
    places = _places(mesh)
    first = next(iter(groups), ())
    if not first or not all(device in places for device in first):
        return None
    varying = _varying([places[device] for device in first])
    if math.prod(mesh.shape[axis] for axis in varying) != len(first):
        return None
    for order in itertools.permutations(varying):
        if {tuple(row) for row in _rows(mesh, order).tolist()} == wanted:
            return tuple(mesh.axis_names[axis] for axis in order)
    return None


def axes_of_pairs(
    mesh: Mesh, pairs: Sequence[Sequence[int]], manual: Sequence[str]
) -> tuple[tuple[str, ...], list[tuple[int, int]]] | None:
    """The axes along which devices send alike, and which numbers along them send to which.

    Args:
        mesh: A mesh.
        pairs: (sender, receiver), device ids.
        manual: The axes that may be used; as few as do are.

    Returns:
        Axes in the order of the mesh, and pairs of numbers along them; None if devices that differ
        along other axes send to others.

    Example:
        >>> axes_of_pairs(Mesh(dp=2, tp=2), [[0, 1], [1, 0], [2, 3], [3, 2]], ["dp", "tp"])
        (('tp',), [(0, 1), (1, 0)])
        >>> axes_of_pairs(Mesh(dp=2, tp=2), [[0, 1]], ["dp", "tp"])
        (('dp', 'tp'), [(0, 1)])
    """
    places = _places(mesh)
    if not all(device in places for pair in pairs for device in pair):
        return None
    moved = {axis for pair in pairs for axis in _varying([places[device] for device in pair])}
    usable = {mesh.axis_names.index(name) for name in manual}
    if not moved <= usable:
        return None
    for axes in (sorted(moved), sorted(usable)):
        rows = _rows(mesh, axes)
        where = {int(device): place for place, device in np.ndenumerate(rows)}
        found: list[set[tuple[int, int]]] = [set() for _ in rows]
        for sender, receiver in pairs:
            group, number = where[sender]
            found[group].add((number, where[receiver][1]))
        if all(each == found[0] for each in found):
            return tuple(mesh.axis_names[axis] for axis in axes), sorted(found[0])
    return None


def _places(mesh: Mesh) -> dict[int, tuple[int, ...]]:
    """The coordinates of each device."""
    ids = np.array(mesh.device_ids).reshape(mesh.shape)
    return {int(device): place for place, device in np.ndenumerate(ids)}


def _varying(places: Sequence[tuple[int, ...]]) -> list[int]:
    """The axes along which places differ."""
    return [axis for axis, here in enumerate(zip(*places, strict=True)) if len(set(here)) > 1]


def _rows(mesh: Mesh, axes: Sequence[int]) -> np.ndarray:
    """The devices, a row for each place along the other axes."""
    ids = np.array(mesh.device_ids).reshape(mesh.shape)
    last = np.moveaxis(ids, axes, range(-len(axes), 0))
    return last.reshape(-1, math.prod(mesh.shape[axis] for axis in axes))
