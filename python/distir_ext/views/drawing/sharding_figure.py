"""Draws a sharding with matplotlib."""

from __future__ import annotations

from typing import Any

from distir_ext.text.palette import text_on
from distir_ext.views.drawing.figure import new_figure
from distir_ext.views.drawing.sharding_layout import Cell, Grid, Layout, Part

# Inches.
_CELL_WIDTH, _CELL_HEIGHT = 1.1, 0.6
_AROUND = 1.6
_MOST_HATCHED = 0.6  # of a cell, so that its label has a place


def draw(layout: Layout) -> Any:
    """The picture as a figure, with an axis for each grid.

    Raises:
        ImportError: matplotlib is not installed.
    """
    grids = [grid for grid in layout.grids if grid]
    rows, columns = len(grids[0].cells), len(grids[0].cells[0])
    size = columns * _CELL_WIDTH + _AROUND, rows * _CELL_HEIGHT + _AROUND
    figure = new_figure(max(4.0, size[0] * len(grids)), size[1])
    figure.suptitle(layout.title, fontsize="medium")
    for axes, grid in zip(figure.subplots(1, len(grids), squeeze=False)[0], grids, strict=True):
        _grid(axes, layout, grid)
        if grid is not grids[0]:
            axes.set_ylabel("")
    legend = [f"{name}: {what}" for name, what in layout.axes]
    figure.supxlabel("\n".join([*legend, *layout.notes]), fontsize="small")
    return figure


def _grid(axes: Any, layout: Layout, grid: Grid) -> None:
    rows = layout.rows.parts if layout.rows else (None,)
    columns = layout.columns.parts if layout.columns else (None,)
    for y, (row, cells) in enumerate(zip(rows, grid.cells, strict=True)):
        for x, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            if cell is None:
                axes.text(x + 0.5, y + 0.5, "…", ha="center", va="center")
            else:
                _cell(axes, cell, row, column, x, y)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    _label(axes.set_xticks, axes.set_xlabel, layout.columns)
    _label(axes.set_yticks, axes.set_ylabel, layout.rows)
    axes.set_title(grid.title, fontsize="small")


def _label(set_ticks: Any, set_label: Any, side: Any) -> None:
    parts = side.parts if side else ()
    places = [index + 0.5 for index in range(len(parts))]
    set_ticks(places, [part.label if part else "…" for part in parts])
    set_label(side.title if side else "")


def _cell(axes: Any, cell: Cell, row: Part | None, column: Part | None, x: int, y: int) -> None:
    from matplotlib.patches import Rectangle

    width = 1 - min(_MOST_HATCHED, column.padded if column else 0)
    height = 1 - min(_MOST_HATCHED, row.padded if row else 0)
    is_filled = cell.marked and not cell.empty
    if is_filled:
        axes.add_patch(Rectangle((x, y), width, height, facecolor=cell.color))
    for left, top, right, bottom in ((width, 0, 1, 1), (0, height, width, 1)):
        if right > left and bottom > top:
            box = (x + left, y + top), right - left, bottom - top
            axes.add_patch(Rectangle(*box, fill=False, hatch="////", linewidth=0, edgecolor="grey"))
    axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="black", linewidth=0.8))
    color = text_on(cell.color) if is_filled else "black"
    axes.text(x + width / 2, y + height / 2, cell.label, ha="center", va="center", color=color)
