"""Makes tables of the summary of a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rich.table import Table

from distir_ext.explain.summary import INPUT, WEIGHT, Summary, SummaryRow
from distir_ext.mesh.device_text import device_text
from distir_ext.signature.sharding import Sharding
from distir_ext.text.tables import amount, new_table


def summary_tables(summary: Summary) -> list[Table]:
    """The values of each function with their shardings."""
    folded = summary.folded()
    return [
        _table(summary, function, [row for row in folded if row.function == function])
        for function in dict.fromkeys(row.function for row in folded)
    ]


def _table(summary: Summary, function: str, rows: Iterable[SummaryRow]) -> Table:
    heads = ("value", "kind", "type", "sharding", "shard", "count", "on a device")
    table = new_table(f"{function} ({summary.phase or 'not sharded'})", *heads, texts=5)
    table.columns[0].overflow = "fold"
    parameters: Counter[tuple[int, ...]] = Counter()  # bytes on each device, by devices
    for row in rows:
        size = row.bytes_per_device
        if row.kind in (INPUT, WEIGHT) and row.sharding is not None:
            parameters[row.sharding.mesh.device_ids] += row.count * (size or 0)
        shard = "-" if row.sharding is None else _shape(row.sharding)
        table.add_row(
            row.name,
            row.kind,
            row.type,
            "-" if row.sharding is None else _where(summary, row.sharding, row.stated),
            shard,
            str(row.count),
            "-" if size is None else amount(row.count * size, "B"),
        )
    if parameters.total():
        table.caption = f"parameters on a device: {_of_a_device(parameters)}"
    return table


def _where(summary: Summary, sharding: Sharding, stated: str | None) -> str:
    text = stated or str(sharding.dims)
    several = len({frozenset(mesh.device_ids) for mesh in summary.meshes}) > 1
    devices = sorted(sharding.mesh.device_ids)
    if not several:
        return text
    return f"{text} on {'device' if len(devices) == 1 else 'devices'} {device_text(devices)}"


def _of_a_device(parameters: Mapping[tuple[int, ...], int]) -> str:
    """Formats the bytes of parameters on a device, or on the one that holds most."""
    held: Counter[int] = Counter()
    for devices, size in parameters.items():
        held.update(dict.fromkeys(devices, size))
    most = "at most " if len(set(held.values())) > 1 else ""
    return most + amount(max(held.values()), "B")


def _shape(sharding: Sharding) -> str:
    return " x ".join(map(str, sharding.shard_shape)) or "1"
