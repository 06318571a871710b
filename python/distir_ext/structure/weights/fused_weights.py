"""Splits sharded fused weights, such as QKV, into blocks that splits in the program show.

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
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import relax

from distir_ext.structure.annotated_function import shards_of
from distir_ext.structure.calls import Calls, is_kernel_call
from distir_ext.structure.program import (
    CUTTING,
    Program,
    operator_of,
    sizes_of,
)
from distir_ext.structure.weights.blocks import CutFunction, cut_weights
from distir_ext.structure.weights.cut_search import CutSearch
from distir_ext.structure.weights.fused_parameters import fused_parameters, with_fused_parameters


@dataclass(frozen=True)
class Separated:
    """A module of which sharded weights that are fused are cut.

    Attributes:
        mod: Its functions have a parameter for each block.
        num_cut: Number of weights that were split.
        skipped: Number of weights that were not split, by reason.
    """

    mod: tvm.IRModule
    num_cut: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)


def reported(found: Separated) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Summarises for a pass report how many weights were split, and why others were not."""
    cut, reasons = found.num_cut, found.skipped
    return (
        {"weights that are cut into blocks": cut} if cut else {},
        {"cut into blocks": dict(reasons)} if reasons else {},
    )


def separate_weights(mod: tvm.IRModule, funcs: Collection[str]) -> Separated:
    """Cuts annotated weights where splits and slices cut what is computed of them.

    A weight stays whole where that would not help: its blocks meet again, or what is neither a
    weight nor computed of one would have to be cut to meet them; what is annotated itself is whole.
    Splits within TIR kernels become operators in a module of which weights are cut.

    Args:
        mod: The module.
        funcs: The names of the functions in it. Weights are parameters behind ``num_input``.
    """
    sharded = [func for func in funcs if _annotated(Program(mod[func]))[0]]
    if not sharded:
        return Separated(mod)
    shown = _with_operators(mod, sharded)
    calls = Calls(shown)
    found = {func: _separate(shown, func, calls) for func in sharded}
    skipped = Counter(why for each in found.values() for why in each.skipped.values())
    changed = {func: each for func, each in found.items() if each.names}
    if not changed:
        return Separated(mod, 0, skipped)
    result = shown.clone()
    for func, each in changed.items():
        result.update_func(result.get_global_var(func), each.function)
    for name in _called(each.function for each in changed.values()) & calls.kernels.keys():
        result[name] = calls.kernels[name]
    return Separated(result, sum(len(each.names) for each in changed.values()), skipped)


@dataclass(frozen=True)
class _Function:
    """A function, which weights of it were cut, and why others were not."""

    function: relax.Function
    names: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def _separate(mod: tvm.IRModule, func: str, calls: Calls) -> _Function:
    function = mod[func]
    program = Program(function, calls)
    starts, stated = _annotated(program)
    if not any(_cuts(each) for each in program.made.values()):
        return _Function(function)
    cuts = CutSearch(program, starts).cuts()
    obstacle = _obstacle(mod, func, program) if cuts else ""
    skipped = dict.fromkeys(cuts, obstacle) if obstacle else {}
    while cuts.keys() - skipped.keys():
        chosen = {name: cut for name, cut in cuts.items() if name not in skipped}
        found = cut_weights(program, chosen, stated)
        again = {
            **dict.fromkeys(found.unhelpful, "its blocks meet again, or meet what is no weight"),
            **dict.fromkeys(_too_small(found, starts), "a block has fewer elements than shards"),
        }
        again = {name: why for name, why in again.items() if name in chosen}
        if not again:
            fused = {**fused_parameters(function), **found.parameters}
            return _Function(
                with_fused_parameters(found.function, fused), tuple(found.cuts), skipped
            )
        skipped |= again
    return _Function(function, (), skipped)


def _too_small(found: CutFunction, starts: Mapping[str, Mapping[int, int]]) -> set[str]:
    """The weights of which a block has fewer elements than shards, or one that is cut with it."""
    small = {
        name
        for name, cut in found.cuts.items()
        if min(cut.sizes) < starts.get(name, {}).get(cut.dim, 1)
    }
    return small.union(*(found.causes.get(name, ()) for name in small))


def holds_several(mod: tvm.IRModule, func: str) -> bool:
    """Returns whether a program splits some weight, so that a plan that shards it may cut it."""
    shown = _with_operators(mod, [func])
    program = Program(shown[func], Calls(shown))
    ranks = {str(each.name): len(sizes_of(each) or ()) for each in program.weights}
    starts = {name: range(rank) for name, rank in ranks.items()}
    return bool(CutSearch(program, starts).cuts())


def _with_operators(mod: tvm.IRModule, funcs: Collection[str]) -> tvm.IRModule:
    """The module with splits and joins as operators that were within kernels of functions."""
    groups = [each for each in mod.functions.values() if _is_group(each)]
    if groups and all(is_kernel_call(call) for each in groups for call in _calls_in(each)):
        mod = relax.transform.FuseTIR()(mod)
    if not any(is_kernel_call(call) for func in funcs for call in _calls_in(mod[func])):
        return mod
    shown: tvm.IRModule = tvm_ffi.get_global_func("distir.unfuse.LiftOperators")(mod)
    return shown


def _is_group(function: tvm.ir.BaseFunc) -> bool:
    """Returns whether FuseOps has made a function, to be turned into a kernel by FuseTIR."""
    attrs = function.attrs
    return isinstance(function, relax.Function) and attrs is not None and "Primitive" in attrs


def _calls_in(function: relax.Function) -> list[relax.Call]:
    values = Program(function).made.values()
    return [value for value in values if isinstance(value, relax.Call)]


def _called(functions: Iterable[relax.Function]) -> set[tvm.ir.GlobalVar]:
    """The kernels that functions call."""
    return {
        call.args[0]
        for function in functions
        for call in _calls_in(function)
        if is_kernel_call(call)
    }


def _annotated(program: Program) -> tuple[dict[str, dict[int, int]], set[relax.Var]]:
    """Finds the sharded dimensions of weights, with numbers of shards, and other annotated values.

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
    """Returns whether a value may be a block of its operand."""
    return operator_of(value) in CUTTING


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
