"""Cuts the main function of a program into slices, runs of bindings that become functions.

The search for pipeline stages (``pipelines``) costs slices and joins them to stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import tvm
from tvm import relax

from distir_ext.autosharding.search import Program
from distir_ext.passes import transform

_MOST_GROUPS = 16
"""Parts of a program with repeated layers, at most; parts of equal layers share one search."""

_MOST_DISTINCT_GROUPS = 8
"""Parts of a program that repeats nothing."""

_WINDOW = 0.25
"""By which part of a group its begin may lie elsewhere, where less is live."""


@dataclass(frozen=True)
class Slice:
    """Some bindings of a function.

    Attributes:
        program: They as a program.
        params: Names of what they are given.
        variables: Names of what they bind.
        function: They as a function.
    """

    program: Program
    params: tuple[str, ...]
    variables: tuple[str, ...]
    function: relax.Function


class Slices:
    """The main function of a program, in groups of bindings.

    Args:
        program: The program.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._bindings = _bindings(program.mod[program.func])
        self.cuts = self._find_cuts()
        """The binding with which each group begins, and the end."""

    @property
    def first_variable(self) -> Sequence[str]:
        """The variable with which each group begins."""
        return [str(self._bindings[cut].var.name) for cut in self.cuts[:-1]]

    def part(self, begin: int, end: int) -> Slice:
        """Some groups, from ``begin`` to before ``end``."""
        whole, func = self._program, self._program.func
        first, last = self.cuts[begin], self.cuts[end]
        function = _part(whole.mod[func], first, last)
        outlined = _part(whole.counted.outlined[func], first, last)
        program = Program.of_part(
            whole, _with(whole.mod, func, function), _with(whole.counted.outlined, func, outlined)
        )
        return Slice(
            program,
            tuple(str(param.name) for param in function.params),
            tuple(str(each.var.name) for each in self._bindings[first:last]),
            function,
        )

    @cached_property
    def seconds(self) -> list[float]:
        """Seconds in which one device computes each group, without memory traffic."""
        totals = [0.0]
        for each in self._seconds_of_bindings:
            totals.append(totals[-1] + each)
        return [totals[end] - totals[begin] for begin, end in pairwise(self.cuts)]

    def live_bytes(self, group: int) -> float:
        """Bytes of values that groups from this one on read of earlier ones."""
        return self._live[self.cuts[group]]

    @cached_property
    def fields(self) -> set[str]:
        """Variables that are fields of parameters."""
        known = {each.__chandle__() for each in self._program.mod[self._program.func].params}
        found = set()
        for binding in self._bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.__chandle__() in known:
                known.add(binding.var.__chandle__())
                found.add(str(binding.var.name))
        return found

    @cached_property
    def _seconds_of_bindings(self) -> list[float]:
        counted = self._program.counted
        known: dict[str, float] = {}

        def seconds_of(value: Any) -> float:
            if isinstance(value, relax.If):
                return max(
                    sum(seconds_of(each.value) for block in side.blocks for each in block.bindings)
                    for side in (value.true_branch, value.false_branch)
                )
            callee = value.op if isinstance(value, tvm.ir.Call) else None
            if not isinstance(callee, tvm.ir.GlobalVar):
                return 0.0
            name = str(callee.name_hint)
            if name in counted.counts:
                return float(sum(kernel[0] for kernel in counted.counts[name]))
            function = counted.outlined.functions.get(callee)
            if name not in known and isinstance(function, relax.Function):
                known[name] = 0.0  # of one that calls itself
                known[name] = sum(seconds_of(each.value) for each in _bindings(function))
            return known.get(name, 0.0)

        outlined = counted.outlined[self._program.func]
        return [seconds_of(binding.value) for binding in _bindings(outlined)]

    @cached_property
    def _live(self) -> list[float]:
        """Bytes of values that are made before each binding, and read by it or a later one."""
        function = self._program.mod[self._program.func]
        change = [0.0] * (len(self._bindings) + 2)
        made = {each.var.__chandle__(): at for at, each in enumerate(self._bindings)}
        for var, last in _last_reads(function).items():
            if var in made and str(self._bindings[made[var]].var.name) not in self.fields:
                size = _bytes_of(self._bindings[made[var]].var.ty)
                change[made[var] + 1] += size
                change[last + 1] -= size
        live = [0.0]
        for each in change[1:]:
            live.append(live[-1] + each)
        return live

    def _find_cuts(self) -> list[int]:
        count = len(self._bindings)
        layers = self._layers()
        if layers:
            number = min(_MOST_GROUPS, len(layers) + 1)
            chosen = {layers[round(at * (len(layers) + 1) / number) - 1] for at in range(1, number)}
            return [0, *sorted(chosen), count]
        totals = [0.0]
        for each in self._seconds_of_bindings:
            totals.append(totals[-1] + each)
        # Where nothing is computed, by the number of bindings.
        if not totals[-1]:
            totals = [float(at) for at in range(count + 1)]
        cuts = {0, count}
        step = totals[-1] / _MOST_DISTINCT_GROUPS
        for group in range(1, _MOST_DISTINCT_GROUPS):
            near = [
                at
                for at in range(1, count)
                if abs(totals[at] - group * step) <= _WINDOW * step and totals[at] > 0
            ]
            if near:
                cuts.add(min(near, key=lambda at: (self._live[at], abs(totals[at] - group * step))))
        return sorted(cuts)

    def _layers(self) -> list[int]:
        """The bindings with which layers begin that repeat earlier ones."""
        known = {name.name_hint for name in self._program.mod.functions}
        outlined = transform.OutlineRepeats()(self._program.mod)
        at, calls = 0, []
        made = set()
        for binding in _bindings(outlined[self._program.func]):
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value.__chandle__() in made:
                continue
            callee = value.op if isinstance(value, tvm.ir.Call) else None
            if isinstance(callee, tvm.ir.GlobalVar) and callee.name_hint not in known:
                made.add(binding.var.__chandle__())
                calls.append(at)
                at += len(_bindings(outlined[callee]))
            else:
                at += 1
        return calls[1:] if at == len(self._bindings) else []


