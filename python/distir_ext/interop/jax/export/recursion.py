"""Reads a recursive function as a tree of paths that end in a result or in a recursive call.

``loops`` converts the tree to a ``while_loop``. Conditions of branches are its inner nodes:

    def f(x):                                   Choice(more(x), Way([y = g(x)], Again(y)),
        return f(g(x)) if more(x) else x    ->                  Way([], Leave(x)))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from distir_ext.structure.circles import circles


@dataclass(frozen=True)
class Leave:
    """The function returns a value."""

    value: relax.Expr


@dataclass(frozen=True)
class Again:
    """Recursive call: the function returns its own result for other arguments."""

    arguments: tuple[relax.Expr, ...]


@dataclass(frozen=True)
class Choice:
    """Branch: the function continues in one of two ways."""

    condition: relax.Expr
    ways: tuple[Way, Way]


@dataclass(frozen=True)
class Way:
    """Bindings, and the end that follows them."""

    bindings: tuple[relax.VarBinding, ...]
    end: Leave | Again | Choice


# ---- who calls whom


def calls_of(expr: relax.Expr) -> list[relax.Call]:
    """All calls in an expression, also in branches."""
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(
        expr, lambda node: found.append(node) if isinstance(node, relax.Call) else None
    )
    return found


class Recursions:
    """Groups of functions of a module that call each other in circles."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._circles = circles(
            {
                symbol.name_hint: {
                    call.op.name_hint
                    for call in calls_of(function)
                    if isinstance(call.op, tvm.ir.GlobalVar)
                }
                for symbol, function in mod.functions_items()
                if isinstance(function, relax.Function)
            }
        )

    def of(self, name: str) -> frozenset[str]:
        """The functions that a function calls, maybe by others, and that call it in this way.

        Empty if it does not call itself.
        """
        return self._circles.get(name, frozenset())


# ---- what a function does, as ways


class Aliases:
    """Variables that are only other names of values."""

    def __init__(self, bindings: Iterable[relax.VarBinding]) -> None:
        self.values = {each.var: each.value for each in bindings}

    def origin(self, expr: Any) -> Any:
        """The value itself: ``(v[0], v[1])`` is ``v``, and ``(a, b)[1]`` is ``b``."""
        while isinstance(expr, relax.Var) and isinstance(
            self.values.get(expr), relax.Var | relax.Tuple | relax.TupleGetItem
        ):
            expr = self.values[expr]
        if isinstance(expr, relax.TupleGetItem):
            source = self.origin(expr.tuple_value)
            return self.origin(source.fields[expr.index]) if _is_tuple(source) else expr
        if not _is_tuple(expr):
            return expr
        fields = [self._item(each) for each in expr.fields]
        sources = {source for source, _ in fields}
        if len(sources) == 1 and (source := sources.pop()) is not None:
            count = len(source.ty.fields)
            if [index for _, index in fields] == list(range(count)):
                return source
        return expr

    def _item(self, expr: Any) -> tuple[Any, int]:
        found = self.origin(expr)
        if not isinstance(found, relax.TupleGetItem):
            return None, 0
        return self.origin(found.tuple_value), int(found.index)

    def is_same(self, expr: Any, other: relax.Var) -> bool:
        """Returns whether an expression is this variable, or another name of it."""
        return bool(self.origin(expr).same_as(other))

    def bound_to(self, expr: Any) -> Any:
        """The expression that makes a value; None if it is a parameter or a constant."""
        found = self.origin(expr)
        return self.values.get(found) if isinstance(found, relax.Var) else None

    def needed(self, exprs: Iterable[Any], stop: relax.Var) -> set[Any]:
        """The variables that these expressions read, and what they are made of, up to ``stop``."""
        found: set[Any] = set()
        open_ = [each for expr in exprs for each in _read(expr)]
        while open_:
            variable = open_.pop()
            if variable in found:
                continue
            found.add(variable)
            if variable in self.values and not variable.same_as(stop):
                open_ += _read(self.values[variable])
        return found


def _is_tuple(expr: Any) -> bool:
    return isinstance(expr, relax.Tuple)


def _read(expr: Any) -> list[relax.Var]:
    return list(relax.analysis.free_vars(expr))


def _without(bindings: Iterable[relax.VarBinding], variable: relax.Var) -> tuple[Any, ...]:
    """Bindings that are not of a variable, nor of what depends on it."""
    left_out = {variable}
    kept = []
    for each in bindings:
        if each.var in left_out or not left_out.isdisjoint(_read(each.value)):
            left_out.add(each.var)
        else:
            kept.append(each)
    return tuple(kept)


class Reader:
    """Reads functions of one recursion as ways, from one of them, the head."""

    def __init__(self, mod: tvm.IRModule, head: str, members: frozenset[str]) -> None:
        self._mod, self._head, self._members = mod, head, members

    def way(self, body: relax.SeqExpr, path: frozenset[str] = frozenset()) -> Way | None:
        """Reads a body; None if functions behind the head call each other in a circle."""
        bindings = [each for block in body.blocks for each in block.bindings]
        if not all(isinstance(each, relax.VarBinding) for each in bindings):
            return None
        aliases = Aliases(bindings)
        last = aliases.origin(body.body)
        value = aliases.values.get(last)
        before = _without(bindings, last)
        if isinstance(value, relax.If):
            taken, other = self.way(value.true_branch, path), self.way(value.false_branch, path)
            if taken is None or other is None:
                return None
            return Way(before, Choice(value.cond, (taken, other)))
        if value is None or not self.is_recursive(value):
            return Way(tuple(bindings), Leave(body.body))
        name = value.op.name_hint
        if name == self._head:
            return Way(before, Again(tuple(value.args)))
        if name in path:
            return None
        function = self._mod[name]
        inner = self.way(function.body, path | {name})
        if inner is None:
            return None
        given = zip(function.params, value.args, strict=True)
        placed = tuple(relax.VarBinding(parameter, each) for parameter, each in given)
        return Way((*before, *placed, *inner.bindings), inner.end)

    def is_recursive(self, expr: Any) -> bool:
        """Returns whether an expression is a call of a function of the recursion."""
        return (
            isinstance(expr, relax.Call)
            and isinstance(expr.op, tvm.ir.GlobalVar)
            and expr.op.name_hint in self._members
        )

    def others(self, way: Way) -> list[relax.Call]:
        """Calls of the recursion that are not the last that a way does."""
        values = [each.value for each in way.bindings]
        found = [call for each in values for call in calls_of(each) if self.is_recursive(call)]
        inner = way.end.ways if isinstance(way.end, Choice) else ()
        return found + [call for each in inner for call in self.others(each)]
