"""Traces the columns of a product through later operators: the blocks and groups they fall into."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import gcd, lcm, prod

from tvm import relax

from distir_ext.structure.calls import PARALLEL
from distir_ext.structure.program import (
    Program,
    cut_points,
    operator_of,
    others_are_whole,
    sizes_of,
)

_STEPS_TO_REPETITION = 12


@dataclass
class Trace:
    """Values that the elements of one dimension reach.

    Attributes:
        size: Size of the dimension.
        cuts: Positions at which splits and slices cut it, from 0 to the size.
        units: By range the size of the groups that its elements are put in, such as heads.
        parts: By value its range, for values that have only a part of the dimension.
        values: By value its dimension that corresponds to the dimension or a range of it.
    """

    size: int
    cuts: set[int] = field(default_factory=set)
    units: dict[tuple[int, int], int] = field(default_factory=dict)
    parts: dict[relax.Var, tuple[int, int]] = field(default_factory=dict)
    values: dict[relax.Var, int] = field(default_factory=dict)

    @property
    def blocks(self) -> tuple[int, ...]:
        """The sizes of the blocks that it is cut into; the whole, if it is not cut."""
        points = sorted({0, self.size, *self.cuts})
        return tuple(b - a for a, b in pairwise(points))

    def unit(self, begin: int, end: int) -> int:
        """The size of the groups in a range, which is no less than one element."""
        found = 1
        for (first, last), size in self.units.items():
            if first <= begin and end <= last:
                found = lcm(found, size)
        return found if (end - begin) % found == 0 else gcd(found, end - begin)


def trace(
    program: Program, var: relax.Var, dim: int, within: Collection[relax.Var] | None = None
) -> Trace:
    """Follows a dimension through all that reads a value.

    Args:
        program: The program.
        var: Variable at which it begins.
        dim: Of the value.
        within: The values that are looked at; None: all.
    """
    size = (sizes_of(var) or ())[dim]
    found = Trace(size)
    pending = [(var, dim, 0, size)]
    seen = set()
    while pending:
        at = pending.pop()
        if at in seen or (within is not None and at[0] not in within):
            continue
        seen.add(at)
        value, dim, begin, end = at
        found.values.setdefault(value, dim)
        if (begin, end) != (0, size):
            found.parts[value] = (begin, end)
        for user in program.users.get(value, ()):
            pending += _through(program, user, at, found)
    return found


def _through(
    program: Program, user: relax.Var, at: tuple[relax.Var, int, int, int], found: Trace
) -> Iterable[tuple[relax.Var, int, int, int]]:
    """The dimensions that a value's dimension becomes in one that reads it."""
    value, dim, begin, end = at
    made = program.made[user]
    if isinstance(made, relax.Var):
        yield user, dim, begin, end
        return
    rule = program.rule(user)
    if rule is None or not isinstance(made, relax.Call):
        return
    operands = program.operands(made)
    is_first = bool(operands) and operands[0].same_as(value)
    count = (sizes_of(value) or ())[dim]
    unit = (end - begin) // count if count > 0 else 1  # elements of what the dimension counts
    ranges = cut_points(made, dim, count) if is_first else None
    if ranges is not None:
        if not _cuts_alone(made, dim, value):
            return
        for result, (first, last) in enumerate(ranges):
            found.cuts |= {begin + first * unit, begin + last * unit}
            for part in _results(program, user, result):
                yield part, dim, begin + first * unit, begin + last * unit
        return
    for index, operand in enumerate(operands):
        if not operand.same_as(value):
            continue
        factors = rule.operands[index][dim]
        if any(rule.kinds[factor] != PARALLEL for factor in factors[:1]):
            continue
        if _is_one_group(program, dim, value, user):
            found.units[begin, end] = end - begin
        if unit == 1 and len(factors) > 1 and (size := rule.minor(factors)) > 1:
            found.units[begin, end] = lcm(found.units.get((begin, end), 1), size)
            factors_of_count = factors[:1]
        else:
            factors_of_count = factors
        for result, place in [*rule.places(factors), *rule.places(factors_of_count)]:
            for each in _results(program, user, result):
                yield each, place, begin, end


def _cuts_alone(call: relax.Call, dim: int, value: relax.Var) -> bool:
    """Returns whether a split or slice cuts no other dimension of its operand."""
    if isinstance(call.ty, relax.TupleType):
        return True
    return others_are_whole(call, dim, sizes_of(value) or ())


def _is_one_group(program: Program, dim: int, value: relax.Var, result: relax.Var) -> bool:
    """Returns whether a dimension becomes that of the only group, which all heads share.

    So it is with the states of a state space with one group, (B, S, N) -> (B, S, 1, N) -> repeated
    for each head: every device needs all of them.
    """
    before, after = sizes_of(value) or (), sizes_of(result) or ()
    if [*after] != [*before[:dim], 1, *before[dim:]] or before[dim] <= 1:
        return False
    # Rotary embeddings and norms may lie between: nothing there has more elements.
    count = prod(after)
    pending = {result}
    for _ in range(_STEPS_TO_REPETITION):
        users = {user for each in pending for user in program.users.get(each, ())}
        counts = {user: prod(sizes_of(user) or (0,)) for user in users}
        if any(
            counts[user] > count and operator_of(program.made[user]) == "broadcast_to"
            for user in users
        ):
            return True
        pending = {user for user in users if 0 < counts[user] <= count}
    return False


def _results(program: Program, user: relax.Var, result: int) -> list[relax.Var]:
    if isinstance(user.ty, relax.TupleType):
        return program.fields_of(user).get(result, [])
    return [user]


def unit_of_contracted(program: Program, var: relax.Var, dim: int) -> int:
    """The size of the groups that were merged into a dimension, as heads before they are summed."""
    for _ in range(len(program.bindings)):
        made, rule = program.made.get(var), program.rule(var)
        if isinstance(made, relax.Var):
            var = made
            continue
        if rule is None or not isinstance(made, relax.Call) or len(rule.results) != 1:
            return 1
        factors = rule.results[0][dim]
        if len(factors) > 1:
            return max(rule.minor(factors), 1)
        before = [
            (operand, place)
            for operand, dims in zip(program.operands(made), rule.operands, strict=True)
            for place, other in enumerate(dims)
            if factors and other == factors and operand in program.made
        ]
        if not before:
            return 1
        var, dim = before[0]
    return 1
