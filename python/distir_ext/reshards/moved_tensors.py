"""Lists the moves of a lowered module: tensors, their collectives, source and target shardings."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.annotate.annotations import Dims
from distir_ext.communication.collectives import (
    CollectiveCall,
    communicating_calls,
    estimated_bytes,
)
from distir_ext.mesh.cluster_attr import CLUSTER_ATTR
from distir_ext.mesh.notation import meshes
from distir_ext.native.collective_records import names, records
from distir_ext.reshards.reshards_result import (
    OPERATOR,
    REDUCTION,
    RESHARD,
    STATED,
    TRANSFER,
    Reshard,
)
from distir_ext.reshards.uneven_extents import shapes_of, uneven_lines
from distir_ext.reshards.written_operators import WrittenOperators
from distir_ext.signature.signature_attr import read_signature
from distir_ext.structure.annotated_function import variable_names


class Names:
    """The functions and variables of a module, to name those of later phases."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._variables = {
            str(gv.name_hint): set(variable_names(function))
            for gv, function in mod.functions_items()
            if isinstance(function, relax.Function)
        }
        self._mod = mod
        self._written: dict[str, WrittenOperators] = {}
        self._shapes_of: dict[str, dict[str, tuple[int, ...]]] = {}
        sizes: dict[str, set[int]] = {}
        for mesh in meshes(mod):
            for axis, size in zip(mesh.axis_names, mesh.shape, strict=True):
                sizes.setdefault(axis, set()).add(size)
        self.axis_sizes = {axis: min(each) for axis, each in sizes.items() if len(each) == 1}
        """Of axes that have one size in all meshes of the module."""

    def written(self, lowered: str) -> WrittenOperators:
        """Operators of the function that a lowered one was made of."""
        name = self.function(lowered)
        if name not in self._written:
            is_known = name in self._variables
            self._written[name] = WrittenOperators(self._mod[name] if is_known else None)
        return self._written[name]

    def shape(self, function: str, variable: str) -> tuple[int, ...]:
        """The static extents of a variable of the module; -1 of others."""
        return self._shapes(function).get(variable, ())

    def _shapes(self, function: str) -> dict[str, tuple[int, ...]]:
        if function not in self._shapes_of:
            known = function in self._variables
            self._shapes_of[function] = shapes_of(self._mod[function]) if known else {}
        return self._shapes_of[function]

    def functions(self) -> tuple[str, ...]:
        """The Relax functions of the module."""
        return tuple(self._variables)

    def function(self, lowered: str) -> str:
        """The function that a lowered one was made of: ``main`` of ``main_stage0``."""
        return _function_of(lowered, self._variables)

    def variable(self, lowered: str, name: str) -> str:
        """The variable in place of which passes wrote one of a lowered function."""
        known = self._variables.get(self.function(lowered), set())
        for each in (name, re.sub(r"_\d+$", "", name)):
            if each not in known:
                continue
            computed = each.removesuffix("_computed")  # of an annotated variable
            return computed if computed in known else each
        return name


def _function_of(lowered: str, known: Collection[str]) -> str:
    """The one of the known functions that a lowered one was made of."""
    name = lowered
    while name and name not in known:
        shorter = re.sub(r"_[A-Za-z]*\d+$", "", name)
        name = shorter if shorter != name else ""
    return name or lowered


@dataclass(frozen=True)
class Advice:
    """Change to an annotation that may avoid a move."""

    function: str
    variable: str
    dims: Dims


@dataclass(frozen=True)
class Move:
    """One move, in a function that is called some times."""

    lowered_function: str
    index: int
    """Among the moves of the lowered function; -1 for what an operator sends by itself."""

    row: Reshard
    """Of this tensor alone, without causes."""


