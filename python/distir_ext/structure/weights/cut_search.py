"""Finds weights that a program splits into blocks, by its splits and slices.

::

    lv = R.matmul(x, w)                          columns of lv are columns of w
    lv1 = R.reshape(lv, (4, 10, 16))             of lv1, dimension 1 has 16 of them in each element
    lv2 = R.split(lv1, [4, 7], axis=1)           w is cut at columns 64 and 112

Factor rules relate dimensions of results to dimensions of operands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from tvm import relax

from distir_ext.structure.calls import PARALLEL, CallRule
from distir_ext.structure.program import (
    CUTTING,
    Program,
    cut_points,
    entry_taken,
    operator_of,
    others_are_whole,
    sizes_of,
)
from distir_ext.structure.weights.blocks import Cut


@dataclass(frozen=True)
class _Range:
    """A part of a weight's dimension that a value has.

    Attributes:
        weight: The weight, and its dimension.
        begin: Of the part, in elements of the weight.
        end: Its end.
        unit: Elements of the weight per element of the value's dimension: 64 if it counts heads of
            64 columns, 1/8 if eight columns are unpacked from one word.
    """

    weight: tuple[str, int]
    begin: Fraction
    end: Fraction
    unit: Fraction = Fraction(1)


_Ranges = dict[int, _Range]
"""Ranges of weights by dimension of a value."""


@dataclass
class CutSearch:
    """Follows dimensions of weights through a program, once through its bindings.

    Args:
        program: The program.
        starts: By name of a weight the dimensions that are followed.
    """

    program: Program
    starts: Mapping[str, Collection[int]]
    _values: dict[relax.Var, _Ranges] = field(default_factory=dict)
    _fields: dict[relax.Var, list[_Ranges]] = field(default_factory=dict)
    _with: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    _points: dict[tuple[str, int], set[int]] = field(default_factory=dict)

    def cuts(self) -> dict[str, Cut]:
        """Returns the blocks of each weight that is split, by name."""
        sizes: dict[tuple[str, int], int] = {}
        for param in self.program.weights:
            shape = sizes_of(param) or ()
            for dim in self.starts.get(str(param.name), ()):
                if shape and shape[dim] > 0:
                    sizes[str(param.name), dim] = shape[dim]
                    whole = _Range((str(param.name), dim), Fraction(0), Fraction(shape[dim]))
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
        """Returns the ranges of the results of a split or slice along a range, or none."""
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
        """Returns the ranges of one entry along a range, which lacks that dimension, or none."""
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
        ends = {int(each) for each in (part.begin, part.end) if each.denominator == 1}
        self._points.setdefault(self._first(whole.weight), set()).update(ends)
        return part

    def _computed(self, var: relax.Var, operands: list[relax.Expr]) -> list[_Ranges]:
        """Returns the ranges of a call's results that it computes from ranges of its operands."""
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
        """Returns the representative of the weights that are split alike."""
        while weight in self._with:
            above = self._with[weight]
            if above in self._with:
                self._with[weight] = self._with[above]
            weight = above
        return weight

    def _join(self, weight: tuple[str, int], other: tuple[str, int]) -> None:
        """Makes two weights cut alike, whose elements meet one by one."""
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
            if inner:
                moved = _Range(of_operand.weight, of_operand.begin, of_operand.end, step / inner)
                yield result, place, moved
