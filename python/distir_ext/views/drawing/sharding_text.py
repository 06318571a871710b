"""Draws a sharding with characters, in colours where there are some.

↓ dim 0: 5 over dp (2)   → dim 1: 8 over tp (2)
0:4     4:8
┌───────┬───────┐
0:3 │   0   │   1   │
├───────┼───────┤
3:5 +1 │   2   │   3   │
└───────┴───────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from distir_ext.text.palette import text_on
from distir_ext.views.drawing.sharding_layout import Cell, Grid, Layout, Part, Side

PADDING = "░"
_TALL = 3
_MOST_TALL = 4  # grids with more rows have cells of one line
_GAP = 3
_BETWEEN_GRIDS = 3
_FAINT = "dim"


def draw(layout: Layout, width: int) -> Iterator[Text]:
    """The lines of a picture; grids that do not fit beside each other stand below."""
    yield Text(layout.title, style="bold")
    sides = [(layout.rows, "↓"), (layout.columns, "→")]
    titles = "   ".join(f"{arrow} {side.title}" for side, arrow in sides if side)
    if titles:
        yield Text(titles)
    for row in _rows_of_grids(layout, width):
        yield Text()
        yield from row
    yield Text()
    if layout.axes:
        longest = max(len(name) for name, _ in layout.axes)
        for name, what in layout.axes:
            yield Text(f"{name:<{longest}}  {what}")
    for note in layout.notes:
        yield Text(note, style=_FAINT)
    if layout.has_padding:
        yield Text(f"{PADDING} and +n: padding at the end of shards", style=_FAINT)


def grid_width(layout: Layout) -> int:
    """Returns the width of a grid, in characters."""
    return _gutter(layout.rows) + _columns_width(layout)


def _columns_width(layout: Layout) -> int:
    cell = _cell_width(layout)
    if layout.columns is None:
        return 2 + cell
    return 1 + sum(1 + (_GAP if part is None else cell) for part in layout.columns.parts)


def _cell_width(layout: Layout) -> int:
    cells = [cell for grid in layout.grids if grid for row in grid.cells for cell in row if cell]
    labels = max((len(cell.label) for cell in cells), default=0) + 2
    parts = [part for part in (layout.columns.parts if layout.columns else ()) if part]
    width = max([labels, *(len(part.label) for part in parts)])
    while any(0 < part.padded < 1 and width - _hatched(width, part) < labels for part in parts):
        width += 1
    return width


def _hatched(size: int, part: Part | None) -> int:
    """Returns the hatched part of a cell: partial padding is drawn neither as none nor as all."""
    if part is None or not part.padding:
        return 0
    return size if part.padded >= 1 else min(size - 1, max(1, round(size * part.padded)))


def _gutter(rows: Side | None) -> int:
    labels = [len(part.label) for part in (rows.parts if rows else ()) if part]
    return max(labels, default=0) + 1


def _rows_of_grids(layout: Layout, width: int) -> Iterator[list[Text]]:
    each = grid_width(layout) + _BETWEEN_GRIDS
    drawn = [[Text("…")] if grid is None else list(_grid(layout, grid)) for grid in layout.grids]
    beside = max(1, (width + _BETWEEN_GRIDS) // each)
    for begin in range(0, len(drawn), beside):
        grids = drawn[begin : begin + beside]
        lines = []
        for index in range(max(map(len, grids))):
            line = Text()
            for grid in grids:
                part = grid[index].copy() if index < len(grid) else Text()
                part.pad_right(each - part.cell_len)
                line.append_text(part)
            line.rstrip()
            lines.append(line)
        yield lines


def _grid(layout: Layout, grid: Grid) -> Iterator[Text]:
    gutter, width = _gutter(layout.rows), _cell_width(layout)
    rows = layout.rows.parts if layout.rows else (None,)
    columns = layout.columns.parts if layout.columns else (None,)
    gaps = [layout.columns is not None and part is None for part in columns]
    widths = [_GAP if gap else width for gap in gaps]
    height = _TALL if len(rows) <= _MOST_TALL else 1
    if grid.title:
        yield Text(" " * gutter + grid.title)
    if layout.columns:
        labels = (part.label if part else "…" for part in columns)
        heads = " ".join(f"{label:^{each}}" for label, each in zip(labels, widths, strict=True))
        yield Text(" " * (gutter + 1) + heads)
    yield _border("┌┬┐", widths, gutter)
    for number, (row, cells) in enumerate(zip(rows, grid.cells, strict=True)):
        if number:
            yield _border("├┼┤", widths, gutter)
        if layout.rows is not None and row is None:
            yield Text(" " * gutter + " ".join(f"{'⋮':^{each}}" for each in [0, *widths]))
            continue
        hatched = _hatched(height, row)
        written = (height - hatched) // 2 if hatched < height else height // 2
        for line in range(height):
            label = row.label if row and line == (height // 2) else ""
            text = Text(f"{label:>{gutter - 1}} ")
            text.append("│", style=_FAINT)
            for cell, column, each in zip(cells, columns, widths, strict=True):
                if cell is None:
                    text.append(f"{'…':^{each}}")
                else:
                    is_padding = line >= height - hatched
                    said = cell.label if line == written else ""
                    text.append_text(_cell_line(cell, column, each, said, is_padding))
                text.append("│", style=_FAINT)
            yield text
    yield _border("└┴┘", widths, gutter)


def _cell_line(cell: Cell, column: Part | None, width: int, said: str, is_padding: bool) -> Text:
    style = f"{text_on(cell.color)} on {cell.color}" if cell.marked else ""
    hatched = width if is_padding or cell.empty else _hatched(width, column)
    text = Text()
    if hatched == width:
        fill = f" {said} " if said else ""
        text.append(f"{fill:{PADDING}^{width}}")
    else:
        text.append(f"{said:^{width - hatched}}", style=style)
        text.append(PADDING * hatched)
    return text


def _border(corners: str, widths: Sequence[int], gutter: int) -> Text:
    lines = corners[1].join("─" * width for width in widths)
    text = Text(" " * gutter)
    text.append(f"{corners[0]}{lines}{corners[2]}", style=_FAINT)
    return text
