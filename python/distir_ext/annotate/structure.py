"""Finds a tensor-parallel plan by structure: products of a function by columns or by rows.

A product whose result only one other product uses, through operators in between, is sharded by
columns, and that other one by rows, as Megatron shards feed-forward layers and attention. Nothing
is communicated between them:

    q, k, v = wq(x), wk(x), wv(x)         columns: only wo uses them
    y = x + wo(attention(q, k, v))        rows: it uses nothing else that is computed from weights
    y = y + down(act(gate(y)) * up(y))    gate and up by columns, down by rows

What is in between is not looked at: propagation makes it right, and says what it costs. Branches
are read as if both ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tvm import relax

from distir_ext.structure.annotated_function import bindings_of
from distir_ext.structure.calls import Calls
from distir_ext.structure.layers.products import Product, Weights
from distir_ext.structure.program import Program, operator_of, sizes_of

RESULT = "the result"


@dataclass
class Structure:
    """Dimensions of parameters that are sharded along one mesh axis.

    Attributes:
        dims: By parameter the dimension that is sharded, None if it is replicated, and why.
        notes: Why others are not.
    """

    dims: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_structure(
    function: relax.Function,
    shards: int,
    axis: str,
    label: Callable[[str], str] = str,
    calls: Calls | None = None,
) -> Structure:
    """Shards products by columns and rows, and the largest table by rows.

    Args:
        function: Says how many of its parameters are inputs; calls no others, and takes no tuples
            (:func:`distir_ext.structure.flat.flat_function`).
        shards: Devices along the axis.
        axis: The mesh axis, for notes.
        label: Label of a parameter in notes, by its name.
        calls: The factor rules of calls; by default those of operators alone.
    """
    found, graph = Structure(), _Graph(_Branches(function, calls), label)
    roles = _pairs(graph)
    for product in graph.products.values():
        name = str(product.param.name)
        role, reason = roles.get(product.var) or _alone(graph, product)
        if role is None:
            found.notes.append(f"{label(name)}: left to propagation, {reason}")
            continue
        dim = product.out_dim if role == "columns" else product.in_dim
        size = graph.size(name, dim)
        if 0 <= size < shards:
            found.notes.append(
                f"{label(name)}: left to propagation, {size} {role} are fewer than the "
                f"{shards} devices of axis {axis!r}"
            )
            continue
        found.dims[name] = dim, reason
        for bias in graph.biases(product):
            found.dims[bias] = (0 if role == "columns" else None), reason
    _find_tables(graph, shards, found)
    products = {str(each.param.name) for each in graph.products.values()}
    names = {str(each.name) for each in graph.program.weights}
    if rest := len(names - set(found.dims) - products):
        found.notes.append(f"{rest} other parameters: left to propagation, no product uses them")
    return found


def _pairs(graph: _Graph) -> dict[relax.Var, tuple[str | None, str]]:
    """The products that are by columns or rows, with the reason."""
    roles: dict[relax.Var, tuple[str | None, str]] = {}
    for last in graph.products.values():
        first = graph.sources(last)
        alone = [
            each
            for each in first
            if each.var not in roles and graph.users(each) == {graph.label(last)}
        ]
        if not first or len(alone) < len(first):
            continue
        for product in first:
            roles[product.var] = "columns", f"columns, only {graph.label(last)} uses its result"
        listed = ", ".join(map(graph.label, first))
        roles[last.var] = "rows", f"rows, after the columns of {listed}"
    return roles


def _alone(graph: _Graph, product: Product) -> tuple[str | None, str]:
    """Chooses the sharding of a product that is in no pair of products, and the reason."""
    users = graph.users(product)
    if users == {RESULT}:
        return "columns", "columns, its result is that of the model"
    if not users:
        return None, "nothing uses its result"
    listed = sorted(users)
    shown = ", ".join(listed[:3]) + (" and others" if len(listed) > 3 else "")
    return None, f"its result goes to {shown}, which is no pair of columns and rows"


def _find_tables(graph: _Graph, shards: int, found: Structure) -> None:
    rows = {name: graph.size(name, 0) for name in graph.tables()}
    most = max(rows.values(), default=0)
    for name, count in rows.items():
        if name in found.dims:  # it is the weight of a product, too
            continue
        if count == most and count >= shards:
            found.dims[name] = 0, "rows of the largest table"
        else:
            found.notes.append(f"{graph.name(name)}: left to propagation, a small table")


class _Branches(Program):
    """A function with what its branches compute: the value of a branch is made of both results."""

    def __init__(self, function: relax.Function, calls: Calls | None) -> None:
        super().__init__(function, calls)
        self.bindings = list(bindings_of(function.body))
        self.made = {binding.var: binding.value for binding in self.bindings}

    def reads(self, value: relax.Expr) -> list[relax.Var]:
        """The variables that a value is made of; of branches the condition and the results."""
        if isinstance(value, relax.If):
            bodies = value.true_branch.body, value.false_branch.body
            return [read for each in (value.cond, *bodies) for read in self.reads(each)]
        return super().reads(value)


class _Graph:
    """The products of a function, and what lies between them."""

    def __init__(self, program: Program, label: Callable[[str], str]) -> None:
        self.name = label
        self.program = program
        self._weights = Weights(self.program)
        found = (
            self._weights.product(binding.var, several=True) for binding in self.program.bindings
        )
        self.products = {
            product.var: product
            for product in found
            if product is not None and product.view.looked_up is None
        }
        self._results = set(program.reads(program.function.body.body))
        self._params = {str(each.name): each for each in self.program.weights}

    def label(self, product: Product) -> str:
        """Returns the name of a product in notes: that of its weight."""
        return self.name(str(product.param.name))

    def size(self, name: str, dim: int) -> int:
        """Returns the size of a parameter's dimension; -1 if it is symbolic."""
        return (sizes_of(self._params[name]) or ())[dim]

    def sources(self, product: Product) -> list[Product]:
        """The products whose results a product uses, through other operators."""
        return [self.products[var] for var in self._reached([product.data], self._read_by)]

    def users(self, product: Product) -> set[str]:
        """The weights of the products that use a result; :data:`RESULT` if it is returned."""
        starts = self.program.users.get(product.var, [])
        found = {
            self.label(self.products[var]) if var in self.products else RESULT
            for var in self._reached(starts, lambda var: self.program.users.get(var, []))
        }
        return found | ({RESULT} if product.var in self._results else set())

    def biases(self, product: Product) -> Iterator[str]:
        """The parameters that are added to the columns of a product."""
        for user in self.program.users.get(product.var, ()):
            value = self.program.made[user]
            if operator_of(value) != "add":
                continue
            for each in value.args:
                view = self._weights.views.get(each)
                if view is not None and len(sizes_of(view.param) or ()) == 1:
                    yield str(view.param.name)

    def tables(self) -> list[str]:
        """The weights of which inputs say the rows that are looked up."""
        found: dict[str, None] = {}
        for binding in self.program.bindings:
            value = binding.value
            if operator_of(value) != "take" or len(value.args) < 2:
                continue
            view = self._weights.views.get(value.args[0])
            if view is not None and view.looked_up is None and view.dims[:1] == (0,):
                found[str(view.param.name)] = None
        return list(found)

    def _read_by(self, var: relax.Var) -> list[relax.Var]:
        made = self.program.made.get(var)
        return [] if made is None else self.program.reads(made)

    def _reached(
        self, starts: Iterable[relax.Var], next_of: Callable[[relax.Var], Iterable[relax.Var]]
    ) -> Iterator[relax.Var]:
        """The products, and results, that come first in one direction."""
        forward = next_of != self._read_by
        pending = list(dict.fromkeys(starts))
        seen = set(pending)
        while pending:
            var = pending.pop()
            if var in self.products:
                yield var
                continue
            if forward and var in self._results:
                yield var
            fresh = [other for other in next_of(var) if other not in seen]
            seen.update(fresh)
            pending.extend(fresh)
