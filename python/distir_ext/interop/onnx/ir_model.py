"""Finds faults in the device configurations of an ``onnx_ir.Model`` before it becomes a proto.

onnx_ir binds a sharding to the objects of a value and of a configuration. These may be missing, or
be other objects than the model's, of the same name. onnx_ir then fails to write a proto, or leaves
the sharding out. The package ``onnx_ir`` is not imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from distir_ext.interop.onnx.configuration import Violation
from distir_ext.interop.onnx.labels import node_label

IR_VERSION = 11
"""From this version on the ONNX format has device configurations."""


def is_ir_model(model: Any) -> bool:
    """Returns whether a model is an ``onnx_ir.Model``, without importing the package."""
    return type(model).__name__ == "Model" and type(model).__module__.startswith("onnx_ir")


def faults_of(model: Any) -> list[Violation]:
    """Finds errors in the objects of an ``onnx_ir.Model``, in its order; none in other models."""
    if not is_ir_model(model):
        return []
    return [
        *_of_version(model),
        *(each for node in _nodes_of(model) for each in _of_node(*node, model)),
    ]


@contextmanager
def without_faults(model: Any) -> Iterator[None]:
    """Removes from a model what a proto cannot have, until the block ends."""
    changed: list[tuple[Any, Any]] = []
    version = model.ir_version
    try:
        for node, _ in _nodes_of(model):
            given = node.device_configurations
            kept = tuple(_writable(each) for each in given if _name_of(each.configuration))
            if given and kept != tuple(given):
                changed.append((node, given))
                node.device_configurations = kept
        if version < IR_VERSION and _states_any(model):
            model.ir_version = IR_VERSION
        yield
    finally:
        model.ir_version = version
        for node, given in changed:
            node.device_configurations = given


def _of_version(model: Any) -> Iterator[Violation]:
    if model.ir_version < IR_VERSION and _states_any(model):
        yield Violation(
            f"it has device configurations and IR version {model.ir_version}; they exist from "
            f"version {IR_VERSION} on"
        )


def _of_node(node: Any, label: str, model: Any) -> Iterator[Violation]:
    for each in node.device_configurations:
        name = _name_of(each.configuration)
        known = [own for own in model.device_configurations if name and own.name == name]
        if each.configuration is None:
            yield Violation(
                "its configuration is None; it is one of the model's device_configurations",
                None,
                label,
            )
        elif not name:
            yield Violation("its configuration has no name", None, label)
        elif known and all(own is not each.configuration for own in known):
            yield Violation(
                "its configuration is another object than the model's of this name", name, label
            )
        for spec in each.sharding_specs:
            yield from _of_spec(spec, node, name, label)


def _of_spec(spec: Any, node: Any, configuration: str | None, label: str) -> Iterator[Violation]:
    if spec.value is None:
        yield Violation(
            "the value of a sharding is None; it is an input or output of the node",
            configuration,
            label,
        )
        return
    name = spec.value.name
    if not name:
        yield Violation("the value of a sharding has no name", configuration, label)
        return
    values = [each for each in (*node.inputs, *node.outputs) if each is not None]
    same = [each for each in values if each.name == name]
    if same and all(each is not spec.value for each in same):
        yield Violation(
            "the value of its sharding is another object than the node's of this name",
            configuration,
            label,
            name,
        )


def _writable(placement: Any) -> Any:
    specs = tuple(each for each in placement.sharding_specs if _name_of(each.value))
    if len(specs) == len(placement.sharding_specs):
        return placement
    return dataclasses.replace(placement, sharding_specs=specs)


def _states_any(model: Any) -> bool:
    return bool(model.device_configurations) or any(
        node.device_configurations for node, _ in _nodes_of(model)
    )


def _name_of(named: Any) -> str | None:
    return None if named is None else named.name or None


def _nodes_of(model: Any) -> Iterator[tuple[Any, str]]:
    """All nodes with their labels, those of branches, of loop bodies and of functions, too."""
    yield from _labelled(model.graph, "")
    for function in model.functions.values():
        yield from _labelled(function, f" of function {function.name!r}")


def _labelled(nodes: Iterable[Any], where: str) -> Iterator[tuple[Any, str]]:
    for index, node in enumerate(nodes):
        label = node_label(node, index) + where
        yield node, label
        for attribute in node.attributes.values():
            kind = getattr(getattr(attribute, "type", None), "name", "")
            if kind not in ("GRAPH", "GRAPHS") or attribute.is_ref():
                continue
            graphs = attribute.as_graphs() if kind == "GRAPHS" else [attribute.as_graph()]
            for graph in graphs:
                yield from _labelled(graph, f" in {attribute.name!r} of {label}")
