"""Finds weights of experts that are gathered or summed because tokens are not dispatched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import tvm
from tvm import relax

from distir_ext.reshards.reshards_result import REDUCTION, RESHARD, Reshard
from distir_ext.structure.program import Program, operator_of, sizes_of
from distir_ext.text.tables import amount

_MOST_NAMES = 3
# A matrix for each expert.
_RANK = 3
_LOOKUPS = ("take", "gather_nd", "gather_elements")


def expert_weight_notes(
    mod: tvm.IRModule, entries: Iterable[Reshard], reasons: Sequence[str]
) -> list[str]:
    """Reports traffic of stacked expert weights that a dispatch of rows to experts would avoid.

    Args:
        mod: A module that is only annotated.
        entries: Its redistributions.
        reasons: Why routed computation that was recognised was left as it is.
    """
    found: dict[str, float] = {}
    operators: dict[str, None] = {}
    for entry in entries:
        if entry.kind != REDUCTION and not _gathers_first(entry):
            continue
        program = Program(mod[entry.function])
        read = dict(_experts(program, entry))
        for name, operator in read.items():
            found[name] = found.get(name, 0) + entry.total_bytes / len(read)
            operators[operator] = None
    if not found:
        return []
    first = ", ".join(f"`{name}`" for name in list(found)[:_MOST_NAMES])
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    why = ", ".join(reasons) or "the form is not one of those that are recognised"
    verb = "are" if len(found) > 1 else "is"
    return [
        f"{first}{more} {verb} sent for R.{', R.'.join(operators)}, "
        f"{amount(sum(found.values()), 'B')} per device: if these are matrices of experts, tokens "
        f"are not dispatched to them ({why}); docs/optimizations.md#experts lists the forms that "
        "are recognised"
    ]


def _gathers_first(entry: Reshard) -> bool:
    """Returns whether a redistribution gathers the first dimension on each device."""
    unsharded = "(None"
    return (
        entry.kind == RESHARD
        and not entry.source.startswith(unsharded)
        and entry.target.startswith(unsharded)
    )


def _experts(program: Program, entry: Reshard) -> Iterator[tuple[str, str]]:
    """The parameters that an entry sends, or looks up in, with the operator."""
    names = set(entry.tensors)
    values = [*program.function.params, *program.made]
    for var in (each for each in values if str(each.name) in names):
        if entry.kind == REDUCTION:
            made = program.made.get(var)
            table = _table(program, made) if isinstance(made, relax.Call) else None
            if table is not None:
                yield str(table.name), operator_of(made)
            continue
        param = _param(program, var)
        if param is None or len(sizes_of(var) or ()) < _RANK:
            continue
        for read, user in _uses(program, var):
            call = program.made[user]
            if isinstance(call, relax.Call) and (
                param.same_as(_table(program, call)) or _is_batched(program, user, read)
            ):
                yield str(param.name), operator_of(call)
                break


def _uses(program: Program, var: relax.Var) -> Iterator[tuple[relax.Var, relax.Var]]:
    """A variable, annotated or not, with each that is made of it."""
    for user in program.users.get(var, ()):
        if operator_of(program.made[user]) == "dist.annotate_sharding":
            yield from _uses(program, user)
        else:
            yield var, user


def _table(program: Program, call: relax.Call) -> relax.Var | None:
    """The parameter in which a call looks matrices up."""
    if operator_of(call) not in _LOOKUPS:
        return None
    table = call.args[0]
    is_table = isinstance(table, relax.Var) and len(sizes_of(table) or ()) >= _RANK
    return _param(program, table) if is_table else None


def _param(program: Program, var: relax.Var) -> relax.Var | None:
    """The parameter that a value is, maybe in another form."""
    while (made := program.made.get(var)) is not None:
        reads = program.reads(made)
        if len(reads) != 1 or operator_of(made) in _LOOKUPS:
            return None
        (var,) = reads
    return var if var not in program.inputs or len(program.weights) == 0 else None


def _is_batched(program: Program, user: relax.Var, weight: relax.Var) -> bool:
    """Returns whether a call is a batched matmul whose operands share the first dimension."""
    call, rule = program.made[user], program.rule(user)
    if rule is None or not rule.is_product:
        return False
    operands = program.operands(call)
    places = [i for i, each in enumerate(operands) if each.same_as(weight)]
    if len(operands) != 2 or len(places) != 1:
        return False
    mine, others = rule.operands[places[0]], rule.operands[1 - places[0]]
    return bool(mine[0]) and any(each == mine[0] for each in others)
