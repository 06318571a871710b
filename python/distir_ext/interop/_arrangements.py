"""Arrangements of tensor shards on devices, and one mesh whose axes express all of them.

ONNX lists devices tensor by tensor, as HLO does, and has no mesh. Two tensors on four devices::

    w: axis 1 in 4 shards on devices 0, 1, 2, 3
    x: axis 0 in 2 shards on devices {0, 1} and {2, 3}

The shards of w have two-digit numbers: the major digit selects a half of the devices, the minor
one a device in it. The shards of x are numbered by the first digit alone. A digit becomes an axis
of the mesh: ``Mesh(x=2, y=2)``, w is ``(None, ("x", "y"))``, and x is ``("x", None)``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from distir_ext.mesh.device_text import device_text
from distir_ext.mesh.mesh import Mesh

Digits: TypeAlias = Any
"""A NumPy array with a number for each device, in the order of the devices."""


@dataclass(frozen=True)
class Arrangement:
    """Assignment of the shards of a tensor to devices."""

    shards: tuple[int, ...]
    """Per sharded axis how many shards it is cut into."""

    groups: tuple[tuple[int, ...], ...]
    """Per shard, in row-major order over these axes, the devices that have it."""

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices, in ascending order."""
        return tuple(sorted(device for group in self.groups for device in group))

    def check(self) -> None:
        """Raises ValueError unless a mesh can express the arrangement.

        Raises:
            ValueError: A device has two shards, or shards lie on different numbers of devices.
        """
        sizes = {len(group) for group in self.groups}
        if len(sizes) > 1:
            raise ValueError(
                f"its shards lie on {min(sizes)} to {max(sizes)} devices; on a mesh each shard is "
                "on equally many"
            )
        devices = self.devices
        twice = next((a for a, b in itertools.pairwise(devices) if a == b), None)
        if twice is not None:
            raise ValueError(f"device {twice} has two of its shards")

    def digits(self) -> list[tuple[Digits, int]]:
        """Per sharded axis which of its shards each device has, and how many there are."""
        size = len(self.groups[0])
        flat = np.array([device for group in self.groups for device in group])
        numbers = np.repeat(np.arange(len(self.groups)), size)[np.argsort(flat)]
        found = []
        rest = len(self.groups)
        for shards in self.shards:
            rest //= shards
            found.append((numbers // rest % shards, shards))
        return found


class CommonMesh:
    """The mesh that arrangements on the same devices have in common.

    Args:
        devices: All of them.
    """

    def __init__(self, devices: Iterable[int]) -> None:
        self._devices = sorted(devices)
        self._axes: list[tuple[Digits, int]] = []
        self._known: set[Arrangement] = set()

    def add(self, arrangement: Arrangement) -> None:
        """Refines the mesh, so that it expresses this arrangement, too.

        Raises:
            ValueError: No mesh can say it and those before; the mesh stays as it was.
        """
        if arrangement in self._known:
            return
        axes = list(self._axes)
        for digits, size in arrangement.digits():
            axes = _refined(axes, digits, size)
        classes = _classes(axes, len(self._devices))
        sizes = np.bincount(classes)
        if len(sizes) != math.prod(size for _, size in axes) or sizes.min() != sizes.max():
            raise ValueError(
                f"its shards on devices {device_text(_flat(arrangement))} do not go with those of "
                "tensors before it: no mesh has axes for both"
            )
        self._axes = axes
        self._known.add(arrangement)

    def mesh(self) -> Mesh:
        """The mesh; its axes are called x, y, z, w, a4, .."""
        axes = self._ordered()
        coordinates = np.zeros(len(self._devices), np.int64)
        for digits, size in axes:
            coordinates = coordinates * size + digits
        ids = np.array(self._devices)[np.argsort(coordinates)]
        return Mesh(ids.reshape([size for _, size in axes]))

    def axes_of(self, arrangement: Arrangement) -> list[tuple[str, ...]]:
        """Per sharded axis of an arrangement that was added, the axes of the mesh."""
        names = self.mesh().axis_names
        axes = list(zip(names, self._ordered(), strict=True))
        found = []
        for digits, size in arrangement.digits():
            chosen = []
            while size > 1:
                name, extent = next(
                    (name, extent)
                    for name, (axis, extent) in axes
                    if 1 < extent <= size
                    and size % extent == 0
                    and np.array_equal(axis, digits // (size // extent))
                )
                chosen.append(name)
                size //= extent
                digits = digits % size
            found.append(tuple(chosen))
        return found

    def _ordered(self) -> list[tuple[Digits, int]]:
        """The axes, major first, with one for the devices that none of them tells apart."""
        classes = _classes(self._axes, len(self._devices))
        replicas = len(self._devices) // (int(classes.max()) + 1)
        axes = list(self._axes)
        if replicas > 1 or not axes:
            order = np.argsort(classes, kind="stable")
            within = np.empty(len(order), np.int64)
            within[order] = np.arange(len(order)) % replicas
            axes.append((within, replicas))
        # The later an axis first counts up, the more major it is: devices ascend where they can.
        return sorted(axes, key=lambda axis: -int(np.argmax(axis[0] == 1)))


def _flat(arrangement: Arrangement) -> list[int]:
    return [device for group in arrangement.groups for device in group]


def _classes(axes: Sequence[tuple[Digits, int]], devices: int) -> Digits:
    """A number for each device, the same for those that no axis tells apart."""
    joint = np.zeros(devices, np.int64)
    for digits, size in axes:
        # Renumbered each time, so that numbers stay small whatever the axes are.
        joint = np.unique(joint * size + digits, return_inverse=True)[1].reshape(-1)
    return joint


def _refined(axes: list[tuple[Digits, int]], digits: Digits, size: int) -> list[tuple[Digits, int]]:
    """Axes of which some are the digits of a number: old ones are cut where they have to be."""
    pending = [(digits, size)]
    while pending:
        number, extent = pending.pop()
        if extent == 1:
            continue
        match = _common_digit(axes, number, extent)
        if match is None:
            axes = [*axes, (number, extent)]
            continue
        index, of_axis, of_number, common = match
        axis = axes[index]
        axes = [*axes[:index], *_cut(*axis, of_axis, common), *axes[index + 1 :]]
        before, _, after = _cut(number, extent, of_number, common, keep_ones=True)
        pending += [before, after]
    return axes


def _common_digit(
    axes: Sequence[tuple[Digits, int]], number: Digits, size: int
) -> tuple[int, int, int, int] | None:
    """The largest digit that an axis and a number share: which axis, where in both, its size."""
    wanted = {digit.tobytes(): place for place, digit in _digits(number, size)}
    best: tuple[int, int, int, int] | None = None
    for index, (axis, extent) in enumerate(axes):
        for (before, common), digit in _digits(axis, extent):
            if best is not None and common <= best[3]:
                continue
            place = wanted.get(digit.tobytes())
            if place is not None and place[1] == common:
                best = index, before, place[0], common
    return best


def _digits(number: Digits, size: int) -> Iterable[tuple[tuple[int, int], Digits]]:
    """All digits of a number, each with the size of what is major to it and its own."""
    divisors = [each for each in range(1, size + 1) if size % each == 0]
    for before in divisors:
        for common in divisors:
            if common > 1 and size % (before * common) == 0:
                yield (before, common), number // (size // (before * common)) % common


def _cut(
    number: Digits, size: int, before: int, common: int, keep_ones: bool = False
) -> list[tuple[Digits, int]]:
    """A number as three digits, from major to minor."""
    after = size // (before * common)
    parts = [
        (number // (common * after), before),
        (number // after % common, common),
        (number % after, after),
    ]
    return parts if keep_ones else [(digit, extent) for digit, extent in parts if extent > 1]
