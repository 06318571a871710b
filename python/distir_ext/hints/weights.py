"""Cuts arrays of fused weights into blocks, one for each parameter of the rewritten module.

Hints split a fused weight, such as QKV, into several parameters. A checkpoint still has it as one
array, which is cut here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distir_ext.params.blocks import blocks_of
from distir_ext.params.checkpoint import open_params
from distir_ext.structure.weights.blocks import Cut
from distir_ext.text.errors.spelling import plain


@dataclass(frozen=True)
class CutWeights:
    """Weights that are cut into blocks.

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
        blocks = blocks_of(param, value, cut.dim, cut.sizes)
        return dict(zip(self.blocks[param], blocks, strict=True))
