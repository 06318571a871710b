"""Draws a sharding as SVG: a file of its own, or a part of a page that has the page's colours."""

from __future__ import annotations

from collections.abc import Iterator

from distir_ext.text.html_text import html_text
from distir_ext.text.palette import text_on
from distir_ext.views.drawing.sharding_layout import Cell, Grid, Layout, Part

# Pixels.
_CELL_WIDTH, _CELL_HEIGHT = 76, 44
_GAP_SIZE = 28
_FONT, _SMALL = 13, 12
_CHARACTER = 7.3  # of a wide sans-serif font in size _FONT
_MARGIN = 14
_LINE = 19
_BETWEEN = 30
_MOST_WIDTH = 900

_FONTS = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif"
_HATCH = "distir-padding"
# Both colours are set for both modes, so the file can be read on any page.
_STYLE = (
    "svg{color:#1b1b1b}.page{fill:#ffffff}"
    "@media (prefers-color-scheme:dark){svg{color:#ececec}.page{fill:#161616}}"
)


def draw(layout: Layout, alone: bool) -> str:
    """The picture.

    Args:
        layout: Layout that it shows.
        alone: Whether it is a file, which has a background and colours for light and dark mode.
            Otherwise it is part of an HTML page, and text and lines have the colour of its text.
    """
    return _Drawing(layout).svg(alone)


