"""Makes tables of estimates, shardings and collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from distir_ext.analysis.costs import Cost, Estimate, ProgramEstimate
from distir_ext.analysis.redistribution import Redistribution
from distir_ext.analysis.shardings import TensorSharding
from distir_ext.communication.collectives import Collective
from distir_ext.explain.variables import VariableSharding
from distir_ext.text.folding import folded
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

# Rows of kernels and tensors that a table shows.
_MOST = 10


def estimate_tables(estimate: Estimate) -> list[Table]:
    """Returns an estimate's totals, then layers, kernels and collectives of each program."""
    tables = [_summary(estimate)]
    for program in estimate.programs:
        layers = program.by_layer()
        if len(layers) > 1:
            tables.append(_layers(program, layers))
        tables.append(_kernels(program))
        if program.collectives:
            tables.append(_collectives(program))
        if program.memory.alive:
            tables.append(_memory(program))
    return tables


def sharding_table(rows: Iterable[TensorSharding]) -> Table:
    """Returns :func:`distir_ext.analysis.shardings` as a table; equal rows are folded."""
    rows = tuple(rows)
    several = len({row.function for row in rows}) > 1
    meshes = list(dict.fromkeys(row.devices for row in rows))
    title = f"tensors, on {meshes[0]}" if len(meshes) == 1 else "tensors"
    devices = ["devices"] if len(meshes) > 1 else []
    titles = ("tensor", "count", "role", "shape", "type", *devices, "sharding", "local")
    table = new_table(title, *titles, texts=len(titles))
    table.columns[1].justify = "right"
    for row, count in folded(rows):
        table.add_row(
            f"{row.function}: {row.name}" if several else row.name,
            str(count),
            row.role,
            _shape(row.shape),
            row.dtype,
            *([row.devices] if devices else []),
            row.sharding,
            _shape(row.local_shape),
        )
    return table


def collective_table(collectives: Iterable[Collective]) -> Table:
    """Returns :func:`distir_ext.analysis.collectives` as a table; equal ones share a row."""
    titles = ("collective", "axes", "program", "group size", "count", "bytes each", "bytes total")
    table = new_table("collectives, with what a device sends", *titles, texts=3)
    merged: Counter[tuple[str, str, str, int, float, str, bool]] = Counter()
    for each in collectives:
        size = each.bytes_per_device if each.bytes_per_unit is None else each.bytes_per_unit
        row = (
            each.kind,
            ", ".join(each.axes),
            each.function,
            each.group_size,
            size or 0,
            each.unit,
            each.per_iteration,
        )
        merged[row] += each.count
    for (kind, axes, function, group_size, sent, unit, per_iteration), count in merged.items():
        texts = [f"{value:,} {unit}".rstrip() for value in (sent, sent * count)]
        number = f"{count} per iteration" if per_iteration else str(count)
        table.add_row(kind, axes, function, str(group_size), number, *texts)
    return table


def redistribution_table(plan: Redistribution, cluster: str | None = None) -> Table:
    """A table of the steps of a redistribution, with their sum.

    Args:
        plan: The redistribution.
        cluster: Name of the cluster in the table; the name of the devices by default.
    """
    device = cluster or (plan.cluster.device.name if plan.cluster.device else "unknown devices")
    size = f"{_shape(plan.shape)} {plan.dtype}"
    table = new_table(
        f"{plan.source} to {plan.target}: {size}, on {device}",
        *("step", "axes", "leads to", "sent by a device", "seconds"),
        texts=3,
    )
    for step in plan.steps:
        costs = amount(step.bytes_per_device, "B"), amount(step.seconds, "s")
        table.add_row(step.kind, ", ".join(step.axes), step.sharding, *costs)
    if len(plan.steps) > 1:
        total = amount(plan.bytes_per_device, "B"), amount(plan.seconds, "s")
        table.add_row("all", "", "", *total)
    if not plan.steps:
        table.caption = "nothing has to be done"
    return table


def variable_table(function: str, variables: Iterable[VariableSharding]) -> Table:
    """A table of the variables of a function."""
    table = new_table(f"{function}: variables", "variable", "sharding", texts=2)
    for each in variables:
        table.add_row(each.name, each.sharding)
    return table


