"""Record of fused weights that were split into one parameter per block.

The function attribute ``distir.fused_params`` has, for each such weight, the dimension along which
its blocks are, and the names of the parameters: ``{"wqkv": [1, "wqkv_0", "wqkv_1", "wqkv_2"]}``.
``LowerDistIR`` writes it into the signature, so that ``Session.load`` takes ``wqkv``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

from tvm import relax

FUSED_ATTR = "distir.fused_params"

FusedParameters: TypeAlias = Mapping[str, tuple[int, tuple[str, ...]]]
"""Dimension and names of the blocks of each weight that was split, by name."""


def fused_parameters(function: relax.Function) -> FusedParameters:
    """Reads a function's record, with the parameter names that printing and parsing give."""
    attrs = function.attrs
    if attrs is None or FUSED_ATTR not in attrs:
        return {}
    names = {str(param.name) for param in function.params}
    found = {}
    for weight, (dim, *blocks) in attrs[FUSED_ATTR].items():
        texts = (str(block) for block in blocks)
        printed = tuple(text if text in names else re.sub(r"\W", "_", text) for text in texts)
        found[str(weight)] = int(dim), printed
    return found


def with_fused_parameters(function: relax.Function, fused: FusedParameters) -> relax.Function:
    """A function that says which of its parameters are blocks of one weight."""
    if not fused:
        return function
    return function.with_attr(
        FUSED_ATTR, {name: [dim, *names] for name, (dim, names) in fused.items()}
    )
