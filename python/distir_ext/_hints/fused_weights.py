"""Sharded weights that hold several, as Q | K | V: found by what reads them, and cut into blocks.

::

    w = R.dist.annotate_sharding(w, .., "R, S[1]")      of 160 columns
    lv = R.matmul(x, w)
    lv1 = R.split(lv, [64, 112], axis=-1)               blocks of 64, 48 and 48

Half of the columns of ``w``, which one of two devices has, are the columns of Q and a part of those
of K; so the split would move what is on the wrong device. With a parameter for each block
(``blocks.py``), each device has half of Q, half of K and half of V.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import tvm
from tvm import relax

from distir_ext._annotate.annotated_function import shards_of
from distir_ext._annotate.fused_parameters import fused_parameters, with_fused_parameters
from distir_ext._hints.blocks import Cut, cut_weights
from distir_ext._hints.program import (
    CUTTING,
    PARALLEL,
    CallRule,
    Program,
    cut_points,
    entry_taken,
    operator_of,
    others_are_whole,
    sizes_of,
)


@dataclass(frozen=True)
class Separated:
    """A function of which sharded weights that are fused are cut.

    Attributes:
        function: With a parameter for each block.
        names: Of the weights that were cut.
        skipped: By name of a weight that stays whole, why.
    """

    function: relax.Function
    names: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def reported(functions: Sequence[Separated]) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """What a pass report says of it: how many weights were cut, and why others were not."""
    cut = sum(len(each.names) for each in functions)
    reasons = Counter(why for each in functions for why in each.skipped.values())
    return (
        {"weights that are cut into blocks": cut} if cut else {},
        {"cut into blocks": dict(reasons)} if reasons else {},
    )


def separate_weights(mod: tvm.IRModule, func: str, function: relax.Function) -> Separated:
    """Cuts annotated weights where splits and slices cut what is computed of them.

    A weight stays whole where that would not help: its blocks meet again, or what is neither a
    weight nor computed of one would have to be cut to meet them; what is annotated itself is whole.

    Args:
        mod: The module.
        func: The name of the function in it.
        function: The function. Weights are its parameters behind ``num_input``.
    """
    program = Program(function)
    starts, stated = _annotated(program)
    if not starts or not any(_cuts(each) for each in program.made.values()):
        return Separated(function)
    cuts = _Search(program, starts).cuts()
    obstacle = _obstacle(mod, func, program) if cuts else ""
    skipped = dict.fromkeys(cuts, obstacle) if obstacle else {}
    for name, cut in cuts.items():
        if min(cut.sizes) < starts[name][cut.dim]:
            skipped[name] = "a block has fewer elements than shards"
    while cuts.keys() - skipped.keys():
        chosen = {name: cut for name, cut in cuts.items() if name not in skipped}
        found = cut_weights(program, chosen, stated)
        again = found.unhelpful & chosen.keys()
        if not again:
            fused = {**fused_parameters(function), **found.parameters}
            return Separated(
                with_fused_parameters(found.function, fused), tuple(found.cuts), skipped
            )
        skipped |= dict.fromkeys(again, "its blocks meet again, or meet what is no weight")
    return Separated(function, (), skipped)


def holds_several(function: relax.Function) -> bool:
    """Whether a program takes some weight apart, so that a plan that shards it may cut it."""
    program = Program(function)
    ranks = {str(each.name): len(sizes_of(each) or ()) for each in program.weights}
    starts = {name: dict.fromkeys(range(rank), 1) for name, rank in ranks.items()}
    return bool(_Search(program, starts).cuts())


def _annotated(program: Program) -> tuple[dict[str, dict[int, int]], set[relax.Var]]:
    """By name of a weight its sharded dimensions and their shards; and all that is stated else.

    Blocks are not cut again.
    """
    blocks = {each for _, names in fused_parameters(program.function).values() for each in names}
    weights = {each for each in program.weights if str(each.name) not in blocks}
    starts: dict[str, dict[int, int]] = {}
    stated: set[relax.Var] = set()
    for var, value in program.made.items():
        if operator_of(value) != "dist.annotate_sharding":
            continue
        if value.args[0] not in weights:
            stated.add(var)
        elif shards := shards_of(value):
            starts.setdefault(str(value.args[0].name), {}).update(shards)
    return starts, stated


def _cuts(value: relax.Expr) -> bool:
    """Whether it may be a block of what it is made of."""
    return operator_of(value) in CUTTING or (
        isinstance(value, relax.Call) and entry_taken(value) is not None
    )


def _obstacle(mod: tvm.IRModule, func: str, program: Program) -> str:
    """Why a function cannot have other parameters, or not be written anew; empty if it can."""
    if any(isinstance(value, relax.If | relax.SeqExpr) for value in program.made.values()):
        return "the function has branches"
    if any(_calls(each, func) for each in mod.functions.values()):
        return "a function calls this one"
    return ""


def _calls(caller: tvm.ir.BaseFunc, func: str) -> bool:
    found: list[bool] = []

    def visit(value: relax.Expr) -> None:
        if isinstance(value, tvm.ir.GlobalVar) and value.name_hint == func:
            found.append(True)

    if isinstance(caller, relax.Function):
        relax.analysis.post_order_visit(caller, visit)
    return bool(found)


@dataclass(frozen=True)
class _Range:
    """A part of a weight's dimension that a value has.

    Attributes:
        weight: The weight, and its dimension.
        begin: Of the part, in elements of the weight.
        end: Its end.
        unit: The elements of the weight that one of the value's dimension has.
    """

    weight: tuple[str, int]
    begin: int
    end: int
    unit: int = 1


_Ranges = dict[int, _Range]
"""By dimension of a value."""


@dataclass
class _Search:
    """Follows the sharded dimensions of weights through a program, once through its bindings."""

    program: Program
    starts: Mapping[str, Mapping[int, int]]
    _values: dict[relax.Var, _Ranges] = field(default_factory=dict)
    _fields: dict[relax.Var, list[_Ranges]] = field(default_factory=dict)
    _with: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _points: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def cuts(self) -> dict[str, Cut]:
        """How weights are cut, those that are."""
        sizes: dict[tuple[str, int], int] = {}
        for param in self.program.weights:
            shape = sizes_of(param) or ()
            for dim in self.starts.get(str(param.name), ()):
                if shape and shape[dim] > 0:
                    sizes[str(param.name), dim] = shape[dim]
                    whole = _Range((str(param.name), dim), 0, shape[dim])
                    self._values.setdefault(param, {})[dim] = whole
        for binding in self.program.bindings:
            self._follow(binding.var, binding.value)
        found: dict[str, Cut] = {}
        for (name, dim), size in sizes.items():
            inner = self._points.get(self._first((name, dim)), set()) - {0, size}
            if inner and name not in found:
                points = [0, *sorted(inner), size]
                found[name] = Cut(dim, tuple(b - a for a, b in pairwise(points)))
        return found

    def _follow(self, var: relax.Var, value: relax.Expr) -> None:
        if isinstance(value, relax.Var):
            self._values[var] = self._values.get(value, {})
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._fields:
            self._values[var] = self._fields[value.tuple_value][int(value.index)]
        elif isinstance(value, relax.Call):
            operands = self.program.operands(value)
            if any(self._values.get(each) for each in operands):
                results = (
                    self._cut(value, operands[0])
                    or self._taken(value, operands[0])
                    or self._computed(var, operands)
                )
                if isinstance(var.ty, relax.TupleType):
                    self._fields[var] = results
                elif results:
                    self._values[var] = results[0]

    def _cut(self, call: relax.Call, value: relax.Expr) -> list[_Ranges]:
        """Of the results of a split or slice that cuts a range; empty where it is none."""
        if operator_of(call) not in CUTTING:
            return []
        ranges, shape = self._values.get(value, {}), sizes_of(value) or ()
        for dim, of_weight in ranges.items():
            parts = cut_points(call, dim, shape[dim])
            if parts is None:
                continue
            is_slice = not isinstance(call.ty, relax.TupleType)
            if is_slice and not others_are_whole(call, dim, shape):
                continue
            return [{**ranges, dim: self._part(of_weight, begin, end)} for begin, end in parts]
        return []

    def _taken(self, call: relax.Call, value: relax.Expr) -> list[_Ranges]:
        """Of one entry of a range, which does not have the dimension; empty where it is none."""
        dim, entry = entry_taken(call) or (-1, 0)
        ranges = self._values.get(value, {})
        if dim not in ranges:
            return []
        self._part(ranges[dim], entry, entry + 1)
        return [{at - (at > dim): each for at, each in ranges.items() if at != dim}]

    def _part(self, whole: _Range, begin: int, end: int) -> _Range:
        part = _Range(
            whole.weight,
            whole.begin + begin * whole.unit,
            whole.begin + end * whole.unit,
            whole.unit,
        )
        self._points.setdefault(self._first(whole.weight), set()).update((part.begin, part.end))
        return part

    def _computed(self, var: relax.Var, operands: list[relax.Expr]) -> list[_Ranges]:
        """Of the results of a call that has what it computes of a range in the same place."""
        rule = self.program.rule(var)
        assert rule is not None
        found: list[_Ranges] = [{} for _ in rule.results]
        for operand, dims in zip(operands, rule.operands, strict=True):
            for dim, of_operand in self._values.get(operand, {}).items():
                for result, place, of_result in _moved(rule, dims[dim], of_operand):
                    other = found[result].setdefault(place, of_result)
                    if (other.begin, other.end, other.unit) == (
                        of_result.begin,
                        of_result.end,
                        of_result.unit,
                    ):
                        self._join(other.weight, of_result.weight)
        return found

    def _first(self, weight: tuple[str, int]) -> tuple[str, int]:
        """Of the weights that are cut alike."""
        while weight in self._with:
            above = self._with[weight]
            if above in self._with:
                self._with[weight] = self._with[above]
            weight = above
        return weight

    def _join(self, weight: tuple[str, int], other: tuple[str, int]) -> None:
        """Has two weights, of which elements meet one by one, cut alike."""
        first, second = self._first(weight), self._first(other)
        if first != second:
            self._with[second] = first
            self._points.setdefault(first, set()).update(self._points.pop(second, ()))


def _moved(
    rule: CallRule, factors: Collection[int], of_operand: _Range
) -> Iterator[tuple[int, int, _Range]]:
    """The results, and dimensions of them, in which a range of an operand's dimension is."""
    major, *_ = [*factors, -1]
    minor = rule.minor(tuple(factors))
    if major < 0 or not minor or rule.kinds[major] != PARALLEL:
        return
    step = of_operand.unit * minor
    for result, dims in enumerate(rule.results):
        for place, other in enumerate(dims):
            inner = rule.minor(other) if other and other[0] == major else 0
            if inner and step % inner == 0:
                moved = _Range(of_operand.weight, of_operand.begin, of_operand.end, step // inner)
                yield result, place, moved
