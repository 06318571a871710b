"""Recovers the module names of weights for which ONNX exporters state only a number.

Exporters of PyTorch fold the transposition of a linear layer's weight, and call what is new
``val_99`` or ``onnx::MatMul_123``. The node that reads it still says its module: by its name, by
the scopes that torch's exporter writes as metadata, or by a scope in its text::

    /model/layers.0/self_attn/q_proj/MatMul            ->  model.layers.0.self_attn.q_proj.weight
    ['', 'layers.0', 'layers.0.mlp.up_proj', 'linear'] ->  layers.0.mlp.up_proj.weight
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distir_ext.interop.onnx.proto import model_proto, nodes_of
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import printable_line

LOGGER = logging.getLogger("distir_ext.interop.onnx")

_NUMBERED = re.compile(r"(onnx::\w+|_?val|t|transpose|permute)?_?\d*")
_SCOPES = "pkg.torch.onnx.name_scopes"
_SCOPE_IN_TEXT = re.compile(r"\bscope: (\S+)")
# Inputs of an operator that are weights of its module.
_ROLES: Mapping[str, Mapping[int, str]] = {
    "MatMul": {0: "weight", 1: "weight"},
    "Gemm": {1: "weight", 2: "bias"},
    "Conv": {1: "weight", 2: "bias"},
    "ConvTranspose": {1: "weight", 2: "bias"},
    "Add": {0: "bias", 1: "bias"},
}


@dataclass(frozen=True)
class WeightNames:
    """Names that weights get instead of numbers.

    Attributes:
        renamed: From the names of the file to those that parameters get.
        kept: Of numbered weights that keep their name, why.
    """

    renamed: Mapping[str, str]
    kept: Mapping[str, str]


@short_tracebacks
def weight_names(model: Any) -> WeightNames:
    """The names of modules for the numbered weights of a model.

    Only weights and biases of products, convolutions and additions are looked at. A name that a
    tensor has already, or that two weights would get, is given to none.

    Args:
        model: As for :func:`read`.

    Raises:
        TypeError: It is no model.
        ValueError: The file is no model.
        OSError: The file cannot be read.
    """
    return names_of_proto(model_proto(model))


def names_of_proto(proto: Any) -> WeightNames:
    """Returns the names of modules for the numbered weights of an ``onnx.ModelProto``."""
    numbered = {
        each.name: len(each.dims)
        for each in proto.graph.initializer
        if each.name and _NUMBERED.fullmatch(each.name)
    }
    if not numbered:
        return WeightNames({}, {})
    wanted: dict[str, dict[str, None]] = {}
    taken: set[str] = {each.name for each in proto.graph.input}
    for node in nodes_of(proto):
        taken.update(node.tensors)
        roles = _ROLES.get(node.proto.op_type, {})
        for index, name in enumerate(node.proto.input):
            role = roles.get(index)
            is_bias = role == "bias"
            if name not in numbered or role is None or is_bias != (numbered[name] == 1):
                continue
            module = _module_of(node.proto)
            if module:
                wanted.setdefault(name, {})[f"{module}.{role}"] = None
    renamed: dict[str, str] = {}
    kept: dict[str, str] = {}
    by_name: dict[str, list[str]] = {}
    for name, found in wanted.items():
        for each in found:
            by_name.setdefault(each, []).append(name)
    for name, found in wanted.items():
        first = next(iter(found))
        if len(found) > 1:
            kept[name] = f"several modules read it: {', '.join(map(printable_line, found))}"
        elif len(by_name[first]) > 1:
            others = ", ".join(each for each in by_name[first] if each != name)
            kept[name] = f"{others} would be called {printable_line(first)}, too"
        elif first in taken:
            kept[name] = f"another tensor is called {printable_line(first)}"
        else:
            renamed[name] = first
    return WeightNames(renamed, kept)


def report(names: WeightNames) -> None:
    """Logs the weights that were renamed, and those that were not."""
    for name, new in names.renamed.items():
        LOGGER.info("%s is called %s", name, printable_line(new))
    for name, why in names.kept.items():
        LOGGER.info("%s keeps its name: %s", name, why)


def _module_of(node: Any) -> str:
    """The module that a node was exported from; empty if it does not say."""
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            found = _listed(entry.value)
            if found:
                return found
    parts = node.name.split("/")
    if len(parts) > 2 and not parts[0]:
        return ".".join(parts[1:-1])
    match = _SCOPE_IN_TEXT.search(node.doc_string)
    if match is None:
        return ""
    scopes = (part.partition("::")[2] for part in match[1].rstrip(",").split("/"))
    return ".".join(part for part in scopes if part)


def _listed(text: str) -> str:
    """The last scope before the operator's own, of a list as Python writes it."""
    try:
        scopes = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ""
    if not isinstance(scopes, list) or len(scopes) < 2 or not isinstance(scopes[-2], str):
        return ""
    return scopes[-2]
