"""Makes tables of a sweep: the best configurations first, and why others cannot be partitioned."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.table import Table

from distir_ext.text.tables import amount, new_table

if TYPE_CHECKING:
    from distir_ext.analysis.sweeps.sweep_result import Sweep, SweepRow

# Rows that a table shows.
_MOST = 20


def sweep_tables(sweep: Sweep, rows: int = _MOST) -> list[Table]:
    """Returns the tables that a sweep prints.

    Args:
        sweep: The configurations.
        rows: Number of configurations that are shown, the best first.
    """
    tables = [_configurations(sweep, rows)]
    if any(row.error is not None for row in sweep.configurations):
        tables.append(_errors(sweep))
    return tables


def _configurations(sweep: Sweep, rows: int) -> Table:
    shown = [row for row in sweep.ranked if row.error is None]
    fitting = sum(row.fits for row in shown)
    device = sweep.cluster.device
    title = (
        f"{len(sweep)} configurations on {device.name if device else 'unknown devices'}, "
        f"{fitting} fit into {amount(sweep.memory_limit, 'B')} per device"
    )
    if len(shown) > rows:
        title += f" (first {rows})"
    has_batch = any(row.throughput is not None for row in shown)
    columns = ["mesh", "plan", "microbatches", "seconds"]
    columns += ["per second"] if has_batch else []
    columns += ["peak memory", "fits", "sent", "bubble", "exposed"]
    table = new_table(title, *columns, texts=2)
    for row in shown[:rows]:
        cells = [_mesh(row), row.plan, str(row.microbatches), amount(row.seconds or 0.0, "s")]
        cells += [f"{row.throughput or 0.0:.3g}"] if has_batch else []
        cells += [
            amount(row.peak_memory or 0.0, "B"),
            "yes" if row.fits else "no",
            amount(row.bytes_sent or 0.0, "B"),
            f"{max(row.bubble or 0.0, 0.0):.1%}",
            amount(row.exposed_communication or 0.0, "s"),
        ]
        table.add_row(*cells)
    return table


def _errors(sweep: Sweep) -> Table:
    """Errors by what they say, whatever the numbers in it."""
    found: dict[str, list[SweepRow]] = {}
    for row in sweep.configurations:
        if row.error is not None:
            found.setdefault(re.sub(r"\d+", "0", row.error), []).append(row)
    total = sum(map(len, found.values()))
    table = new_table(
        f"{total} cannot be partitioned, by reason", "the first of them", "reason", "count", texts=2
    )
    for rows in sorted(found.values(), key=len, reverse=True):
        table.add_row(str(rows[0]), str(rows[0].error), str(len(rows)))
    return table


def _mesh(row: SweepRow) -> str:
    sizes = zip(row.mesh.axis_names, row.mesh.shape, strict=True)
    text = ", ".join(f"{name}={size}" for name, size in sizes)
    return f"{text} ({', '.join(row.unused_axes)} unused)" if row.unused_axes else text
