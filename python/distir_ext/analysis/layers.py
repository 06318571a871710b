"""Finds the layer of a model that a step belongs to, from the names of weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from distir_ext.analysis.programs.steps import Step

# Up to the first number that is a part of the name of its own.
_NUMBERED = re.compile(r"((?:.*?[._])?\d+)[._]")


def layer_of_weight(name: str) -> str:
    """The part of a weight's name up to its first number; empty where it has none.

    Example:
        >>> layer_of_weight("model.layers.11.self_attn.q_proj.weight")
        'model.layers.11'
        >>> layer_of_weight("lm_head.weight")
        ''
    """
    found = _NUMBERED.match(name)
    return found[1] if found else ""


def layers_of_steps(
    steps: Sequence[Step], params: Mapping[str, str], weights: Collection[str]
) -> list[str]:
    """The layer of each step.

    A step that reads a weight of a layer belongs to it; one that reads no weight, to the layer of
    what it reads, the last one where these differ. A weight without a number that one layer alone
    reads, as the head of a model, is outside of the layers, and so is what reads it.

    Args:
        steps: In program order.
        params: The layer of each parameter, empty for none.
        weights: The parameters without a layer that are weights.
    """
    order = {name: index for index, name in enumerate(dict.fromkeys(params.values()))}
    first = _spread(steps, params, order, ())
    readers: dict[str, set[str]] = {}
    for step, layer in zip(steps, first, strict=True):
        for name in step.reads:
            if name in weights and not params.get(name):
                readers.setdefault(name, set()).add(layer)
    outside = {name for name, layers in readers.items() if len(layers) == 1}
    return _spread(steps, params, order, outside)


def _spread(
    steps: Iterable[Step],
    params: Mapping[str, str],
    order: Mapping[str, int],
    outside: Collection[str],
) -> list[str]:
    layer_of = dict(params)
    found = []
    for step in steps:
        own = [params[name] for name in step.reads if params.get(name)]
        if own:
            layer = own[0]
        elif any(name in outside for name in step.reads):
            layer = ""
        else:
            read = [layer_of.get(name, "") for name in step.reads]
            layer = max(read, key=lambda each: order.get(each, -1) if each else -1, default="")
        layer_of[step.name] = layer
        found.append(layer)
    return found
