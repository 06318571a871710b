"""Makes tables of a searched plan: its cost, its weights with reasons, plans of other meshes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.table import Table

from distir_ext.text.tables import amount, new_table

if TYPE_CHECKING:
    from distir_ext.autosharding.auto_plan import AutoPlan
    from distir_ext.autosharding.reasons import WeightChoice
    from distir_ext.mesh.mesh import Mesh

_MOST_OTHERS = 5


def autoshard_tables(plan: AutoPlan) -> list[Table]:
    """Returns the tables that a plan prints."""
    device = plan.cluster.device
    name = device.name if device else "devices"
    head = new_table(f"plan on {_mesh(plan)} of {name}", "", "value", texts=1)
    head.add_row("time of a call", amount(plan.seconds, "s"))
    if plan.microbatches > 1:
        head.add_row("microbatches", str(plan.microbatches))
    of = "of which collectives" if plan.microbatches == 1 else "collectives of a microbatch"
    head.add_row(of, amount(_collectives(plan), "s"))
    head.add_row("as searched", amount(plan.searched_seconds, "s"))
    head.add_row("no plan takes less than", amount(plan.bound, "s"))
    head.add_row("gap", f"{plan.gap:.2%}")
    head.add_row("memory of a device", amount(plan.memory, "B"))
    head.add_row("limit", amount(plan.memory_limit, "B"))
    head.add_row("no plan needs less than", amount(plan.least_memory, "B"))
    weights = new_table("parameters", "name", "number", "dims", "why", texts=4)
    for row, number in _folded(plan.weights):
        weights.add_row(row.name, str(number), str(row.dims), row.reason)
    tables = [head, weights]
    if plan.stages:
        stages = new_table(
            "stages", "stage", "mesh", "devices", "begins with", "of a microbatch", texts=4
        )
        for number, stage in enumerate(plan.stages):
            ids = stage.mesh.device_ids
            stages.add_row(
                str(number),
                _axes(stage.mesh),
                f"{ids[0]} to {ids[-1]}" if len(ids) > 1 else str(ids[0]),
                stage.begins or "the first operator",
                amount(stage.seconds, "s"),
            )
        tables.insert(1, stages)
    if plan.others:
        others = new_table(
            "runners-up", "mesh", "stages", "microbatches", "time", "gap", "memory", texts=1
        )
        for other in plan.others[:_MOST_OTHERS]:
            others.add_row(
                _mesh(other),
                str(max(1, len(other.stages))),
                str(other.microbatches),
                amount(other.seconds, "s"),
                f"{other.gap:.2%}",
                amount(other.memory, "B"),
            )
        tables.append(others)
    return tables


def _folded(weights: Iterable[WeightChoice]) -> list[tuple[WeightChoice, int]]:
    """Weights of layers as one row: those that differ in numbers of their names alone."""
    groups: dict[WeightChoice, list[WeightChoice]] = {}
    for each in weights:
        # Values in reasons are named in backquotes.
        reason = re.sub(r"`[^`]*`", lambda name: re.sub(r"\d+", "*", name[0]), each.reason)
        pattern = replace(each, name=re.sub(r"\d+", "*", each.name), reason=reason)
        groups.setdefault(pattern, []).append(each)
    return [
        (found[0] if len(found) == 1 else pattern, len(found)) for pattern, found in groups.items()
    ]


def _collectives(plan: AutoPlan) -> float:
    return max((each.collective_seconds for each in plan.estimate.programs), default=0.0)


def _mesh(plan: AutoPlan) -> str:
    return _axes(plan.mesh)


def _axes(mesh: Mesh) -> str:
    return " x ".join(
        f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True)
    )