def _bindings(function: relax.Function) -> list[Any]:
    return [each for block in function.body.blocks for each in block.bindings]


def _last_reads(function: relax.Function) -> Mapping[Any, int]:
    """The last binding that reads each variable; the number of bindings if it is returned."""
    bindings = _bindings(function)
    found: dict[Any, int] = {}
    for at, binding in enumerate(bindings):
        for var in relax.analysis.free_vars(binding.value):
            found[var.__chandle__()] = at
    for var in relax.analysis.free_vars(function.body.body):
        found[var.__chandle__()] = len(bindings)
    return found


def _part(function: relax.Function, first: int, last: int) -> relax.Function:
    """Bindings as a function, which takes the variables that they read as they are."""
    bindings = _bindings(function)[first:last]
    made = {each.var.__chandle__() for each in bindings}
    given: dict[Any, relax.Var] = {}
    for binding in bindings:
        for var in relax.analysis.free_vars(binding.value):
            if var.__chandle__() not in made:
                given.setdefault(var.__chandle__(), var)
    last_reads = _last_reads(function)
    results = [
        each.var for each in bindings if last_reads.get(each.var.__chandle__(), -1) >= last
    ] or [bindings[-1].var]
    result: relax.Expr = results[0]
    if len(results) > 1:
        result = relax.Tuple(results)
        relax.expr._update_type(result, relax.TupleType([each.ty for each in results]))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], result)
    relax.expr._update_type(body, result.ty)
    attrs = tvm.ir.make_node("ir.DictAttrs", global_symbol="part")
    return relax.Function(list(given.values()), body, result.ty, function.is_pure, attrs)


def _with(mod: tvm.IRModule, func: str, function: relax.Function) -> tvm.IRModule:
    mod = mod.clone()
    mod.update_func(mod.get_global_var(func), function)
    return mod


def _bytes_of(type_: Any) -> float:
    if isinstance(type_, relax.TupleType):
        return sum(_bytes_of(each) for each in type_.fields)
    if not isinstance(type_, relax.TensorType) or type_.shape is None or not type_.dtype:
        return 0.0
    sizes = [int(size) for size in type_.shape.values]
    return float(math.prod(sizes) * tvm.DataType(str(type_.dtype)).bits / 8)