def _shape(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _summary(estimate: Estimate) -> Table:
    table = new_table(
        f"per device, on {estimate.device.name}",
        *("program", "devices", "flops", "bytes accessed", "kernels", "sent", "collectives"),
        *("weights", "peak memory"),
    )
    for program in estimate.programs:
        cost, memory = program.cost, program.memory
        table.add_row(
            program.name,
            str(len(program.device_ids)),
            amount(cost.flops, "FLOP"),
            amount(cost.bytes_accessed, "B"),
            amount(cost.seconds, "s"),
            amount(program.bytes_sent, "B"),
            amount(program.collective_seconds, "s"),
            amount(memory.weights, "B"),
            amount(memory.peak_memory, "B"),
        )
    notes = list(estimate.notes)
    if not estimate.fits:
        held, there = (
            amount(value, "B") for value in (estimate.peak_memory, estimate.device.memory)
        )
        notes.insert(0, f"needs {held} of memory, but a device has {there}")
    table.caption = TextLines(notes) or None
    return table


def _layers(program: ProgramEstimate, layers: dict[str, Cost]) -> Table:
    sent: dict[str, tuple[float, float]] = {}
    for each in program.collectives:
        size, seconds = sent.get(each.layer, (0.0, 0.0))
        sent[each.layer] = (
            size + each.count * each.bytes_per_device,
            seconds + each.count * each.seconds,
        )
    columns = ("layer", "flops", "bytes accessed", "kernels", "sent", "collectives")
    table = new_table(f"{program.name}: layers", *columns)
    rows = [
        (
            name or "(outside)",
            (
                amount(cost.flops, "FLOP"),
                amount(cost.bytes_accessed, "B"),
                amount(cost.seconds, "s"),
                amount(sent.get(name, (0.0, 0.0))[0], "B"),
                amount(sent.get(name, (0.0, 0.0))[1], "s"),
            ),
        )
        for name, cost in layers.items()
    ]
    for names, cells in _folded(rows):
        table.add_row(names, *cells)
    return table


def _folded(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    """Rows that follow each other and say the same, as one."""
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for name, cells in rows:
        if found and found[-1][2] == cells:
            found[-1] = (found[-1][0], name, cells)
        else:
            found.append((name, name, cells))
    return [
        (first if first == last else f"{first} .. {last}", cells) for first, last, cells in found
    ]


def _kernels(program: ProgramEstimate) -> Table:
    by_kernel: dict[tuple[str, str], list[Any]] = {}
    for each in program.kernels:
        known = by_kernel.setdefault((each.kernel, each.bound), [0, 0.0, 0.0, 0.0, each.shapes])
        known[0] += each.count
        known[1] += each.count * each.cost.flops
        known[2] += each.count * each.cost.bytes_accessed
        known[3] += each.count * each.cost.seconds
    ranked = sorted(by_kernel.items(), key=lambda item: -item[1][3])
    title = f"{program.name}: kernels by time"
    if len(ranked) > _MOST:
        title += f" (first {_MOST} of {len(ranked)})"
    columns = ("kernel", "bound by", "count", "flops", "bytes accessed", "seconds")
    table = new_table(title, *columns, texts=2)
    for (kernel, bound), (count, flops, accessed, seconds, _) in ranked[:_MOST]:
        table.add_row(
            kernel,
            bound,
            str(count),
            amount(flops, "FLOP"),
            amount(accessed, "B"),
            amount(seconds, "s"),
        )
    return table


def _collectives(program: ProgramEstimate) -> Table:
    found: dict[tuple[str, str, str], list[float]] = {}
    for each in program.collectives:
        key = (", ".join(each.axes), each.kind, ", ".join(each.operators))
        known = found.setdefault(key, [0, 0.0, 0.0])
        known[0] += each.count
        known[1] += each.count * each.bytes_per_device
        known[2] += each.count * each.seconds
    columns = ("axes", "collective", "because of", "count", "sent by a device", "seconds")
    table = new_table(f"{program.name}: collectives", *columns, texts=3)
    for (axes, kind, operators), (count, sent, seconds) in found.items():
        table.add_row(axes, kind, operators, str(count), amount(sent, "B"), amount(seconds, "s"))
    return table


def _memory(program: ProgramEstimate) -> Table:
    memory = program.memory
    title = f"{program.name}: memory at the peak"
    if memory.at:
        title += f", in computing {memory.at}"
    table = new_table(title, "what", "bytes")
    for what, size in (
        ("weights", memory.weights),
        ("inputs", memory.inputs),
        ("constants", memory.constants),
    ):
        if size:
            table.add_row(what, amount(size, "B"))
    for name, size in memory.alive[:_MOST]:
        table.add_row(name, amount(size, "B"))
    if len(memory.alive) > _MOST:
        rest = memory.alive[_MOST:]
        table.add_row(f"{len(rest)} others", amount(sum(size for _, size in rest), "B"))
    return table
