"""Tables with units, in terminals and as HTML."""

from __future__ import annotations

import io
from collections.abc import Iterable
from html import escape

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

_WIDTH = 120
_CAPTION = "text-align: left; white-space: nowrap"


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


def print_tables(tables: Iterable[Table], console: Console) -> None:
    """Prints tables one below the other, each under its title and above its notes."""
    for table in tables:
        title, notes = table.title, table.caption
        table.title = table.caption = None  # they would be as narrow as the table
        console.print(title, highlight=False, markup=False)
        console.print(table, markup=False)
        if notes:
            console.print(notes, highlight=False, markup=False)
            console.print()
        table.title, table.caption = title, notes


def as_text(tables: Iterable[Table]) -> str:
    """Tables as plain text."""
    file = io.StringIO()
    # In a notebook a console of rich shows what is printed instead of writing it to its file.
    console = Console(file=file, width=_WIDTH, color_system=None, force_jupyter=False)
    print_tables(tables, console)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def as_html(tables: Iterable[Table]) -> str:
    """Tables as HTML that follows the colours of the page."""
    return "".join(_html(table) for table in tables)


def _html(table: Table) -> str:
    columns = [list(column.cells) for column in table.columns]
    sides = [str(column.justify) for column in table.columns]
    heads = [column.header for column in table.columns]
    body = "".join(
        f"<tr>{_html_cells('td', row, sides)}</tr>" for row in zip(*columns, strict=True)
    )
    notes = f"<p>{escape(str(table.caption))}</p>" if table.caption else ""
    return (
        f'<table><caption style="{_CAPTION}">{escape(str(table.title))}</caption>'
        f"<thead><tr>{_html_cells('th', heads, sides)}</tr></thead><tbody>{body}</tbody></table>"
        f"{notes}"
    )


def _html_cells(tag: str, cells: Iterable[object], sides: Iterable[str]) -> str:
    written = []
    for cell, side in zip(cells, sides, strict=True):
        text = escape(str(cell))
        lines = "; white-space: pre-wrap" if "\n" in text else ""
        written.append(f'<{tag} style="text-align: {side}{lines}">{text}</{tag}>')
    return "".join(written)


def new_table(title: str, *columns: str, texts: int = 1) -> Table:
    """A table without rows.

    Args:
        title: What it is of.
        *columns: Their names.
        texts: So many of them, from the left, are text; the others are numbers.
    """
    table = Table(
        *columns,
        title=title,
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in table.columns:
        column.overflow = "fold"  # nothing is cut off in a narrow terminal
    for column in table.columns[texts:]:
        column.justify = "right"
    return table
