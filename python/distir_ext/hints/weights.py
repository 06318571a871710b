"""Weights of a model as those of a module whose fused weights are cut."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distir_ext._errors.spelling import plain
from distir_ext._hints.blocks import Cut
from distir_ext._params.checkpoint import open_params
from distir_ext._params.stored_array import MappedFiles, StoredArray


@dataclass(frozen=True)
class CutWeights:
    """Which weights are cut, and how.

    Attributes:
        cuts: By name of a parameter.
        blocks: By the same name the names of its blocks.
    """

    cuts: Mapping[str, Cut]
    blocks: Mapping[str, tuple[str, ...]]

    def cut(self, params: Any) -> dict[str, Any]:
        """Weights by name, those that are cut as blocks; see :meth:`Hinted.params`."""
        if isinstance(params, str | os.PathLike):
            params = open_params(params)
        pairs: Iterable[tuple[str, Any]] = params.items() if hasattr(params, "items") else params
        known = {key: name for name in self.cuts for key in (plain(name), plain(name)[2:])}
        found: dict[str, Any] = {}
        for name, value in pairs:
            param = name if name in self.cuts else known.get(plain(str(name)))
            if param is None:
                found[str(name)] = value
            else:
                found.update(self._blocks(param, value))
        return found

    def _blocks(self, param: str, value: Any) -> dict[str, Any]:
        cut = self.cuts[param]
        shape = tuple(int(size) for size in value.shape)
        size = shape[cut.dim] if cut.dim < len(shape) else 0
        if size != sum(cut.sizes):
            raise ValueError(
                f"the weight {param} has the shape {list(shape)}: dimension {cut.dim} is to be cut "
                f"into blocks of {list(cut.sizes)}"
            )
        ranges = cut.ranges()
        part: Callable[[int, int], Any] = _slicer(value, cut.dim)
        return {
            name: part(begin, end)
            for name, (begin, end) in zip(self.blocks[param], ranges, strict=True)
        }


def _slicer(value: Any, dim: int) -> Callable[[int, int], Any]:
    """What gives a range of an array along a dimension."""
    if isinstance(value, StoredArray):
        # Memory of the file, which is mapped for as long as an array of it lives.
        value = value.read(MappedFiles(), [0] * len(value.shape), value.shape)
    elif not hasattr(value, "__getitem__"):
        value = value.numpy()
    return lambda begin, end: value[tuple([slice(None)] * dim + [slice(begin, end)])]
