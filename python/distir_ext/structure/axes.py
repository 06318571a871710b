"""Chooses mesh axes for a layer, whole or split, so that some devices may share a shard.

Devices that share a layer are numbered; experts' groups are the major part of the number. With 4
devices and 2 heads of keys, a shard of keys is that of devices 0 and 1, the other that of 2 and 3:
the axis ``tp`` of 4 is made of ``tp_0`` and ``tp_1``, and keys are sharded over ``tp_0``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import gcd, prod

DATA, EXPERTS, TENSOR = "dp", "ep", "tp"


class LayerAxes:
    """The axes of a mesh.

    Args:
        data: Devices that have other parts of the batch.
        groups: Groups of experts.
        per_group: Devices that share an expert.
        shards: Into how many shards tensors are to be divided; those that the axes cannot say are
            divided into fewer, see :meth:`divide`.
    """

    def __init__(self, data: int, groups: int, per_group: int, shards: Iterable[int] = ()) -> None:
        total = groups * per_group
        points = {1, groups, total}
        for wanted in sorted(set(shards), reverse=True):
            if all(wanted % point == 0 or point % wanted == 0 for point in points):
                points.add(wanted)
        ordered = sorted(points)
        self.data = DATA if data > 1 else None
        self.sizes: dict[str, int] = {DATA: data} if data > 1 else {}
        self._ends: dict[str, int] = {}
        self._groups = groups
        for name, first, last in ((EXPERTS, 1, groups), (TENSOR, groups, total)):
            within = [point for point in ordered if first <= point <= last]
            several = len(within) > 2
            for number, (a, b) in enumerate(pairwise(within)):
                axis = f"{name}_{number}" if several else name
                self.sizes[axis] = b // a
                self._ends[axis] = b
        if not self.sizes:
            self.sizes[TENSOR] = 1

    @property
    def layer(self) -> tuple[str, ...]:
        """The axes over which a layer is sharded."""
        return tuple(self._ends)

    @property
    def groups(self) -> tuple[str, ...]:
        """The axes over which experts are sharded."""
        return tuple(axis for axis, end in self._ends.items() if end <= self._groups)

    @property
    def per_group(self) -> tuple[str, ...]:
        """The axes over which each expert is sharded."""
        return tuple(axis for axis, end in self._ends.items() if end > self._groups)

    def divide(self, count: int, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The first of some axes that divide a number of things, as many as can.

        All of them where none does, and there is one thing for each device: see :func:`shards_of`.
        """
        found, shards = [], 1
        for axis in axes:
            shards *= self.sizes[axis]
            if count % shards:
                break
            found.append(axis)
        devices = prod(self.sizes[axis] for axis in axes)
        return axes if shards_of(count, devices) == devices else tuple(found)


def shards_of(units: int, devices: int) -> int:
    """Number of shards into which some units are divided over devices.

    As many as divide both, so that devices share shards: 12 units over 8 devices are 4 shards of 3.
    Where none does, shards are of different sizes: 8 units over 3 devices are 3, 3 and 2.
    """
    shared = gcd(units, devices)
    return devices if shared == 1 and units > devices else shared
