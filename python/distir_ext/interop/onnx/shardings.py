"""Reads from a propagated module how the tensors of each ONNX node are sharded.

Variables have the names of the model's tensors, so the bindings of a node are those between its
outputs and its inputs. An input may have been redistributed for the node::

    up_1 = R.dist.redistribute(up, ...)         # the node reads up as up_1
    lv = R.matmul(x, up_1)
    hidden = R.add(lv, bias)                    # the node's output
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType

from distir_ext.explain.provenance import stated_names
from distir_ext.interop.onnx.expressions import parts_of
from distir_ext.interop.onnx.place import sharded_name
from distir_ext.structure.annotated_function import bindings_of


@dataclass(frozen=True)
class NodeShardings:
    """The tensors of a node that have shardings, with their types there."""

    inputs: dict[str, DTensorType]
    outputs: dict[str, DTensorType]

    def all(self) -> Iterator[tuple[str, DTensorType]]:
        """All of them, inputs first."""
        yield from self.inputs.items()
        yield from self.outputs.items()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


class _Reader:
    def __init__(self, function: relax.Function, graph: Any, renamed: Mapping[str, str]) -> None:
        self._graph = graph
        self._in_file = {new: name for name, new in renamed.items()}
        self._stated = stated_names(function)
        self._redistribute = tvm.ir.Op.get("relax.dist.redistribute")
        bindings = list(bindings_of(function.body))
        variables = [*function.params, *(binding.var for binding in bindings)]
        self._by_name = {self._name(var): var for var in variables}
        self._values = {binding.var.__chandle__(): binding.value for binding in bindings}
        initializers = [each.name for each in graph.initializer]
        made = [name for node in graph.node for name in node.output if name]
        self._tensors = {*(each.name for each in graph.input), *initializers, *made}

    def _name(self, var: relax.Var) -> str:
        """Returns the name of a variable in the file."""
        return self._in_file.get(str(var.name), str(var.name))

    def of_nodes(self) -> list[NodeShardings]:
        return [self._of_node(node) for node in self._graph.node]

    def _of_node(self, node: Any) -> NodeShardings:
        outputs: dict[str, DTensorType] = {}
        made = []
        for tensor in node.output:
            var = self._by_name.get(tensor)
            if var is not None:
                made.append(var)
                stated = self._by_name.get(sharded_name(tensor, self._tensors), var)
                outputs[tensor] = stated.ty
        seen = self._operands(made, set(node.input))
        inputs = {tensor: seen[tensor] for tensor in node.input if tensor in seen}
        return NodeShardings(*map(_dtensors, (inputs, outputs)))

    def _operands(self, made: Sequence[relax.Var], tensors: set[str]) -> dict[str, Any]:
        """The types of a node's inputs where the bindings that make its outputs use them."""
        found: dict[str, Any] = {}
        visited = {var.__chandle__() for var in made}
        pending = [self._values[handle] for handle in visited if handle in self._values]
        while pending:
            value = pending.pop()
            if not isinstance(value, relax.Var):
                pending += parts_of(value)
                continue
            if value.__chandle__() in visited:
                continue
            visited.add(value.__chandle__())
            name, type_ = self._read_as(value)
            if name in tensors:
                found.setdefault(name, type_)
            elif name not in self._tensors and value.__chandle__() in self._values:
                pending.append(self._values[value.__chandle__()])
        return found

    def _read_as(self, var: relax.Var) -> tuple[str, Any]:
        """Returns the variable before its redistribution, and its type for the node.

        That is the stated type if one is stated on the devices of the node; propagation finds the
        types that follow from it.
        """
        type_ = var.ty
        is_stated = str(var.name) in self._stated
        while self._name(var) not in self._tensors:
            value = self._values.get(var.__chandle__())
            if not isinstance(value, tvm.ir.Call) or not value.op.same_as(self._redistribute):
                break
            if not isinstance(value.args[0], relax.Var):
                break
            var = value.args[0]
            if not is_stated and str(var.name) in self._stated and _is_on_same(var.ty, type_):
                type_, is_stated = var.ty, True
        return self._name(var), type_


def shardings_of_nodes(
    function: relax.Function, graph: Any, renamed: Mapping[str, str]
) -> list[NodeShardings]:
    """Returns the shardings of each node of the graph, an ``onnx.GraphProto``.

    Args:
        function: Of a propagated module; its variables have the names of the graph's tensors.
        graph: The graph it was made of. A tensor that is no longer a variable has no sharding.
        renamed: From names of the graph's weights to those of parameters.
    """
    return _Reader(function, graph, renamed).of_nodes()


def devices_of(type_: DTensorType) -> tuple[int, ...]:
    """The devices that a tensor lies on, in ascending order."""
    return tuple(sorted(int(device) for device in type_.device_mesh.device_ids))


def _dtensors(types: Mapping[str, Any]) -> dict[str, DTensorType]:
    return {tensor: type_ for tensor, type_ in types.items() if isinstance(type_, DTensorType)}


def _is_on_same(left: Any, right: Any) -> bool:
    return all(isinstance(each, DTensorType) for each in (left, right)) and (
        devices_of(left) == devices_of(right)
    )
