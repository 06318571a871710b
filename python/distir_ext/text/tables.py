"""Makes tables with units, for terminals and as HTML."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distir_ext.text.html_text import html_text
from distir_ext.text.printable import TextLines, shown

_WIDTH = 120

# Characters of a cell; rich takes long to fold words of a million letters.
_LONGEST = 2000
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
        console.print(_text(title), highlight=False, markup=False, emoji=False)
        console.print(table, markup=False)
        if notes:
            console.print(_text(notes), highlight=False, markup=False, emoji=False)
            console.print()
        table.title, table.caption = title, notes


def as_text(tables: Iterable[Table]) -> str:
    """Tables as plain text."""
    file = io.StringIO()
    # In a notebook a console of rich shows what is printed instead of writing it to its file.
    console = Console(file=file, width=_WIDTH, color_system=None, force_jupyter=False, emoji=False)
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
    notes = f"<p>{html_text(_text(table.caption))}</p>" if table.caption else ""
    return (
        f'<table><caption style="{_CAPTION}">{html_text(_text(table.title))}</caption>'
        f"<thead><tr>{_html_cells('th', heads, sides)}</tr></thead><tbody>{body}</tbody></table>"
        f"{notes}"
    )


def _html_cells(tag: str, cells: Iterable[object], sides: Iterable[str]) -> str:
    written = []
    for cell, side in zip(cells, sides, strict=True):
        text = html_text(_text(cell))
        lines = "; white-space: pre-wrap" if "\n" in text else ""
        written.append(f'<{tag} style="text-align: {side}{lines}">{text}</{tag}>')
    return "".join(written)


class _Table(Table):
    """A table whose cells are text as it is: no markup, no emoji, nothing that a terminal obeys."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        super().add_row(*(Text(_text(cell)) for cell in cells), **options)


def _text(text: Any) -> TextLines:
    """Returns a cell's text, shortened and made printable unless it is a :class:`TextLines`."""
    return text if isinstance(text, TextLines) else TextLines([shown(str(text), _LONGEST)])


def new_table(title: str, *columns: str, texts: int = 1) -> Table:
    """A table without rows.

    A cell has one line, unless it is a :class:`TextLines`; names of others are escaped in it.

    Args:
        title: Title of the table.
        *columns: Their names.
        texts: So many of them, from the left, are text; the others are numbers.
    """
    table = _Table(
        *map(_text, columns),
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
