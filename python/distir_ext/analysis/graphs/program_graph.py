"""Graph of a distributed module: operators, shardings of their operands, and redistributions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.analysis.repeated_layers import Repeat, find_repeats
from distir_ext.native.collective_records import find_record, names, on_dtensors
from distir_ext.reshards.reshards_result import (
    OPERATOR,
    REDUCTION,
    RESHARD,
    STATED,
    TRANSFER,
)
from distir_ext.structure.annotated_function import bindings_of

PARAMETER, COMPUTED, CALL, RESULT = "parameter", "computed", "call", "result"
"""Kinds of nodes, beside those of redistributions."""

_OPERATORS = ("relax.dist.", "relax.ccl.", "relax.")


@dataclass(frozen=True)
class Node:
    """Node for a parameter, an operator, a move, or a result of a function."""

    key: str
    """Unique in the module."""

    kind: str
    """``"parameter"``, ``"computed"``, ``"call"`` (of a function of the module), ``"result"``, or a
    kind of :class:`distir_ext.analysis.Reshard`."""

    variable: str
    label: str
    """The operator, or the name of a parameter."""

    callee: str = ""
    """The function that is called."""


@dataclass(frozen=True)
class Edge:
    """Edge for a tensor, from its producer to a reader."""

    source: str
    target: str
    sharding: str
    """As ``"('dp', None)"``, with what it is partial over; empty where it is not known."""

    to_next: bool = False
    """True if the reader is in the next of several equal layers."""


@dataclass(frozen=True)
class FunctionGraph:
    """The graph of one function; of equal layers only the first has nodes."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    layers: tuple[tuple[int, tuple[str, ...]], ...]
    """Groups of repeated nodes: the number of repetitions, and the keys."""


def function_graphs(mod: tvm.IRModule, names: Sequence[str]) -> list[FunctionGraph]:
    """The graphs of some functions of a module that is propagated, or further on the way."""
    moves_of, _, _, shardings_of = tvm_ffi.get_global_func("distir.explain.Moves")(mod)
    known = {str(gv.name_hint) for gv, function in mod.functions_items() if _is_relax(function)}
    found = []
    for name in names:
        shardings = {
            str(variable): ", ".join(filter(None, map(str, texts)))
            for variable, texts in shardings_of(name).items()
        }
        kinds = dict(_kinds_of_moves(moves_of(name)))
        found.append(_Reader(name, mod[name], known, kinds, shardings).graph())
    return found


def _is_relax(function: Any) -> bool:
    return isinstance(function, relax.Function)


def _kinds_of_moves(moves: Any) -> Iterator[tuple[str, str]]:
    """Yields the kind of each move by the variables that it binds; none if it sends nothing."""
    for move in moves:
        kind = None
        if move["disagrees"]:
            kind = STATED if move["is_stated"] else RESHARD
        elif move["is_partial"]:
            kind = REDUCTION
        if kind is not None:
            yield from ((str(variable), kind) for variable in move["variables"])


