"""Imports a graph by TVM's ONNX frontend, and records the Relax bindings of each ONNX node.

A node becomes a few bindings, whose variables TVM names as it likes, and outputs of shape
operators become none. So a mark is emitted behind each node, an empty tuple, and the bindings
between two marks are those of a node. The marks are dropped when shardings are put in.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend import detach_params
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

from distir_ext.interop._lookups import with_bounded_lookups
from distir_ext.interop.onnx.labels import node_label
from distir_ext.interop.onnx.proto import external_weights
from distir_ext.interop.onnx.weight_names import names_of_proto, report
from distir_ext.text.errors.spelling import counted


@dataclass(frozen=True)
class NodeValues:
    """The tensors of one node, as Relax expressions of the function."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class ImportedGraph:
    """Imported function, with the correspondence of its values to those of the graph."""

    function: relax.Function
    """Its bindings have marks."""

    params: dict[str, list[Any]]
    nodes: list[NodeValues]
    parameters: dict[str, relax.Var]
    """By the names of inputs and initializers, in the order of the function."""

    marks: dict[Any, int]
    """From the handles of variables to the nodes that they stand behind."""

    renamed: Mapping[str, str]
    """From names of initializers to those that their parameters get instead."""


def import_graph(
    model: Any, shape_dict: Mapping[str, Any] | None, opset: int | None
) -> ImportedGraph:
    """Imports the graph of an ``onnx.ModelProto``.

    Raises:
        ValueError: A node cannot be imported, says which and why; or weights were not loaded.
    """
    importer = _Importer(
        dict(shape_dict or {}), "float32", keep_params_in_input=True, sanitize=False
    )
    graph = model.graph
    external = [repr(each.name) for each in external_weights(model)]
    if external:
        raise ValueError(
            f"the values of {counted(len(external), 'initializer')} ({', '.join(external[:3])}"
            f"{', ..' if len(external) > 3 else ''}) are in files and were not loaded; "
            "onnx.load(path) loads them, and a path instead of the model does, too"
        )
    initializers = {each.name for each in graph.initializer}
    # An input that has a value as well is an initializer; TVM would make it two parameters.
    view = SimpleNamespace(
        node=graph.node,
        initializer=graph.initializer,
        input=[each for each in graph.input if each.name not in initializers],
        output=graph.output,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Input .* has unknown dimension shapes")
        mod = importer.from_onnx(view, _opset(model) if opset is None else opset)
    mod = with_bounded_lookups(mod, lambda _: False)  # the frontend adds sizes
    mod, params = detach_params(mod)
    names = [each.name for each in (*view.input, *view.initializer)]
    parameters = dict(zip(names, mod["main"].params, strict=True))
    weights = names_of_proto(model)
    report(weights)
    return ImportedGraph(
        mod["main"], params, importer.nodes, parameters, importer.marks, weights.renamed
    )


def _opset(model: Any) -> int:
    for each in model.opset_import:
        if each.domain in ("", "ai.onnx"):
            return int(each.version)
    return 1


class _Importer(ONNXGraphImporter):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.nodes: list[NodeValues] = []
        self.marks: dict[Any, int] = {}

    def _parse_array(self, tensor_proto: Any) -> Any:
        try:
            return super()._parse_array(tensor_proto)
        except Exception as error:
            raise ValueError(
                f"the elements of tensor {tensor_proto.name!r} cannot be read: {error}"
            ) from error

    def _construct_nodes(self, graph: Any) -> None:
        for index, node in enumerate(graph.node):
            inputs = {name: self._nodes[name] for name in node.input if name in self._nodes}
            for name in node.input:
                if name and name not in self._nodes:
                    raise ValueError(
                        f"{node_label(node, index)}: no input of the graph, initializer or node "
                        f"before it is called {name!r}"
                    )
            try:
                super()._construct_nodes(SimpleNamespace(node=[node]))
            except Exception as error:
                raise ValueError(
                    f"{node_label(node, index)}: TVM's frontend cannot import this "
                    f"{node.op_type}: {type(error).__name__}: {error}"
                ) from error
            for name in node.output:
                self._nodes[name] = self._bound(name, self._nodes.get(name))
            outputs = {name: self._nodes[name] for name in node.output if name}
            self.nodes.append(NodeValues(inputs, outputs))
            mark = self.bb.emit(relax.Tuple([]), "mark")
            self.marks[mark.__chandle__()] = index

    def _bound(self, name: str, value: Any) -> Any:
        """A tensor that a node makes, as a variable of its own; other values as they are."""
        if not isinstance(value, relax.Expr) or not isinstance(value.ty, relax.TensorType):
            return value
        is_parameter = isinstance(value, relax.Var) and value.name in self._params
        # The frontend asks for constants and for initializers, through Identity as well.
        if isinstance(value, tvm.ir.Call) or (isinstance(value, relax.Var) and not is_parameter):
            return self.bb.emit(value, name) if name else value
        return value
