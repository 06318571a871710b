"""Tensor parallelism by structure: which products of a model are by columns, which by rows.

A product whose result only one other product uses, through operators in between, is sharded by
columns, and that other one by rows, as Megatron shards feed-forward layers and attention. Nothing
is communicated between them:

    q, k, v = wq(x), wk(x), wv(x)         columns: only wo uses them
    y = x + wo(attention(q, k, v))        rows: it uses nothing else that is computed from weights
    y = y + down(act(gate(y)) * up(y))    gate and up by columns, down by rows

What is in between is not looked at: propagation makes it right, and says what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from distir_ext.interop.torch.axes import Axes
from distir_ext.interop.torch.names import ModelNames
from distir_ext.interop.torch.statements import Statements

_ATEN = torch.ops.aten
_CONVOLUTIONS = (_ATEN.conv1d, _ATEN.conv2d, _ATEN.conv3d)
_TRANSPOSES = (_ATEN.t, _ATEN.transpose, _ATEN.permute, _ATEN.numpy_T)

RESULT = "the result"


@dataclass(frozen=True)
class Product:
    """A product with a parameter: a linear layer or a convolution.

    Attributes:
        node: Where it is computed.
        data: What the parameter is multiplied with.
        weight: The parameter's name, with dots.
        bias: That of its bias.
        columns: The dimension of the weight that becomes features of the result.
        rows: The dimension that is summed over.
    """

    node: fx.Node
    data: fx.Node
    weight: str
    bias: str | None
    columns: int
    rows: int


def state_structure(
    names: ModelNames, program: torch.export.ExportedProgram, axes: Axes, to: Statements
) -> None:
    """Shards products by columns and rows, and the largest table by rows.

    Args:
        names: Of the model.
        program: As exported, before it is decomposed.
        axes: The mesh.
        to: Gets it, and what was not sharded and why.
    """
    axis = axes.need("tp")
    graph = _Graph(program)
    roles = _pairs(graph)
    for product in graph.products.values():
        role, reason = roles.get(product.node) or _alone(graph, product)
        if role is None:
            to.notes.append(f"{product.weight}: left to propagation, {reason}")
            continue
        dim = product.columns if role == "columns" else product.rows
        size = int(names.parameters[product.weight].shape[dim])
        if size < axes.size(axis):
            to.notes.append(
                f"{product.weight}: left to propagation, {size} {role} are fewer than the "
                f"{axes.size(axis)} devices of axis {axis!r}"
            )
            continue
        to.shard(axes, product.weight, names.parameters[product.weight], dim, axis, reason)
        if product.bias is not None:
            by_columns = 0 if role == "columns" else None
            to.shard(axes, product.bias, names.parameters[product.bias], by_columns, axis, reason)
    _state_tables(names, graph, axes, axis, to)
    rest = len(
        set(names.parameters) - set(to.parameters) - {p.weight for p in graph.products.values()}
    )
    if rest:
        to.notes.append(f"{rest} other parameters: left to propagation, no product uses them")


def _pairs(graph: _Graph) -> dict[fx.Node, tuple[str | None, str]]:
    """The products that are by columns or rows, with the reason."""
    roles: dict[fx.Node, tuple[str | None, str]] = {}
    for last in graph.products.values():
        first = graph.sources(last)
        alone = [
            each for each in first if each.node not in roles and graph.users(each) == {last.weight}
        ]
        if not first or len(alone) < len(first):
            continue
        for product in first:
            roles[product.node] = "columns", f"columns, only {last.weight} uses its result"
        listed = ", ".join(product.weight for product in first)
        roles[last.node] = "rows", f"rows, after the columns of {listed}"
    return roles


def _alone(graph: _Graph, product: Product) -> tuple[str | None, str]:
    """What is done with a product that is in no pair."""
    users = graph.users(product)
    if users == {RESULT}:
        return "columns", "columns, its result is that of the model"
    if not users:
        return None, "nothing uses its result"
    listed = sorted(users)
    shown = ", ".join(listed[:3]) + (" and others" if len(listed) > 3 else "")
    return None, f"its result goes to {shown}, which is no pair of columns and rows"


def _state_tables(names: ModelNames, graph: _Graph, axes: Axes, axis: str, to: Statements) -> None:
    rows = {name: int(names.parameters[name].shape[0]) for name in graph.tables}
    most = max(rows.values(), default=0)
    for name, count in rows.items():
        if name in to.parameters:  # it is the weight of a product, too
            continue
        if count == most and count >= axes.size(axis):
            reason = "rows of the largest table"
            to.shard(axes, name, names.parameters[name], 0, axis, reason)
        else:
            to.notes.append(f"{name}: left to propagation, a small table")


class _Graph:
    """The products of a program, and what lies between them."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self._parameters = dict(program.graph_signature.inputs_to_parameters)
        nodes = list(program.graph.nodes)
        found = (self._product(node) for node in nodes)
        self.products = {product.node: product for product in found if product is not None}
        self.tables = list(
            dict.fromkeys(
                self._parameters[node.args[0].name]
                for node in nodes
                if _is(node, (_ATEN.embedding,)) and node.args[0].name in self._parameters
            )
        )

    def sources(self, product: Product) -> list[Product]:
        """The products whose results a product uses, through other operators."""
        return [self.products[node] for node in self._reached(product.data, "all_input_nodes")]

    def users(self, product: Product) -> set[str]:
        """The weights of the products that use a result; :data:`RESULT` if the model returns it."""
        found = set()
        for user in product.node.users:
            for node in self._reached(user, "users"):
                is_product = node in self.products
                found.add(self.products[node].weight if is_product else RESULT)
        return found

    def _reached(self, start: fx.Node, along: str) -> Iterator[fx.Node]:
        """The products, and the output, that come first in one direction."""
        seen, pending = {start}, [start]
        while pending:
            node = pending.pop()
            if node in self.products or node.op == "output":
                yield node
                continue
            fresh = [other for other in getattr(node, along) if other not in seen]
            seen.update(fresh)
            pending.extend(fresh)

    def _product(self, node: fx.Node) -> Product | None:
        args: Any = node.args
        if _is(node, (_ATEN.linear,)):
            return self._made(node, args[0], args[1], args[2] if len(args) > 2 else None, 0)
        if _is(node, _CONVOLUTIONS):
            groups = args[6] if len(args) > 6 else node.kwargs.get("groups", 1)
            bias = args[2] if len(args) > 2 else None
            return self._made(node, args[0], args[1], bias, 0) if groups == 1 else None
        if _is(node, (_ATEN.addmm,)):
            return self._made(node, args[1], args[2], args[0], 1)
        if _is(node, (_ATEN.matmul, _ATEN.mm)):
            return self._made(node, args[0], args[1], None, 1)
        return None

    def _made(
        self, node: fx.Node, data: fx.Node, weight: fx.Node, bias: fx.Node | None, columns: int
    ) -> Product | None:
        if _is(weight, _TRANSPOSES):
            weight, columns = weight.all_input_nodes[0], 1 - columns
        name = self._parameters.get(weight.name)
        if name is None or (_is(node, (_ATEN.matmul,)) and weight.meta["val"].dim() != 2):
            return None
        bias_name = None if bias is None else self._parameters.get(bias.name)
        return Product(node, data, name, bias_name, columns, 1 - columns)


def _is(node: fx.Node, operators: Collection[Any]) -> bool:
    """Whether a node calls one of these operators, in any of its forms."""
    target: Any = node.target
    return node.op == "call_function" and getattr(target, "overloadpacket", None) in operators
