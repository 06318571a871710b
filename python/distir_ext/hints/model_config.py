"""Derives layer hints from the configuration of a transformers model."""

from __future__ import annotations

import ast
import json
import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distir_ext.hints.families import (
    ALL,
    BY_PLAN,
    DENSE,
    FAMILIES,
    PLANNED,
    SPARSE,
    Family,
    Module,
    Weight,
)
from distir_ext.hints.modules import hints_of_modules, model_class
from distir_ext.hints.vocabulary import Hints, LayerHint, WeightHint
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.files.regular_file import read_file
from distir_ext.text.files.yaml_text import MOST_BYTES

MOST_LAYERS = 10_000
"""Largest number of layers that is read; a larger one is an error, and would take hours."""

# Rules of plans for modules that have nothing to shard, as norms.
_REPLICATED = "replicated"


@short_tracebacks
def from_config(
    config: Any | Mapping[str, Any] | str | os.PathLike[str], prefix: str | None = None
) -> Hints:
    """Hints of a model of transformers, by its configuration.

    Which layers there are, their heads, groups and experts are read from the configuration. Models
    whose ``base_model_tp_plan`` has all weights of attention and feed-forward layers are known by
    it, some by their ``model_type``. Of any other causal language model the modules are made
    without weights, exported, and looked at as :func:`distir_ext.hints.detect` does. Hints have the
    size of each weight's dimension too, so that applying them to weights that the configuration is
    not of is an error.

    Args:
        config: A configuration of transformers; or a ``config.json``, the directory that it is
            in, or what it says as a mapping, which transformers reads.
        prefix: Prefix of ``layers`` in the names of weights, as ``model`` in
            ``model.layers.0.mlp``; None: as in the class for causal language models.

    Raises:
        ValueError: The model is not known: names the nearest that is. Or a field is missing, or
            fields contradict each other: names the layer and the weight.
        OSError: The file cannot be read.
        ImportError: A file or mapping is given, and transformers is not installed.
    """
    config = read_configuration(config)
    stated = _Config(config)
    family = _family(stated)
    if family is None:
        made = model_class(config)
        if made is None:
            text = stated.get("text_config")
            more = "; pass its text_config, and the prefix" if text else ""
            raise _unknown(stated.model_type, more)
        config = config if isinstance(config, made.config_class) else config.get_text_config()
        _Config(config).depth()
        return hints_of_modules(made, config, prefix)
    prefix = family.prefix if prefix is None else prefix
    layers: dict[str, LayerHint] = {}
    places: dict[tuple[str, ...], str] = {}
    for index in range(stated.depth()):
        for name, module in _modules(stated, family, index):
            layer = ".".join(part for part in (prefix, "layers", str(index), name) if part)
            weights = {}
            for key, weight in module.weights.items():
                if stated.has(weight.when):
                    weights[key], place = _hint(stated, weight, f"{layer}.{key}")
                    places["layers", layer, "weights", key] = place
            why = f"the configuration of {stated.model_type}"
            layers[layer] = LayerHint(module.layer_type, weights, why=why)
    return Hints(layers, places=places)


def read_configuration(config: Any) -> Any:
    """A configuration of transformers: of a file, its directory or a mapping; others as they are.

    Raises:
        ValueError: It is none.
        OSError: The file cannot be read.
        ImportError: transformers is not installed.
    """
    if isinstance(config, str | os.PathLike):
        path = Path(config)
        path = path / "config.json" if path.is_dir() else path
        config = read_fields(read_file(path, MOST_BYTES), str(path))
    return _read(config) if isinstance(config, Mapping) else config


def read_fields(text: bytes, where: str) -> dict[str, Any]:
    """Reads the fields of a ``config.json``.

    Args:
        text: Its text.
        where: Name in messages.

    Raises:
        ValueError: It is no JSON object.
    """
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the configuration {where} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"the configuration {where} is no JSON object")
    return fields


def _read(stated: Mapping[str, Any]) -> Any:
    """The configuration of transformers, with the defaults of its class."""
    fields = dict(stated)
    model_type = fields.pop("model_type", None)
    if not isinstance(model_type, str):
        raise ValueError("the configuration states no model_type")
    if fields.get("num_hidden_layers") is not None:
        _Config(SimpleNamespace(**fields)).depth()  # before transformers lists what each layer has
    try:
        from transformers import AutoConfig
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    except ImportError as error:
        raise ImportError(
            "a configuration is read by transformers, which is not installed: "
            "pip install 'distir-ext[torch]'"
        ) from error
    if model_type not in CONFIG_MAPPING:
        raise _unknown(model_type)
    try:
        return AutoConfig.for_model(model_type, **fields)
    except Exception as error:  # each class checks its fields in its own way
        raise ValueError(f"transformers refuses the configuration of {model_type}: {error}") from (
            error
        )


def _unknown(model_type: str, more: str = "") -> ValueError:
    known = sorted({*FAMILIES, *BY_PLAN})
    return ValueError(
        f"no hints are known for the model_type {model_type[:60]!r}, only for {', '.join(known)}, "
        f"others whose base_model_tp_plan has all their layers, and causal language models of "
        f"transformers"
        f"{did_you_mean(model_type, known)}{more}"
    )


