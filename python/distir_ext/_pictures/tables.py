"""Tables, in terminals and as HTML, and numbers with units."""

from __future__ import annotations

import io
from collections.abc import Iterable
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_WIDTH = 120
_CAPTION = "text-align:left;white-space:nowrap"


def new_table(title: str, *columns: str, texts: int = 1) -> Table:
    """An empty table.

    Args:
        title: What is above it.
        *columns: Their heads.
        texts: How many of the columns have texts; the others have numbers, aligned at the right.
    """
    table = Table(*columns, title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in table.columns[texts:]:
        column.justify = "right"
    return table


def as_text(tables: Iterable[Table]) -> str:
    """Tables as plain text."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    for table in tables:
        title, notes = table.title, table.caption
        table.title = table.caption = None  # they would be as narrow as the table
        console.print(title, highlight=False)
        console.print(table)
        if notes:
            console.print(notes, highlight=False)
            console.print()
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def as_html(tables: Iterable[Table]) -> str:
    """Tables as HTML that follows the colours of the page."""
    return "".join(_html(table) for table in tables)


def _html(table: Table) -> str:
    aligned = [f'style="text-align:{column.justify}"' for column in table.columns]
    head = "".join(
        f"<th {align}>{escape(str(column.header))}</th>"
        for column, align in zip(table.columns, aligned, strict=True)
    )
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td {align}>{escape(str(cell))}</td>"
            for cell, align in zip(row, aligned, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    notes = f"<p>{escape(str(table.caption))}</p>" if table.caption else ""
    caption = f'<caption style="{_CAPTION}">{escape(str(table.title))}</caption>'
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def amount(value: float, unit: str) -> str:
    """A number with a decimal prefix.

    Example:
        >>> amount(2_113_929_216, "B")
        '2.11 GB'
        >>> amount(0.0000052, "s")
        '5.2 us'
    """
    if value == 0:
        return f"0 {unit}"
    steps = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    small = ((1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
    for scale, prefix in (*steps, *small):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"
