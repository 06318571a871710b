"""Chooses the sharding of caches: the batch over its axis, heads over the tensor-parallel axis."""

from __future__ import annotations

import math
from typing import Any

from distir_ext.annotate.axes import Axes
from distir_ext.interop.torch.generation.caches import HEADS, CacheTensor
from distir_ext.interop.torch.generation.steps import Layout

EMPTY = "empty"
"""Name of the program that gives empty caches."""


class CacheShardings:
    """The sharding of a model's caches.

    Args:
        layout: The model's steps.
        axes: The mesh.
        notes: Get what is not sharded, and why.
    """

    def __init__(self, layout: Layout, axes: Axes, notes: list[str]) -> None:
        self._layout = layout
        single = axes.mesh.axis_names[0] if len(axes.mesh.axis_names) == 1 else None
        batch = axes.find("batch")
        heads = axes.find("tp") or (single if single != batch else None)
        self._axes = [
            (0, "the batch", batch, axes.size(batch) if batch else 1),
            (HEADS, "the heads", heads, axes.size(heads) if heads else 1),
        ]
        self._dims = {each.name: self._of(each, notes) for each in layout.tensors}

    def _of(self, tensor: CacheTensor, notes: list[str]) -> tuple[str | None, ...]:
        dims: list[str | None] = [None] * len(tensor.shape)
        for dim, what, axis, devices in self._axes:
            if axis is None or len(dims) <= dim:
                continue
            if tensor.shape[dim] < devices:
                notes.append(
                    f"{tensor.name}: not sharded by {what}, which are {tensor.shape[dim]}, fewer "
                    f"than the {devices} devices of axis {axis!r}"
                )
            else:
                dims[dim] = axis
        return tuple(dims)

    def entries(self, program: str, params: set[str]) -> dict[str, Any]:
        """Shardings that are stated of a program's inputs and results."""
        layout = self._layout
        results = {"encode": layout.crossed, EMPTY: layout.kept}.get(program, layout.kept)
        first = 0 if program in ("encode", EMPTY) else 1
        found = {name: dims for name, dims in self._dims.items() if name in params}
        for index, each in enumerate(results, start=first):
            found[f"return.{index}"] = self._dims[each.name]
        return found

    @property
    def bytes_per_device(self) -> int:
        """Memory of the caches on the device that holds most of them."""
        devices = {axis: count for _, _, axis, count in self._axes}
        total = 0
        for each in self._layout.tensors:
            sizes = [
                -(-size // devices[axis]) if axis else size
                for size, axis in zip(each.shape, self._dims[each.name], strict=True)
            ]
            total += math.prod(sizes) * each.dtype.itemsize
        return total
