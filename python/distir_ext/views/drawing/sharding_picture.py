"""Draws a picture of a sharding for terminals, notebooks and files."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.text import Text

from distir_ext.text.display import Shown
from distir_ext.text.printable import shown
from distir_ext.views.drawing import sharding_figure, sharding_svg, sharding_text
from distir_ext.views.drawing.sharding_layout import (
    MOST_COLUMNS,
    MOST_GRIDS,
    MOST_ROWS,
    Layout,
    lay_out,
)

if TYPE_CHECKING:
    from distir_ext.signature.sharding import Sharding

_WIDTH_OF_TEXT = 100


class ShardingPicture(Shown):
    """Picture of a sharding: the devices of each block of an array.

    ``print`` draws it in the terminal, notebooks show it as a drawing. The blocks are data, too:
    :attr:`sharding`.
    """

    def __init__(self, sharding: Sharding, name: str = "", marked: Collection[int] = ()) -> None:
        self._sharding = sharding
        self._title = shown(f"{name}: {_title(sharding)}" if name else _title(sharding))
        self._marked = tuple(marked)

    @property
    def sharding(self) -> Sharding:
        """The sharding that is drawn, with mesh, dims, and the indices of each device."""
        return self._sharding

    def text(self, width: int = _WIDTH_OF_TEXT) -> str:
        """The picture in characters, without colours.

        Args:
            width: Characters of a line. Blocks that do not fit are left out.
        """
        console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
        return self._rendered(console)

    def to_svg(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture as an SVG file, which follows the reader's light or dark mode.

        Args:
            path: The file, which is written anew.

        Raises:
            OSError: The file cannot be written.
        """
        Path(path).write_text(self._repr_svg_(), encoding="utf-8")

    def plot(self) -> Any:
        """The picture as a ``matplotlib.figure.Figure``.

        Raises:
            ImportError: matplotlib is not installed.
        """
        return sharding_figure.draw(self._layout())

    def __str__(self) -> str:
        terminal = Console()
        if not terminal.is_terminal:
            return self.text()
        return self._rendered(
            Console(
                file=io.StringIO(),
                width=terminal.width,
                force_terminal=True,
                force_jupyter=False,
                color_system=terminal.color_system,  # type: ignore[arg-type]
            )
        )

    def __repr__(self) -> str:
        return str(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        layout = self._layout()
        columns = len(layout.columns.parts) if layout.columns else 1
        while columns > 3 and sharding_text.grid_width(layout) > options.max_width:
            columns -= 1
            layout = self._layout(columns)
        for line in sharding_text.draw(layout, options.max_width):
            line.no_wrap = True
            yield line

    def _repr_svg_(self) -> str:
        return sharding_svg.draw(self._layout(), alone=True)

    def _layout(self, columns: int = MOST_COLUMNS) -> Layout:
        most = (MOST_ROWS, columns, MOST_GRIDS)
        return lay_out(self._sharding, self._title, self._marked, most)

    def _rendered(self, console: Console) -> str:
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _title(sharding: Sharding) -> str:
    shape = ", ".join(map(str, sharding.shape))
    mesh = sharding.mesh
    sizes = ", ".join(
        f"{shown(axis)}={size}" for axis, size in zip(mesh.axis_names, mesh.shape, strict=True)
    )
    return f"{sharding.spec.dtype}[{shape}] sharded {sharding.dims} on {sizes}"
