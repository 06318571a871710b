"""What a function says of weights that were cut into parameters of their own.

The function attribute ``distir.fused_params`` has, for each such weight, its first block among the
parameters, the number of blocks and the dimension along which they are: ``{"wqkv": [1, 3, 1]}`` of
``main(x, wqkv_0, wqkv_1, wqkv_2)``. ``LowerDistIR`` writes it into the signature, so that
``Session.load`` takes ``wqkv``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from tvm import relax

FUSED_ATTR = "distir.fused_params"

FusedParameters: TypeAlias = Mapping[str, tuple[int, tuple[str, ...]]]
"""By name of a weight that was cut, the dimension and the names of its blocks."""


def fused_parameters(function: relax.Function) -> FusedParameters:
    """By name of a weight that was cut, the dimension and the names of its blocks."""
    attrs = function.attrs
    stated = attrs[FUSED_ATTR] if attrs is not None and FUSED_ATTR in attrs else {}
    names = [str(param.name) for param in function.params]
    found = {}
    for name, entry in stated.items():
        first, count, dim = (int(each) for each in entry)
        found[str(name)] = dim, tuple(names[first : first + count])
    return found


def with_fused_parameters(function: relax.Function, fused: FusedParameters) -> relax.Function:
    """A function that says which of its parameters are blocks of one weight.

    Args:
        function: Has the blocks of a weight one after the other.
        fused: As from :func:`fused_parameters`.
    """
    if not fused:
        return function
    places = {str(param.name): place for place, param in enumerate(function.params)}
    stated = {name: [places[blocks[0]], len(blocks), dim] for name, (dim, blocks) in fused.items()}
    return function.with_attr(FUSED_ATTR, stated)
