"""Makes a table of predicted times beside measured ones."""

from __future__ import annotations

from typing import Any

from distir_ext.analysis.measured.comparison import Comparison
from distir_ext.text.printable import TextLines
from distir_ext.text.tables import amount, new_table

# Rows that a table shows.
_MOST = 20


def comparison_table(comparison: Comparison) -> Any:
    """The table that ``print`` shows."""
    rows = comparison.compared
    title = "predicted and measured, largest difference first"
    if len(rows) > _MOST:
        title += f" (first {_MOST} of {len(rows)})"
    columns = ("function", "variable", "what", "predicted", "measured", "ratio")
    table = new_table(title, *columns, texts=3)
    for row in rows[:_MOST]:
        table.add_row(
            row.function,
            row.name,
            row.callee,
            amount(row.predicted, "s"),
            amount(row.measured, "s"),
            f"{row.ratio:.2f}",
        )
    notes = [
        f"all: predicted {amount(comparison.predicted, 's')}, measured "
        f"{amount(comparison.measured, 's')}; rank correlation {comparison.spearman:.2f}, mean "
        f"error {comparison.mean_error:.0%} of the measured time"
    ]
    for what, names in (
        ("predicted but not measured", comparison.only_predicted),
        ("measured but not predicted", comparison.only_measured),
    ):
        if names:
            notes.append(f"{what}: {', '.join(names[:5])}{', ..' if len(names) > 5 else ''}")
    table.caption = TextLines(notes)
    return table