class MovedTensors:
    """Reads the redistributions of a lowered module.

    Args:
        lowered: A module after LowerDistIR.
        optimized: The same before LowerDistIR, which knows more: on shards, a dimension of one
            element may be sharded or not.
        names: Names of its functions and variables for users.
    """

    def __init__(self, lowered: tvm.IRModule, optimized: tvm.IRModule, names: Names) -> None:
        self._names = names
        moves_of, self._cause_of, made_of, _ = tvm_ffi.get_global_func("distir.explain.Moves")(
            optimized
        )
        functions = [
            str(gv.name_hint)
            for gv, function in optimized.functions_items()
            if isinstance(function, relax.Function)
        ]
        self._listed = {name: list(moves_of(name)) for name in functions}
        self._made = {
            name: {str(key): tuple(map(str, value)) for key, value in made_of(name).items()}
            for name in functions
        }
        attrs = lowered.attrs
        cluster = attrs.get(CLUSTER_ATTR, None)
        self._seconds = tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(cluster)
        self._calls = communicating_calls(lowered)
        self._counts = _counts(lowered, self._calls)
        self.moves = [move for name in self._calls for move in self._of_function(name)]

    def cause(self, move: Move) -> tuple[Reshard, tuple[Advice, ...]]:
        """Returns the row of a move with its cause, and an annotation that may avoid it."""
        if move.index < 0:
            return move.row, ()
        found = self._cause_of(_function_of(move.lowered_function, self._listed), move.index)
        source, target, lines = (
            tuple(map(str, found[key])) for key in ("source", "target", "lines")
        )
        row = replace(move.row, source_cause=source, target_cause=target, conflict=lines)
        advice = tuple(
            Advice(self._names.function(str(function)), str(variable), ast.literal_eval(str(dims)))
            for function, variable, dims in found["advice"]
        )
        return row, advice

    def uneven(self, row: Reshard) -> tuple[str, ...]:
        """Lines on the dimensions of a row's tensor that its shards do not divide."""
        shape = self._names.shape(row.function, row.tensor)
        return tuple(
            dict.fromkeys(
                line
                for sharding in (row.source, row.target)
                for line in uneven_lines(row.tensor, shape, sharding, self._names.axis_sizes)
            )
        )

    def _of_function(self, name: str) -> Iterator[Move]:
        count = self._counts.get(name, 0)
        calls = {
            each.variable: each
            for each in self._calls[name]
            if isinstance(each, CollectiveCall) and each.key is not None
        }
        if not calls or not count:
            return
        before = _function_of(name, self._listed)
        made = self._made.get(before, {})
        for index, move in enumerate(self._listed.get(before, ())):
            found = [calls.pop(str(each)) for each in move["variables"] if str(each) in calls]
            if found:
                yield Move(name, index, self._row(name, made, move, found, count))
        for call in calls.values():
            yield Move(name, -1, self._own_row(name, made, call, count))

    def _row(
        self,
        name: str,
        made: Mapping[str, tuple[str, ...]],
        move: Any,
        found: Sequence[CollectiveCall],
        count: int,
    ) -> Reshard:
        kind = RESHARD
        is_reduced = move["is_partial"] or any(records()[each.kind].reduces for each in found)
        if any(records()[each.kind].is_side for each in found):
            kind = TRANSFER
        elif is_reduced and not move["disagrees"]:
            kind = REDUCTION
        elif move["is_stated"]:
            kind = STATED
        readers = [(str(variable), str(operator)) for variable, operator in move["readers"]]
        operators = [made.get(variable, (operator,))[0] for variable, operator in readers]
        passed = [str(each) for each in (move["origin"], *move["variables"])]
        tensor = self._user_name(name, made, str(move["origin"]))
        if kind == REDUCTION:
            by_passes = [made[each][0] for each in passed if each in made]
            operators = [*by_passes, str(move["maker"])][:1]
        found_operators = tuple(dict.fromkeys(filter(None, operators)))
        written = self._names.written(name)
        if kind in (RESHARD, STATED):
            found_operators = written.readers(tensor, found_operators)
        elif kind == REDUCTION:
            found_operators = written.maker(tensor, found_operators)
        return Reshard(
            kind,
            self._names.function(name),
            (tensor,),
            found_operators,
            tuple(dict.fromkeys(self._user_name(name, made, each) for each, _ in readers)),
            str(move["source"]),
            str(move["target"]),
            *self._costs(found),
            count,
        )

    def _own_row(
        self, name: str, made: Mapping[str, tuple[str, ...]], call: CollectiveCall, count: int
    ) -> Reshard:
        kind = OPERATOR
        if records()[call.kind].is_side:
            kind = TRANSFER
        elif records()[call.kind].timed_as == names.all_reduce:
            kind = REDUCTION
        operators = (made[call.variable][0],) if call.variable in made else call.operators
        variable = call.variable if kind == OPERATOR else (*call.tensors, call.variable)[0]
        tensor = self._user_name(name, made, variable)
        function = self._names.function(name)
        return Reshard(
            kind, function, (tensor,), operators, (), "", "", *self._costs([call]), count
        )

    def _user_name(self, function: str, made: Mapping[str, tuple[str, ...]], variable: str) -> str:
        known = made.get(variable)
        return self._names.variable(function, variable if known is None else known[1])

    def _costs(
        self, calls: Sequence[CollectiveCall]
    ) -> tuple[tuple[str, ...], tuple[str, ...], float, float]:
        """Returns the kinds, axes, bytes and seconds of collectives that run one by one."""
        axes: dict[str, None] = {}
        size = seconds = 0.0
        for call in calls:
            assert call.key is not None
            axes.update(dict.fromkeys(call.key.axes))
            size += math.ceil(estimated_bytes(call.key.bytes, call.key.unit))
            seconds += float(
                self._seconds(call.kind, call.how, call.priced_bytes, call.priced_bytes)
            )
        return tuple(call.kind for call in calls), tuple(axes), size, seconds


