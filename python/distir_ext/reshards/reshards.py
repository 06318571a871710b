"""Lists communication that no annotation asks for, and annotations that avoid it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tvm

from distir_ext.communication.collectives import SYMBOLIC_SIZE
from distir_ext.mesh.cluster import Cluster
from distir_ext.native.modules import check_module
from distir_ext.native.steps import phase
from distir_ext.passes.optimizations import optimizations
from distir_ext.pipelines.lowering import run_apart
from distir_ext.reshards.expert_weights import expert_weight_notes
from distir_ext.reshards.fused_weights import fused_weight_notes
from distir_ext.reshards.moved_tensors import (
    Advice,
    Move,
    MovedTensors,
    Names,
    alike,
    grouped,
)
from distir_ext.reshards.reshards_result import RESHARD, STATED, Reshard, Reshards
from distir_ext.reshards.suggestions import Suggestions, without_numbers
from distir_ext.structure.sizes import with_sizes
from distir_ext.text.errors.tracebacks import short_tracebacks

_DEFAULT_SUGGESTIONS = 5
# The optimisation that dispatches tokens to experts.
_EXPERTS = "dispatch_experts"


@short_tracebacks
def reshards(
    mod: tvm.IRModule,
    cluster: Cluster | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    suggestions: int = _DEFAULT_SUGGESTIONS,
) -> Reshards:
    """Lists the redistributions of a module, with causes and annotations that avoid them.

    A redistribution is *implicit* if nobody asked for it: two sides want a tensor differently, and
    the cheaper way of computing the call moves it. A copy of the module is lowered, and every
    collective of it is listed: implicit redistributions, reductions of partial results,
    redistributions that annotations of intermediate values or ``R.dist.redistribute`` ask for, what
    operators send by themselves, and transfers between meshes. Small collectives that
    OptimizeCollectives would combine are listed apart, each with the time that it would take alone.

    Args:
        mod: A module in any phase before LowerCCL.
        cluster: The devices and links; the module's own, or NVLink, if left out. A module
            that is lowered keeps its collectives.
        sizes: Values for symbolic sizes, by name; the others count as 1024.
        suggestions: For how many implicit redistributions, the most expensive first, annotations
            are tried. Each trial lowers a copy of the module. Only annotated modules have
            suggestions, since later ones have no annotations to change.

    Returns:
        What is sent, the most expensive first.

    Raises:
        ValueError: Nothing in the module is distributed, or it cannot be lowered; there is no such
            symbolic size; ``suggestions`` is negative.
        TypeError: It is no module, or no cluster.
    """
    check_module(mod)
    if cluster is not None and not isinstance(cluster, Cluster):
        raise TypeError(f"a cluster is a distir_ext.Cluster, not a {type(cluster).__name__}")
    if not isinstance(suggestions, int) or suggestions < 0:
        raise ValueError(f"suggestions= is a number of redistributions, not {suggestions!r}")
    reached = phase(mod)
    if reached == "runtime":
        raise ValueError(
            "the module has runtime calls instead of collectives; pass what "
            "distir_ext.transform.LowerDistIR gave, or an earlier one"
        )
    mod, assumed = with_sizes(mod, sizes or {}, default=SYMBOLIC_SIZE)
    lowered, optimized = run_apart(mod, cluster)
    names = Names(mod)
    moved = MovedTensors(lowered, optimized, names)
    groups = _groups(moved)
    entries = [row for row, _ in groups]
    notes = []
    if assumed:
        notes.append(f"symbolic sizes that count as {SYMBOLIC_SIZE}: {', '.join(assumed)}")
    wanted = [i for i, row in enumerate(entries) if row.kind == RESHARD]
    if wanted and reached == "annotated":
        trials = Suggestions(mod, cluster, lowered, moved, names)
        for i in wanted[:suggestions]:
            entries[i] = replace(entries[i], suggestion=trials.best(entries[i], groups[i][1]))
        for i in wanted[:suggestions]:
            if entries[i].suggestion is None:  # what helps elsewhere may help here
                entries[i] = replace(entries[i], suggestion=trials.best_of_tried(entries[i]))
        if len(wanted) > suggestions:
            notes.append(
                f"annotations were tried for the {suggestions} most expensive of {len(wanted)} "
                "implicit redistributions; suggestions= says for how many"
            )
    elif wanted and suggestions:
        notes.append("annotations are tried on modules that are only annotated")
    if reached == "annotated":
        notes += fused_weight_notes(mod, entries)
        skipped = {each.name: each.skipped for each in optimizations(optimized)}
        notes += expert_weight_notes(mod, entries, list(skipped.get(_EXPERTS, ())))
    return Reshards(tuple(entries), tuple(notes))


def _groups(moved: MovedTensors) -> list[tuple[Reshard, list[Advice]]]:
    """Equal moves with equal causes as one, with what may be stated to avoid them."""
    causes: dict[tuple[str, int], tuple[Reshard, tuple[Advice, ...]]] = {}

    def cause(move: Move) -> tuple[Reshard, tuple[Advice, ...]]:
        key = (move.lowered_function, move.index)
        if key not in causes:
            is_explained = move.row.kind in (RESHARD, STATED)
            causes[key] = moved.cause(move) if is_explained else (move.row, ())
        return causes[key]

    def reason(move: Move) -> Any:
        advice = cause(move)[1]
        return alike(move), tuple(
            (each.function, without_numbers(each.variable), each.dims) for each in advice
        )

    found = []
    for row, moves in grouped(moved.moves, reason):
        explained, _ = cause(moves[0])
        full = replace(
            row,
            source_cause=explained.source_cause,
            target_cause=explained.target_cause,
            conflict=explained.conflict,
            uneven=moved.uneven(row) if row.kind == RESHARD else (),
        )
        found.append((full, [each for move in moves for each in cause(move)[1]]))
    return found