class _Config:
    """The fields of a configuration.

    Args:
        config: As transformers has it.
    """

    def __init__(self, config: Any) -> None:
        self._config = config
        self.model_type = str(getattr(config, "model_type", "") or type(config).__name__)

    def get(self, name: str) -> Any:
        """The value of a field; None where it is not stated."""
        return getattr(self._config, name, None)

    def has(self, when: str) -> bool:
        """Returns whether the condition :attr:`Weight.when` holds: a field is stated, or is not."""
        name = when.removeprefix("not ")
        return not when or bool(self.get(name)) == (name == when)

    def size(self, name: str) -> int:
        """A field that is a positive number.

        Raises:
            ValueError: It is none.
        """
        value = self.get(name)
        if value is None and name == "num_key_value_heads":
            return self.size("num_attention_heads")
        if value is None and name == "head_dim":
            return _whole(self.size("hidden_size"), self.size("num_attention_heads"))
        if value is None:
            raise ValueError(f"{name} is not stated")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} is {str(value)[:60]}, not a positive number")
        return int(value)

    def depth(self) -> int:
        """Returns the number of layers.

        Raises:
            ValueError: It is no number of layers.
        """
        found = self.size("num_hidden_layers")
        if found > MOST_LAYERS:
            raise ValueError(f"num_hidden_layers is {found}, more than {MOST_LAYERS}")
        return found

    def layer_number(self, name: str) -> int | None:
        """A field that counts layers; None where it is not stated.

        Raises:
            ValueError: It does not.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} is {str(value)[:60]}, not a number of layers")
        return int(value)

    def listed(self, name: str) -> Sequence[Any]:
        """A field that is a list; empty where it is not stated.

        Raises:
            ValueError: It is none.
        """
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is {str(value)[:60]}, not a list")
        return value

    def evaluate(self, text: str) -> int:
        """An expression of fields.

        Raises:
            ValueError: A field is missing, or divides no other as it should.
        """

        def value(node: Any) -> int:
            if isinstance(node, ast.BinOp):
                return int(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
            return self.size(node.id) if isinstance(node, ast.Name) else int(node.value)

        return value(ast.parse(text, mode="eval").body)

    def stated(self, text: str) -> str:
        """The fields of an expression and their values, for messages."""
        names = dict.fromkeys(re.findall(r"[a-z]\w*", text))
        return ", ".join(f"{name} {self.size(name)}" for name in names)


def _whole(number: int, divisor: int) -> int:
    if number % divisor:
        raise ValueError(f"{number} cannot be divided by {divisor}")
    return number // divisor


_OPERATORS: Mapping[type, Any] = {ast.Add: operator.add, ast.Mult: operator.mul, ast.Div: _whole}


def _family(config: _Config) -> Family | None:
    """The family whose modules are known from fields alone; None where there is none."""
    return FAMILIES.get(config.model_type) or _planned(config.get("base_model_tp_plan"))


def _planned(plan: Any) -> Family | None:
    """The family whose modules a plan has; None where it has others, or none."""
    if plan is None:
        return None
    if not isinstance(plan, Mapping) or not all(
        isinstance(text, str) for entry in plan.items() for text in entry
    ):
        raise ValueError(f"base_model_tp_plan is {str(plan)[:60]}, not names with their styles")
    modes: dict[str, dict[str, str]] = {}
    for name, style in plan.items():
        match = re.fullmatch(r"layers\.\*\.(.+)\.([^.]+)", name)
        if match is not None and not style.startswith(_REPLICATED):
            modes.setdefault(match[1], {})[match[2]] = style
    found = []
    for name, weights in modes.items():
        for module in PLANNED:
            if weights == {key: weight.tp_mode for key, weight in module.weights.items()}:
                found.append((name, ALL, module))
    return Family(tuple(found)) if found and len(found) == len(modes) else None


def _modules(config: _Config, family: Family, index: int) -> Iterator[tuple[str, Module]]:
    """The modules of a layer."""
    present = {ALL, SPARSE if _is_sparse(config, index) else DENSE}
    typed = [each for _, each, _ in family.modules if each not in (ALL, SPARSE, DENSE)]
    if typed:
        types = config.listed("layer_types")
        if index >= len(types):
            raise ValueError(f"{config.model_type} states no type of layer {index} in layer_types")
        if types[index] not in typed:
            raise ValueError(
                f"layer {index} of {config.model_type} is of the type {_short(types[index])}, not "
                f"{', '.join(typed)}{did_you_mean(str(types[index]), typed)}"
            )
        present.add(types[index])
    for name, each, module in family.modules:
        if each in present:
            yield name, module


def _is_sparse(config: _Config, index: int) -> bool:
    """Returns whether a layer has experts."""
    stated = config.listed("mlp_layer_types")
    if stated:
        if index >= len(stated):
            raise ValueError(f"mlp_layer_types has {len(stated)} layers, not layer {index}")
        return bool(stated[index] == SPARSE)
    dense = config.layer_number("first_k_dense_replace")
    if dense is not None:
        return index >= dense
    step = config.layer_number("decoder_sparse_step") or 1
    return index not in config.listed("mlp_only_layers") and (index + 1) % step == 0


def _short(value: Any) -> str:
    return repr(value)[:60]


def _hint(config: _Config, weight: Weight, name: str) -> tuple[WeightHint, str]:
    """The hint for a weight, and the place of its sizes for messages."""
    what = f"the configuration of {config.model_type}"
    try:
        blocks = [(config.evaluate(a), config.evaluate(b)) for a, b in weight.blocks]
        fields = config.stated(" ".join(text for block in weight.blocks for text in block))
    except ValueError as error:
        raise ValueError(f"{what}: {name}: {error}") from error
    sizes, units = tuple(a * b for a, b in blocks), tuple(b for _, b in blocks)
    hint = WeightHint(
        weight.tp_mode,
        sizes if len(sizes) > 1 else (),
        units[0] if len(set(units)) == 1 else units or 1,
        size=sum(sizes),
    )
    return hint, f"{what} ({fields})" if fields else what