def _counts(
    lowered: tvm.IRModule, calls: Mapping[str, Sequence[CollectiveCall | str]]
) -> dict[str, int]:
    """Returns the number of times each function runs in one call of every entry function."""
    entries = [
        str(program["name"])
        for function in read_signature(lowered)["functions"].values()
        for program in function["programs"]
    ]
    counts: dict[str, int] = dict.fromkeys(entries, 1)
    for name in _callers_first(entries, calls):
        for callee in calls[name]:
            if isinstance(callee, str) and callee in calls:
                counts[callee] = counts.get(callee, 0) + counts[name]
    return counts


def _callers_first(
    entries: Sequence[str], calls: Mapping[str, Sequence[CollectiveCall | str]]
) -> list[str]:
    """Functions that are reached, each before those that it calls; a circle is entered once."""
    done: list[str] = []
    seen: set[str] = set()
    for entry in entries:
        stack: list[tuple[str, bool]] = [(entry, False)]
        while stack:
            name, is_finished = stack.pop()
            if is_finished:
                done.append(name)
            elif name not in seen and name in calls:
                seen.add(name)
                stack.append((name, True))
                stack += [(callee, False) for callee in calls[name] if isinstance(callee, str)]
    return done[::-1]


def grouped(moves: Sequence[Move], key: Callable[[Move], Any]) -> list[tuple[Reshard, list[Move]]]:
    """Equal moves as one row, with the moves that it stands for; the most expensive first."""
    groups: dict[Any, list[Move]] = {}
    for move in moves:
        groups.setdefault(key(move), []).append(move)
    found = []
    for each in groups.values():
        rows = [move.row for move in each]
        row = replace(
            rows[0],
            tensors=tuple(dict.fromkeys(row.tensor for row in rows)),
            readers=tuple(dict.fromkeys(name for row in rows for name in row.readers)),
            count=sum(row.count for row in rows),
        )
        found.append((row, each))
    return sorted(found, key=lambda item: (-item[0].total_seconds, -item[0].total_bytes))


def alike(move: Move) -> Any:
    """Returns a key that is equal for moves that differ only in their reason."""
    row = move.row
    return (
        *(row.kind, row.function, row.operators, row.source, row.target),
        *(row.collectives, row.axes, row.bytes_per_device, row.seconds),
    )
