"""Finds fused weights whose shards do not match the blocks of a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import tvm
from tvm import relax

from distir_ext.reshards.reshards_result import OPERATOR, RESHARD, Reshard
from distir_ext.structure.program import Program, cut_points, operator_of, sizes_of

_MOST_NAMES = 3


def fused_weight_notes(mod: tvm.IRModule, entries: Iterable[Reshard]) -> list[str]:
    """Suggests changes where a split exchanges parts of the product of a fused weight.

    Args:
        mod: A module that is only annotated.
        entries: Its redistributions.
    """
    found: dict[str, dict[tuple[int, ...], None]] = {}
    weights: set[str] = set()
    is_called = False
    for entry in entries:
        if entry.kind not in (OPERATOR, RESHARD) or entry.operators != ("relax.split",):
            continue
        program = Program(mod[entry.function])
        weights.update(str(param.name) for param in program.weights)
        for var, call in program.made.items():
            moved = (var, call.args[0]) if operator_of(call) == "split" else (var,)
            if any(
                str(each.name) in entry.tensors for each in moved if isinstance(each, relax.Var)
            ):
                for weight, sizes in _fused(program, var):
                    found.setdefault(weight, {})[sizes] = None
                    is_called = is_called or not _is_public(program.function)
    if not found:
        return []
    first = ", ".join(f"`{name}`" for name in list(found)[:_MOST_NAMES])
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    blocks = " or ".join(dict.fromkeys(str(list(each)) for all_ in found.values() for each in all_))
    advice = "annotate cuts a weight into its blocks where nothing needs the whole of it"
    if is_called:
        advice = "annotate cuts weights before OutlineRepeats has made functions of layers"
    elif not weights.issuperset(found):
        advice = (
            "annotate cuts weights into their blocks: its inputs= says which parameters are none"
        )
    return [
        f"{first}{more} {'have' if len(found) > 1 else 'has'} blocks of {blocks}, which shards do "
        f"not follow, so devices are sent what they lack for the split behind the product; {advice}"
    ]


def _is_public(function: relax.Function) -> bool:
    return function.attrs is not None and "global_symbol" in function.attrs


def _fused(program: Program, split: relax.Var) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights whose columns a split cuts, and the sizes of the parts."""
    call = program.made[split]
    if not isinstance(call, relax.Call):
        return
    value = call.args[0]
    shape = sizes_of(value) or ()
    for dim, size in enumerate(shape):
        ranges = cut_points(call, dim, size) if size > 0 else None
        if ranges is None:
            continue
        sizes = tuple(end - begin for begin, end in ranges)
        for param, rank in _columns(program, value, dim):
            if rank > 1:
                yield str(param.name), sizes


def _columns(program: Program, value: relax.Expr, dim: int) -> Iterator[tuple[relax.Var, int]]:
    """The parameters that have a dimension of a value, and their ranks."""
    pending, seen = [(value, dim)], set()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        var, dim = at
        made = program.made.get(var)
        if made is None and isinstance(var, relax.Var):
            yield var, len(sizes_of(var) or ())
        elif isinstance(made, relax.Var):
            pending.append((made, dim))
        elif isinstance(made, relax.Call) and (rule := program.rule(var)) is not None:
            if len(rule.results) != 1:
                continue
            factors = rule.results[0][dim]
            for operand, dims in zip(program.operands(made), rule.operands, strict=True):
                pending += [
                    (operand, d) for d, each in enumerate(dims) if factors and each == factors
                ]
