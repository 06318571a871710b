"""Converts recursive functions that are loops to ``jax.lax.while_loop``.

Two kinds are loops. In one, a call of itself is the last that the function does:

    def f(*state):              return f(*step(*state)) if more(*state) else value(*state)

In the other, which is how ``from_exported`` writes loops, the function calls itself twice, each
time for half of the iterations, of which there are at most 2**depth:

    def run(depth, *state):     return body(*state) if depth == 0 else twice(depth, *state)
    def twice(depth, *state):
        middle = run(depth - 1, *state)
        return run(depth - 1, *next(middle)) if more(middle) else middle

Functions of the same recursion that are called last, as ``twice`` is, count as written in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import jax.numpy as jnp
import tvm
from jax import lax
from tvm import relax

from distir_ext.interop.jax.export.recursion import Again, Aliases, Choice, Leave, Reader, Way
from distir_ext.interop.jax.known import scalar_of
from distir_ext.interop.jax.stablehlo import numpy_dtype

Values: TypeAlias = dict[Any, Any]
Evaluate: TypeAlias = Callable[[Any, Values], Any]
"""From an expression, and what variables are, to its value."""


class Loop(Protocol):
    """A function that calls itself as a loop does."""

    def __call__(self, evaluate: Evaluate, arguments: Sequence[Any]) -> Any:
        """Computes the function's results for these arguments by ``lax.while_loop``."""


def loop_of(mod: tvm.IRModule, head: str, recursion: frozenset[str]) -> Loop | None:
    """The loop that a function is; None if it calls itself in another way.

    Args:
        mod: The module.
        head: The function.
        recursion: The functions that call it and that it calls, itself too.
    """
    function = mod[head]
    reader = Reader(mod, head, recursion)
    way = reader.way(function.body)
    if way is None:
        return None
    others = reader.others(way)
    if not others:
        return _TailLoop(function, way)
    return _halves(function, way, others[0]) if len(others) == 1 else None


@dataclass(frozen=True)
class _TailLoop:
    """A loop whose iteration is what a function does up to its next call of itself."""

    function: relax.Function
    way: Way

    def __call__(self, evaluate: Evaluate, arguments: Sequence[Any]) -> Any:
        result = _zeros(self.function.ret_ty)

        def step(state: _State) -> _Step:
            def end(leaf: Leave | Again, values: Values) -> _Step:
                if isinstance(leaf, Again):
                    given = tuple(evaluate(each, values) for each in leaf.arguments)
                    return jnp.asarray(True), given, result
                return jnp.asarray(False), state, evaluate(leaf.value, values)

            values = dict(zip(self.function.params, state, strict=True))
            made: _Step = _followed(evaluate, self.way, values, end)
            return made

        return _repeated(step, tuple(arguments), result)


@dataclass(frozen=True)
class _Halves:
    """A loop of at most 2**depth iterations, by a function that calls itself for each half.

    Attributes:
        function: The function.
        depth: The place of the depth among its parameters.
        constant: The places of parameters that all iterations share.
        body: Computation at depth 0: one iteration.
        middle: The variable that holds what an iteration returns.
        between: What is computed of that.
        more: Whether there is another iteration.
        wanted: What ``more`` is if there is.
        arguments: Of the next iteration.
    """

    function: relax.Function
    depth: int
    constant: frozenset[int]
    body: Way
    middle: relax.Var
    between: tuple[relax.VarBinding, ...]
    more: relax.Expr
    wanted: bool
    arguments: tuple[relax.Expr, ...]

    def __call__(self, evaluate: Evaluate, arguments: Sequence[Any]) -> Any:
        parameters = list(self.function.params)
        depth = jnp.asarray(arguments[self.depth])
        most = lax.shift_left(jnp.int64(1), depth.astype(jnp.int64))
        shared = {parameters[index]: arguments[index] for index in self.constant}
        changing = [i for i in range(len(parameters)) if i not in self.constant | {self.depth}]

        def step(state: _State) -> _Step:
            count, *changed = state
            values = {**shared, parameters[self.depth]: jnp.zeros_like(depth)}
            values |= zip((parameters[index] for index in changing), changed, strict=True)
            made = _followed(evaluate, self.body, values, lambda end, at: evaluate(end.value, at))
            values = _evaluated(evaluate, self.between, {**shared, self.middle: made})
            more = evaluate(self.more, values) == self.wanted
            given = tuple(evaluate(self.arguments[index], values) for index in changing)
            return (count < most) & more, (count + 1, *given), made

        start = (jnp.int64(1), *(arguments[index] for index in changing))
        return _repeated(step, start, _zeros(self.function.ret_ty))


