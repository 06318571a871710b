"""Index of a function for structural analyses: the definition of each value, roles of calls.

What calls mean comes from their factor rules (``docs/rules.md``), so that nothing here is a list of
operators: a dimension of an operand is followed into the result wherever both have its factors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax

from distir_ext.structure.calls import CallRule, Calls

CUTTING = ("split", "strided_slice", "take")
"""Operators of which :func:`cut_points` says what they cut."""


def sizes_of(value: relax.Expr) -> tuple[int, ...] | None:
    """The shape of a tensor, -1 for symbolic sizes; None for what is none, or has none."""
    type_ = value.ty
    if not isinstance(type_, relax.TensorType) or not isinstance(type_.shape, relax.ShapeExpr):
        return None  # the shape may be a variable
    return tuple(int(s) if isinstance(s, tvm.tirx.IntImm) else -1 for s in type_.shape.values)


def is_float(value: relax.Expr) -> bool:
    """Returns whether a value is a tensor of floats."""
    return isinstance(value.ty, relax.TensorType) and "float" in str(value.ty.dtype)


def operator_of(value: Any) -> str:
    """The operator that an expression calls, without ``relax.``; empty where it calls none."""
    if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op):
        return str(value.op.name).removeprefix("relax.")
    return ""


class Program:
    """A function without branches.

    Args:
        function: Its first parameters are inputs, ``num_input`` of them.
        calls: Factor rules of calls; those of TIR kernels are known only with the module's.
    """

    def __init__(self, function: relax.Function, calls: Calls | None = None) -> None:
        self.function = function
        self.calls = calls or Calls()
        self.bindings: list[relax.Binding] = [
            binding for block in function.body.blocks for binding in block.bindings
        ]
        self.made: dict[relax.Var, relax.Expr] = {
            binding.var: binding.value for binding in self.bindings
        }
        self._rules: dict[relax.Var, CallRule] = {}

    @cached_property
    def inputs(self) -> list[relax.Var]:
        """The parameters that every call passes."""
        return list(self.function.params)[: self._num_input]

    @cached_property
    def weights(self) -> list[relax.Var]:
        """The other parameters."""
        return list(self.function.params)[self._num_input :]

    @property
    def _num_input(self) -> int:
        attrs = self.function.attrs
        has = attrs is not None and "num_input" in attrs
        return int(attrs["num_input"]) if has else len(self.function.params)

    @cached_property
    def users(self) -> Mapping[relax.Var, list[relax.Var]]:
        """The variables whose values read a variable."""
        found: dict[relax.Var, list[relax.Var]] = {}
        for binding in self.bindings:
            for read in dict.fromkeys(self.reads(binding.value)):
                found.setdefault(read, []).append(binding.var)
        return found

    def reads(self, value: relax.Expr) -> list[relax.Var]:
        """The variables that a value is made of, in order."""
        if isinstance(value, relax.Var):
            return [value]
        if isinstance(value, relax.TupleGetItem):
            return self.reads(value.tuple_value)
        if isinstance(value, relax.Tuple):
            return [read for field in value.fields for read in self.reads(field)]
        if isinstance(value, relax.Call):
            return [read for each in value.args for read in self.reads(each)]
        if isinstance(value, relax.If | relax.SeqExpr):
            return list(relax.analysis.free_vars(value))
        return []

    def operands(self, call: relax.Call) -> list[relax.Expr]:
        """The tensor operands of a call in the order of its rule."""
        found: list[relax.Expr] = []
        for arg in call.args:
            found += self._tensors(arg)
        return found

    def _tensors(self, value: relax.Expr) -> list[relax.Expr]:
        if isinstance(value, relax.Tuple):
            return [each for field in value.fields for each in self._tensors(field)]
        if isinstance(value.ty, relax.TupleType):
            made = self.made.get(value)
            if isinstance(made, relax.Tuple):
                return self._tensors(made)
            return [value] * len(value.ty.fields)
        return [value] if isinstance(value.ty, relax.TensorType) else []

    def rule(self, var: relax.Var) -> CallRule | None:
        """The rule of the call that makes a variable; None where none does."""
        call = self.made.get(var)
        if not isinstance(call, relax.Call):
            return None
        if var not in self._rules:
            self._rules[var] = self.calls.rule(call)
        return self._rules[var]

    def fields_of(self, var: relax.Var) -> dict[int, list[relax.Var]]:
        """The variables that are fields of a tuple."""
        found: dict[int, list[relax.Var]] = {}
        for user in self.users.get(var, ()):
            value = self.made[user]
            if isinstance(value, relax.TupleGetItem):
                found.setdefault(int(value.index), []).append(user)
        return found

    def ancestors(self, starts: Iterable[relax.Var], within: Iterable[relax.Var]) -> set[relax.Var]:
        """Returns the values that ``starts`` depend on, themselves included, among ``within``."""
        allowed = within if isinstance(within, set | frozenset | dict) else set(within)
        found: set[relax.Var] = set()
        pending = [var for var in starts if var in allowed]
        while pending:
            var = pending.pop()
            if var in found:
                continue
            found.add(var)
            if var in self.made:
                pending += [read for read in self.reads(self.made[var]) if read in allowed]
        return found


def cut_points(call: relax.Call, dim: int, size: int) -> list[tuple[int, int]] | None:
    """Finds the range of a dimension that each result of a split or slice has.

    Returns:
        Begin and end for each result; None where the call cuts another dimension, or not in parts
        of adjacent elements.
    """
    name = operator_of(call)
    if name == "split":
        rank = len(sizes_of(call.args[0]) or ())
        if int(call.attrs.axis) % max(rank, 1) != dim:
            return None
        return _parts(call.attrs.indices_or_sections, size)
    if name == "strided_slice":
        return _slice(call, dim, size)
    if name == "take":
        return _entries(call, dim)
    return None


def entry_taken(call: relax.Call) -> tuple[int, int] | None:
    """The dimension of which a call takes one entry, and which one: of ``x[:, 2]`` 1 and 2.

    Returns:
        None where the call is another, or the entry is computed.
    """
    taken = _constant_entries(call)
    if taken is None or taken[1].ndim != 0:
        return None
    return taken[0], int(taken[1])


def _constant_entries(call: relax.Call) -> tuple[int, npt.NDArray[Any]] | None:
    """The dimension of which a call takes entries, and their numbers, counted from the start.

    Returns:
        None where the call is another, or the entries are computed, or are not there.
    """
    if operator_of(call) != "take" or not isinstance(call.args[1], tvm.ir.GenericConst):
        return None
    shape, entries = sizes_of(call.args[0]), call.args[1].value.numpy()
    axis = call.attrs.axis
    if not shape or (axis is None and len(shape) != 1):
        return None
    dim = (0 if axis is None else int(axis)) % len(shape)
    if not ((-shape[dim] <= entries) & (entries < shape[dim])).all():
        return None
    return dim, entries % shape[dim]


def _entries(call: relax.Call, dim: int) -> list[tuple[int, int]] | None:
    """The range of the entries that a call takes, if they are known and follow each other."""
    taken = _constant_entries(call)
    if taken is None or taken[1].ndim != 1 or taken[0] != dim or not taken[1].size:
        return None
    begin = int(taken[1][0])
    is_range = (taken[1] == np.arange(begin, begin + taken[1].size)).all()
    return [(begin, begin + int(taken[1].size))] if is_range else None


def _parts(stated: Any, size: int) -> list[tuple[int, int]]:
    if isinstance(stated, int | tvm.tirx.IntImm):
        step = -(-size // int(stated))
        points = list(range(step, size, step))
    else:
        points = [int(point) for point in stated]
    return list(zip([0, *points], [*points, size], strict=True))


def _slice(call: relax.Call, dim: int, size: int) -> list[tuple[int, int]] | None:
    try:
        lists = [[int(each) for each in arg] for arg in call.args[1:]]
    except (TypeError, ValueError):  # it depends on symbolic sizes
        return None
    axes, begins, ends, *rest = lists
    rank = len(sizes_of(call.args[0]) or ())
    places = [index for index, axis in enumerate(axes) if axis % max(rank, 1) == dim]
    if len(places) != 1 or any(step != 1 for strides in rest for step in strides):
        return None
    begin, end, _ = slice(begins[places[0]], ends[places[0]]).indices(size)
    return [(begin, end)] if begin < end else None


def others_are_whole(call: relax.Call, dim: int, sizes: Sequence[int]) -> bool:
    """Returns whether a slice takes all of every dimension but one."""
    result = sizes_of_type(call.ty)
    return result is not None and all(
        a == b for place, (a, b) in enumerate(zip(result, sizes, strict=True)) if place != dim
    )


def sizes_of_type(type_: Any) -> tuple[int, ...] | None:
    """As :func:`sizes_of`, of a type."""
    return sizes_of(relax.Var("_", type_))