class _Drawing:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        rows, columns = layout.rows, layout.columns
        self._rows = rows.parts if rows else (None,)
        self._columns = columns.parts if columns else (None,)
        cells = [c for grid in layout.grids if grid for row in grid.cells for c in row if c]
        labels = [_width(cell.label) + 18 for cell in cells]
        heads = [_width(part.label) + 14 for part in self._columns if part]
        self._cell = max([_CELL_WIDTH, *labels, *heads])
        self._widths = [
            _GAP_SIZE if columns and part is None else self._cell for part in self._columns
        ]
        self._heights = [
            _GAP_SIZE if rows and part is None else _CELL_HEIGHT for part in self._rows
        ]
        gutter = [_width(part.label) + 10 for part in self._rows if part]
        self._gutter = max(gutter, default=0)
        self._head = _LINE if columns else 0
        self._grid_title = _LINE if any(grid and grid.title for grid in layout.grids) else 0

    def svg(self, alone: bool) -> str:
        body: list[str] = []
        width, height = 0.0, float(_MARGIN)
        for line in self._titles():
            height += _LINE
            bold = ' font-weight="600"' if not body else ""
            body.append(_text(line, _MARGIN, height - 5, extra=bold))
            width = max(width, _width(line))
        height += 6
        grid_width = self._gutter + sum(self._widths)
        grid_height = self._grid_title + self._head + sum(self._heights)
        beside = max(1, int((_MOST_WIDTH + _BETWEEN) // (grid_width + _BETWEEN)))
        for begin in range(0, len(self._layout.grids), beside):
            x = float(_MARGIN)
            for grid in self._layout.grids[begin : begin + beside]:
                if grid is None:
                    body.append(_text("…", x + 8, height + grid_height / 2))
                    x += _GAP_SIZE + _BETWEEN
                else:
                    body += self._grid(grid, x, height)
                    x += grid_width + _BETWEEN
                width = max(width, x - _BETWEEN - _MARGIN)
            height += grid_height + 14
        height += 4
        for line in self._legend():
            height += _LINE - 2
            body.append(_text(line, _MARGIN, height - 5, size=_SMALL))
            width = max(width, _width(line) * _SMALL / _FONT)
        if self._layout.has_padding:
            height += _LINE
            body.append(_hatched(_MARGIN, height - 15, 22, 13))
            note = "and +n: padding at the end of shards"
            body.append(_text(note, _MARGIN + 30, height - 5, size=_SMALL))
            width = max(width, _width(note) + 30)
        return self._document(body, width + 2 * _MARGIN, height + _MARGIN, alone)

    def _document(self, body: list[str], width: float, height: float, alone: bool) -> str:
        size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
        style = f"<style>{_STYLE}</style>" if alone else ""
        page = '<rect class="page" width="100%" height="100%" rx="6"/>' if alone else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" fill="currentColor" '
            f'font-family="{_FONTS}" font-size="{_FONT}">'
            f"<title>{html_text(self._layout.title)}</title>{style}{_PATTERN}{page}"
            + "".join(body)
            + "</svg>"
        )

    def _titles(self) -> list[str]:
        sides = [(self._layout.rows, "↓"), (self._layout.columns, "→")]
        titles = "\u2003\u2003".join(f"{arrow} {side.title}" for side, arrow in sides if side)
        return [self._layout.title, *([titles] if titles else [])]

    def _legend(self) -> list[str]:
        axes = [f"{name}: {what}" for name, what in self._layout.axes]
        return [*axes, *self._layout.notes]

    def _grid(self, grid: Grid, x: float, y: float) -> Iterator[str]:
        if grid.title:
            yield _text(grid.title, x + self._gutter, y + _LINE - 6)
        y += self._grid_title
        left = x + self._gutter
        if self._layout.columns:
            at = left
            for part, width in zip(self._columns, self._widths, strict=True):
                yield _text(
                    part.label if part else "…", at + width / 2, y + _LINE - 6, _SMALL, "middle"
                )
                at += width
        y += self._head
        for row, height, cells in zip(self._rows, self._heights, grid.cells, strict=True):
            if self._layout.rows:
                label = row.label if row else "⋮"
                yield _text(label, left - 6, y + height / 2 + 4, _SMALL, "end")
            at = left
            for column, width, cell in zip(self._columns, self._widths, cells, strict=True):
                if cell is not None:
                    yield _cell(cell, row, column, at, y, width, height)
                elif height != _GAP_SIZE:
                    yield _text("…", at + width / 2, y + height / 2 + 4, anchor="middle")
                elif width != _GAP_SIZE:
                    yield _text("⋮", at + width / 2, y + height / 2 + 4, anchor="middle")
                at += width
            y += height


def _cell(
    cell: Cell,
    row: Part | None,
    column: Part | None,
    x: float,
    y: float,
    width: float,
    height: float,
) -> str:
    # The label stands beside padding, never on it.
    held_width, held_height = width, height
    if cell.empty:
        held_height = height / 2
    else:
        if column and column.padding:
            room = min(width - 8, _width(cell.label) + 8)
            held_width = max(room, width * (1 - column.padded))
        if row and row.padding:
            held_height = max(_FONT + 8, height * (1 - row.padded))
    is_filled = cell.marked and not cell.empty
    parts = [f"<title>{html_text(cell.description)}</title>"]
    if is_filled:
        parts.append(_rect(x, y, held_width, held_height, f'fill="{cell.color}"'))
    if held_width < width:
        parts.append(_hatched(x + held_width, y, width - held_width, held_height))
    if held_height < height:
        parts.append(_hatched(x, y + held_height, width, height - held_height))
    parts.append(_rect(x, y, width, height, 'fill="none" stroke="currentColor"'))
    color = text_on(cell.color) if is_filled else "currentColor"
    middle = x + held_width / 2, y + held_height / 2 + 4.5
    parts.append(_text(cell.label, *middle, anchor="middle", color=color))
    return f"<g>{''.join(parts)}</g>"


_PATTERN = (
    f'<defs><pattern id="{_HATCH}" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6" stroke="currentColor" '
    'stroke-opacity="0.55" stroke-width="1.5"/></pattern></defs>'
)


def _hatched(x: float, y: float, width: float, height: float) -> str:
    return _rect(
        x, y, width, height, f'fill="url(#{_HATCH})" stroke="currentColor" stroke-opacity="0.5"'
    )


def _rect(x: float, y: float, width: float, height: float, rest: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" {rest}/>'


def _text(
    text: str,
    x: float,
    y: float,
    size: int = _FONT,
    anchor: str = "start",
    color: str = "currentColor",
    extra: str = "",
) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{color}"{extra}'
    return f'<text x="{x:g}" y="{y:g}" {style}>{html_text(text)}</text>'


def _width(text: str) -> float:
    return len(text) * _CHARACTER
