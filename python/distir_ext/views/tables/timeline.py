"""Makes tables of timelines: devices, stages, the critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from distir_ext.mesh.device_text import device_text
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

if TYPE_CHECKING:
    from distir_ext.analysis.timelines.timeline import DeviceTime, Timeline

# Rows of operators that a table shows.
_MOST = 10


def timeline_tables(timeline: Timeline) -> list[Table]:
    """Returns the tables that a timeline prints."""
    tables = [_devices(timeline)]
    if len(timeline.stages) > 1:
        tables.append(_stages(timeline))
    if timeline.critical_path:
        tables.append(_operators(timeline))
    return tables


def _devices(timeline: Timeline) -> Table:
    device = timeline.cluster.device
    runs = f"{timeline.function}: {amount(timeline.seconds, 's')}"
    if timeline.microbatches > 1:
        runs += f" for {timeline.microbatches} microbatches ({timeline.schedule})"
    table = new_table(
        f"{runs}, on {device.name if device else 'unknown devices'}",
        *("devices", "computing", "communicating", "exposed", "idle", "utilization", "bubble"),
    )
    found: dict[tuple[str, ...], list[int]] = {}
    for each, time in timeline.by_device().items():
        found.setdefault(_cells(time), []).append(each)
    for cells, devices in found.items():
        table.add_row(device_text(devices), *cells)
    table.caption = TextLines(timeline.notes) or None
    return table


def _stages(timeline: Timeline) -> Table:
    table = new_table(
        f"{timeline.function}: stages",
        *("stage", "program", "computing", "communicating", "exposed", "idle"),
        *("utilization", "bubble"),
        texts=2,
    )
    for stage, time in timeline.by_stage().items():
        table.add_row(str(stage), timeline.stages[stage], *_cells(time))
    return table


def _operators(timeline: Timeline) -> Table:
    rows = timeline.critical_operators
    title = f"{timeline.function}: critical path by operator"
    if len(rows) > _MOST:
        title += f" (first {_MOST} of {len(rows)})"
    table = new_table(
        title, *("operator", "kind", "count", "seconds", "share", "saved if free"), texts=2
    )
    table.columns[0].overflow = "fold"
    for row in rows[:_MOST]:
        table.add_row(
            row.operator,
            row.kind,
            str(row.count),
            amount(row.seconds, "s"),
            f"{row.share:.1%}",
            amount(row.saved, "s"),
        )
    return table


def _cells(time: DeviceTime) -> tuple[str, ...]:
    seconds = (time.computing, time.communicating, time.exposed, time.idle)
    return (
        *(amount(each, "s") for each in seconds),
        f"{time.utilization:.1%}",
        f"{time.bubble:.1%}",
    )
