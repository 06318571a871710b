"""Reads and writes layer hints as YAML; mappings are read, too.

::

    dist:
      world_size: 4
      moe_ep_size: 2
    layers:
      model.layers.*.self_attn:
        layer_type: mha
        weights:
          qkv_proj: {tp_mode: colwise, output_sizes: [64, 32, 32], tp_min_local_shape: 16}
          o_proj: {tp_mode: rowwise, tp_min_local_shape: 16}
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from distir_ext.hints.vocabulary import DistConfig, Hints, LayerHint, WeightHint
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.files.regular_file import read_file
from distir_ext.text.files.typed_yaml import converted, mapping_at
from distir_ext.text.files.yaml_text import MOST_BYTES, YamlDocument, read_yaml

_KEYS = ("dist", "layers")
_OF_DIST: dict[str, Any] = {
    "world_size": int,
    "tp_size": int,
    "moe_ep_size": int,
    "moe_tp_size": int,
    "enable_attention_dp": bool,
    "shard_layers": tuple[str, ...] | None,
}
_OF_LAYER: dict[str, Any] = {"layer_type": str, "shardable": bool, "weights": Any, "why": str}
_OF_WEIGHT: dict[str, Any] = {
    "tp_mode": str,
    "output_sizes": tuple[int, ...],
    "tp_min_local_shape": int | tuple[int, ...],
    "size": int,
    "why": str,
}

Made = TypeVar("Made")


@short_tracebacks
def load(*configurations: str | os.PathLike[str] | Mapping[str, Any]) -> Hints:
    """Hints of files.

    Args:
        configurations: YAML files, or what they would say as mappings. Of layers that several
            have, the last one counts.

    Raises:
        ValueError: A file is no YAML, or has a key, a layer type or a mode that there is not, or a
            value of another type. The message has the file, the line and the nearest name.
        OSError: A file cannot be read.
        ImportError: No reader of YAML is installed (``pip install 'distir-ext[yaml]'``).

    Example:
        >>> hints = load({"layers": {"mlp": {"layer_type": "mlp",
        ...     "weights": {"up": {"tp_mode": "colwise"}}}}})
        >>> hints.layers["mlp"].weights["up"].tp_mode
        'colwise'
    """
    found = Hints()
    for configuration in configurations:
        if isinstance(configuration, Mapping):
            document = YamlDocument(dict(configuration), "the hints", {})
        else:
            path = Path(configuration)
            document = read_yaml(read_file(path, MOST_BYTES), f"the hints {path}")
        found = found.merged(_hints(document))
    return found


def read_hints(data: bytes, what: str) -> Hints:
    """Hints of a text.

    Args:
        data: YAML in UTF-8.
        what: For messages.

    Raises:
        ValueError: As :func:`load`.
    """
    return _hints(read_yaml(data, what))


@short_tracebacks
def to_yaml(hints: Hints) -> str:
    """Hints as :func:`load` reads them; what is as by default is left out.

    Args:
        hints: Hints of a model.

    Returns:
        YAML, as text.
    """
    import yaml

    data: dict[str, Any] = {}
    if hints.dist is not None:
        data["dist"] = _plain(hints.dist, DistConfig(world_size=hints.dist.world_size))
        data["dist"]["world_size"] = hints.dist.world_size
    data["layers"] = {
        name: {
            **_plain(layer, LayerHint(layer_type="unknown")),
            "weights": {key: _plain(each, WeightHint()) for key, each in layer.weights.items()},
        }
        for name, layer in hints.layers.items()
    }
    return str(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=100))


def _plain(value: Any, default: Any) -> dict[str, Any]:
    """The fields that are not as by default, as YAML has them."""
    found = {}
    for each in dataclasses.fields(value):
        stated = getattr(value, each.name)
        if each.name != "weights" and stated != getattr(default, each.name):
            found[each.name] = list(stated) if isinstance(stated, tuple) else stated
    return found


def _hints(document: YamlDocument) -> Hints:
    if document.value is None:
        return Hints()
    stated = mapping_at(document, (), document.value)
    _check_keys(document, (), stated, _KEYS)
    places: dict[tuple[str, ...], str] = {}
    dist = stated.get("dist")
    layers = mapping_at(document, ("layers",), stated.get("layers") or {})
    return Hints(
        {name: _layer(document, name, each, places) for name, each in layers.items()},
        None if dist is None else _made(document, ("dist",), dist, _OF_DIST, DistConfig),
        places,
    )


def _layer(
    document: YamlDocument, name: str, value: Any, places: dict[tuple[str, ...], str]
) -> LayerHint:
    path = ("layers", name)
    places[path] = document.place(path)
    stated = mapping_at(document, path, value)
    _check_keys(document, path, stated, _OF_LAYER)
    weights = mapping_at(document, (*path, "weights"), stated.get("weights") or {})
    hints = {}
    for weight, each in weights.items():
        inner = (*path, "weights", weight)
        places[inner] = document.place(inner)
        hints[weight] = _made(document, inner, each, _OF_WEIGHT, WeightHint)
    others = {key: each for key, each in stated.items() if key != "weights"}
    return dataclasses.replace(_made(document, path, others, _OF_LAYER, LayerHint), weights=hints)


def _made(
    document: YamlDocument,
    path: tuple[str, ...],
    value: Any,
    types: Mapping[str, Any],
    make: type[Made],
) -> Made:
    stated = mapping_at(document, path, value)
    _check_keys(document, path, stated, types)
    fields = {
        key: converted(each, types[key], document.place((*path, key)))
        for key, each in stated.items()
    }
    try:
        return make(**fields)
    except TypeError as error:  # what has to be stated is not
        raise ValueError(f"{document.place(path)}: {_lacking(make, fields)}") from error
    except ValueError as error:
        raise ValueError(f"{_line_of(document, path, stated, str(error))}: {error}") from error


def _lacking(make: type[Any], fields: Mapping[str, Any]) -> str:
    lacking = [
        each.name
        for each in dataclasses.fields(make)
        if each.default is dataclasses.MISSING
        and each.default_factory is dataclasses.MISSING
        and each.name not in fields
    ]
    return f"{', '.join(lacking)} has to be stated"


def _line_of(
    document: YamlDocument, path: tuple[str, ...], stated: Mapping[str, Any], error: str
) -> str:
    """The place of the key that an error is about, else of all."""
    about = [key for key in stated if key in error]
    return document.place((*path, about[0]) if about else path)


def _check_keys(
    document: YamlDocument, path: tuple[str, ...], stated: Mapping[str, Any], known: Any
) -> None:
    for key in stated:
        if key not in known:
            raise ValueError(
                f"{document.place((*path, key))}: there is no such key, only {', '.join(known)}"
                f"{did_you_mean(key, known)}"
            )