def _halves(function: relax.Function, way: Way, first: relax.Call) -> Loop | None:
    """A loop of two calls, the first of which is not the last thing that the function does."""
    if not isinstance(way.end, Choice):
        return None
    body, rest = way.end.ways
    middle = next((each.var for each in rest.bindings if each.value.same_as(first)), None)
    if middle is None or not isinstance(rest.end, Choice) or not _ends(body, Leave):
        return None
    wanted = isinstance(rest.end.ways[0].end, Again)
    going, leaving = rest.end.ways if wanted else reversed(rest.end.ways)
    if not isinstance(going.end, Again) or not isinstance(leaving.end, Leave):
        return None
    known = Aliases((*way.bindings, *rest.bindings, *going.bindings, *leaving.bindings))
    if not known.is_same(leaving.end.value, middle):
        return None

    parameters, arguments = list(function.params), going.end.arguments
    depth = _compared_to_zero(known, way.end.condition, parameters)
    if depth is None:
        return None
    for given in (first.args, arguments):
        if not _is_less_one(known, given[depth], parameters[depth]):
            return None
    others = [index for index in range(len(parameters)) if index != depth]
    if not all(known.is_same(first.args[index], parameters[index]) for index in others):
        return None
    constant = {index for index in others if known.is_same(arguments[index], parameters[index])}
    # Between two iterations nothing may depend on where the one before began.
    changing = [arguments[index] for index in others if index not in constant]
    needed = known.needed([rest.end.condition, *changing], middle)
    if any(each in needed for i, each in enumerate(parameters) if i not in constant):
        return None
    between = [*way.bindings, *rest.bindings, *going.bindings]
    return _Halves(
        function,
        depth,
        frozenset(constant),
        Way((*way.bindings, *body.bindings), body.end),
        middle,
        tuple(each for each in between if each.var in needed and not each.var.same_as(middle)),
        rest.end.condition,
        wanted,
        arguments,
    )


def _ends(way: Way, kind: type) -> bool:
    """Returns whether a function ends in this way on every path."""
    if isinstance(way.end, Choice):
        return all(_ends(each, kind) for each in way.end.ways)
    return isinstance(way.end, kind)


def _operands(known: Aliases, expr: Any, op: str) -> list[Any]:
    """The operands of a value that an operator makes; none if it is not made by it."""
    call = known.bound_to(expr)
    is_made = isinstance(call, relax.Call) and getattr(call.op, "name", "") == op
    return list(call.args) if is_made else []


def _compared_to_zero(
    known: Aliases, condition: Any, parameters: Sequence[relax.Var]
) -> int | None:
    """Returns the parameter that a condition compares to 0; None for any other condition."""
    operands = _operands(known, condition, "relax.equal")
    for value, zero in itertools.permutations(operands):
        found = [i for i, each in enumerate(parameters) if known.is_same(value, each)]
        if found and _number(zero) == 0:
            return found[0]
    return None


def _is_less_one(known: Aliases, expr: Any, parameter: relax.Var) -> bool:
    operands = _operands(known, expr, "relax.subtract")
    return bool(operands) and known.is_same(operands[0], parameter) and _number(operands[1]) == 1


def _number(expr: Any) -> Any:
    number = scalar_of(expr)
    return None if number is None else number.item()


# ---- while the program of JAX is traced


_State: TypeAlias = tuple[Any, ...]
_Step: TypeAlias = tuple[Any, _State, Any]
"""Condition of another iteration, the state it starts with, and the result if there is none."""


def _repeated(step: Callable[[_State], _Step], start: _State, result: Any) -> Any:
    """The result of the last of some iterations, of which there is at least one."""
    first = jnp.asarray(True), start, result
    *_, made = lax.while_loop(lambda state: state[0], lambda state: step(state[1]), first)
    return made


def _followed(
    evaluate: Evaluate, way: Way, values: Values, end: Callable[[Any, Values], Any]
) -> Any:
    """Evaluates a way to its ends, and applies ``end`` there."""
    values = _evaluated(evaluate, way.bindings, values)
    if not isinstance(way.end, Choice):
        return end(way.end, values)
    return lax.cond(
        evaluate(way.end.condition, values),
        *(lambda inner=inner: _followed(evaluate, inner, values, end) for inner in way.end.ways),
    )


def _evaluated(evaluate: Evaluate, bindings: Iterable[relax.VarBinding], values: Values) -> Values:
    values = dict(values)
    for each in bindings:
        values[each.var] = evaluate(each.value, values)
    return values


def _zeros(kind: relax.Type) -> Any:
    """Something of a type, in the place of a result that is not known yet."""
    if isinstance(kind, relax.TupleType):
        return tuple(_zeros(each) for each in kind.fields)
    shape = tuple(int(size) for size in kind.shape.values)
    return jnp.zeros(shape, numpy_dtype(str(kind.dtype)))
