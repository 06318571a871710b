"""Resolves the names of hints to parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distir_ext.hints.vocabulary import Hints, LayerHint, WeightHint
from distir_ext.text.errors.spelling import did_you_mean, plain

# Prefixes by which torch.export marks parameters, buffers and constants in names of inputs.
_PREFIX = "(?:[pbc]_)?"


@dataclass(frozen=True)
class ResolvedWeight:
    """A parameter and the hint for it.

    Attributes:
        param: The name of the parameter.
        layer: The name of its layer, without ``*``.
        hint: The hint.
        place: Place of the statement, for messages; empty if there is none.
    """

    param: str
    layer: str
    hint: WeightHint
    place: str


@dataclass(frozen=True)
class ResolvedLayer:
    """A layer with its parameters."""

    name: str
    hint: LayerHint
    weights: tuple[ResolvedWeight, ...]


def resolve(hints: Hints, params: Sequence[str]) -> list[ResolvedLayer]:
    """The layers of a function that hints mean.

    Names are compared with letters and digits only, and may be those that weights have in torch:
    ``model.layers.0.mlp`` with ``up_proj`` is ``p_model_layers_0_mlp_up_proj_weight``.

    Args:
        hints: The hints; of several for one parameter, the last one counts.
        params: The names of the parameters that are weights.

    Raises:
        ValueError: A weight of a hint is no parameter; names where, and the nearest.
    """
    chosen: dict[str, ResolvedWeight] = {}
    layers: dict[str, LayerHint] = {}
    for name, layer in hints.layers.items():
        for key, hint in layer.weights.items():
            place = hints.place("layers", name, "weights", key)
            for param, concrete in _matches(name, key, params, place).items():
                stated = hints.places.get(("layers", name, "weights", key), "")
                chosen[param] = ResolvedWeight(param, concrete, hint, stated)
                layers[concrete] = layer
    found: dict[str, list[ResolvedWeight]] = {name: [] for name in layers}
    for each in chosen.values():
        found[each.layer].append(each)
    return [
        ResolvedLayer(name, layers[name], tuple(weights))
        for name, weights in found.items()
        if weights
    ]


def _matches(layer: str, weight: str, params: Sequence[str], place: str) -> Mapping[str, str]:
    """The parameters that a weight of a layer means, with the layer's name for each."""
    parts = layer.split("*")
    name = "([^_]+)".join(re.escape(plain(part)) for part in parts)
    own = re.escape(plain(weight))
    found = {}
    for text in (f"{_PREFIX}{name}_{own}(?:_weight)?", f"{_PREFIX}{own}(?:_weight)?"):
        pattern = re.compile(text)
        for param in params:
            match = pattern.fullmatch(plain(param))
            if match is not None:
                groups = iter(match.groups())
                rest = (f"{next(groups, '*')}{part}" for part in parts[1:])
                found[param] = "".join([parts[0], *rest])
        if found:
            return found
    wanted = f"{layer}.{weight}"
    raise ValueError(f"{place}: no weight is called {wanted}{did_you_mean(wanted, params)}")