class _Reader:
    """Reads a function in program order; a variable that renames another has no node."""

    def __init__(
        self,
        name: str,
        function: relax.Function,
        functions: set[str],
        kinds: Mapping[str, str],
        shardings: Mapping[str, str],
    ) -> None:
        self._name = name
        self._function = function
        self._functions = functions
        self._kinds = kinds
        self._shardings = shardings
        self._nodes: dict[str, Node] = {}
        self._reads: dict[str, list[tuple[str, str]]] = {}  # by node: who gives, how sharded
        self._givers: dict[Any, list[tuple[str, str]]] = {}  # by variable

    def graph(self) -> FunctionGraph:
        for param in self._function.params:
            node = Node(self._key(param), PARAMETER, str(param.name), str(param.name))
            self._enter(param, node, ())
        for binding in bindings_of(self._function.body):
            self._read(binding)
        result = Node(f"{self._name}/return", RESULT, "return", "return")
        self._nodes[result.key] = result
        self._reads[result.key] = list(self._given_by(self._function.body.body))
        return self._folded()

    def _key(self, var: relax.Var) -> str:
        return f"{self._name}/{var.name}"

    def _enter(self, var: relax.Var, node: Node, reads: Sequence[tuple[str, str]]) -> None:
        self._nodes[node.key] = node
        self._reads[node.key] = list(dict.fromkeys(reads))
        self._givers[var] = [(node.key, self._shardings.get(str(var.name), ""))]

    def _read(self, binding: Any) -> None:
        var = binding.var
        value = binding.value
        if isinstance(value, relax.If):
            reads = [
                *self._given_by(value.cond),
                *self._given_by(value.true_branch.body),
                *self._given_by(value.false_branch.body),
            ]
            node = Node(self._key(var), COMPUTED, str(var.name), "if")
            self._enter(var, node, reads)
        elif not isinstance(value, relax.Call):
            # It renames others: its own sharding is that of the field, if it is one tensor.
            givers = list(self._given_by(value))
            own = self._shardings.get(str(var.name), "")
            is_one = isinstance(value, relax.TupleGetItem | relax.Var)
            self._givers[var] = [(key, own if is_one else text) for key, text in givers]
        else:
            self._enter(var, self._node(var, value), list(self._given_by(value)))

    def _node(self, var: relax.Var, call: relax.Call) -> Node:
        name, callee = _operator(call), ""
        record = find_record(name)
        kind = self._kinds.get(str(var.name), COMPUTED)
        if isinstance(call.op, tvm.ir.GlobalVar) and name in self._functions:
            kind, callee = CALL, name
        elif record is not None and (record.is_side or name == on_dtensors(names.transfer)):
            kind = TRANSFER
        elif record is not None and record.family == "segments":
            kind = OPERATOR
        for prefix in _OPERATORS:
            name = name.removeprefix(prefix)
        if name == "redistribute" and kind == COMPUTED:
            name = "redistribute, nothing sent"
        return Node(self._key(var), kind, str(var.name), name, callee)

    def _given_by(self, value: Any) -> Iterator[tuple[str, str]]:
        if isinstance(value, relax.Var):
            yield from self._givers.get(value, ())
        elif isinstance(value, relax.Call):
            for arg in value.args:
                yield from self._given_by(arg)
        elif isinstance(value, relax.Tuple):
            for each in value.fields:
                yield from self._given_by(each)
        elif isinstance(value, relax.TupleGetItem):
            yield from self._given_by(value.tuple_value)

    # ---- equal layers

    def _folded(self) -> FunctionGraph:
        order = [key for key, node in self._nodes.items() if node.kind != PARAMETER]
        repeats = find_repeats([self._signature(key) for key in order])
        shown: dict[str, str] = {}  # from a node to the one that is drawn for it
        turn: dict[str, tuple[int, int]] = {}  # which repeat, which of its layers
        for index, repeat in enumerate(repeats):
            for at in range(repeat.start, repeat.end):
                layer, offset = divmod(at - repeat.start, repeat.period)
                shown[order[at]] = order[repeat.start + offset]
                turn[order[at]] = (index, layer)
        params = self._params_of_layers(shown)
        shown |= {param: first for param, (first, _) in params.items()}
        edges: dict[Edge, None] = {}
        for target, reads in self._reads.items():
            for source, sharding in reads:
                is_next = (
                    turn.get(source, (-1, 0))[0] == turn.get(target, (-2, 0))[0]
                    and turn[source][1] < turn[target][1]
                )
                ends = shown.get(source, source), shown.get(target, target)
                edges[Edge(*ends, sharding, is_next)] = None
        nodes = []
        for key, node in self._nodes.items():
            if shown.get(key, key) == key:
                label = params[key][1] if key in params else node.label
                nodes.append(replace(node, label=label))
        layers = tuple(self._layer(order, repeat, edges) for repeat in repeats)
        return FunctionGraph(self._name, tuple(nodes), tuple(edges), layers)

    def _signature(self, key: str) -> Any:
        """Returns a key that is equal for nodes of equal layers.

        Sources outside the layer may be of other operators: the first layer reads the embedding.
        """
        node = self._nodes[key]
        reads = tuple((self._pattern(source), text) for source, text in self._reads[key])
        return node.kind, node.label, self._shardings.get(node.variable, ""), reads

    def _pattern(self, key: str) -> str:
        """The name of a parameter as other layers have it; empty for what is computed."""
        node = self._nodes[key]
        return _without_numbers(node.label) if node.kind == PARAMETER else ""

    def _params_of_layers(self, shown: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Parameters that only layers read: the one that is drawn for it, and what it is called."""
        readers: dict[str, list[str]] = {}
        for target, reads in self._reads.items():
            for source, _ in reads:
                if self._nodes[source].kind == PARAMETER:
                    readers.setdefault(source, []).append(target)
        groups: dict[Any, list[str]] = {}
        for param, targets in readers.items():
            if all(target in shown for target in targets):
                drawn = tuple(dict.fromkeys(shown[target] for target in targets))
                groups.setdefault((self._pattern(param), drawn), []).append(param)
        found = {}
        for (pattern, _), params in groups.items():
            for param in params:
                found[param] = (params[0], pattern if len(params) > 1 else self._label(param))
        return found

    def _label(self, key: str) -> str:
        return self._nodes[key].label

    def _layer(
        self, order: Sequence[str], repeat: Repeat, edges: Mapping[Edge, None]
    ) -> tuple[int, tuple[str, ...]]:
        inside = dict.fromkeys(order[repeat.start : repeat.start + repeat.period])
        outside = {edge.source for edge in edges if edge.target not in inside}
        for edge in edges:
            is_param = self._nodes[edge.source].kind == PARAMETER
            if edge.target in inside and is_param and edge.source not in outside:
                inside[edge.source] = None
        return repeat.count, tuple(inside)


def _without_numbers(name: str) -> str:
    """``layers.*.up`` for ``layers.3.up``."""
    return re.sub(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])", "*", name)


def _operator(call: relax.Call) -> str:
    callee = call.op
    if isinstance(callee, tvm.ir.Op) and callee.name.startswith(("relax.call_tir", "relax.call_")):
        callee = call.args[0] if call.args else callee
    if isinstance(callee, tvm.ir.GlobalVar):
        return str(callee.name_hint)
    if isinstance(callee, relax.ExternFunc):
        return str(callee.global_symbol)
    return str(getattr(callee, "name", callee))
