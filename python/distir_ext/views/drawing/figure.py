"""Makes figures of matplotlib, which is imported only when something is plotted."""

from __future__ import annotations

import io
from typing import Any

from distir_ext.text.printable import TextLines, shown

_LONGEST = 120  # characters of a name in a figure


def new_figure(width: float, height: float) -> Any:
    """An empty figure that needs no screen and no window.

    Args:
        width: In inches.
        height: In inches.

    Returns:
        A ``matplotlib.figure.Figure``, which notebooks show.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.text import Text
        from matplotlib.ticker import LogFormatter
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install 'distir-ext[plot]'"
        ) from error

    class NotebookFigure(Figure):  # one without pyplot is not shown by itself
        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png", bbox_inches="tight")
            return file.getvalue()

        def draw(self, renderer: Any) -> None:
            # Names are no formulas, and what a terminal obeys no file of SVG may have. Powers of
            # ten at the ticks of a logarithmic axis are formulas.
            axes = [axis for each in self.axes for axis in (each.xaxis, each.yaxis)]
            powers = {
                label
                for axis in axes
                if isinstance(axis.get_major_formatter(), LogFormatter)
                for label in axis.get_ticklabels(which="both")
            }
            for text in self.findobj(Text, include_self=False):
                if text in powers:
                    continue
                text.set_parse_math(False)
                text.set_text(TextLines(map(shown, text.get_text().split("\n"))))
            super().draw(renderer)

    return NotebookFigure(figsize=(width, height), layout="constrained")


def label_text(text: str) -> str:
    """A name of others, or a title that has one, as it may be drawn.

    Matplotlib takes minutes for a word of a million letters.
    """
    return shown(text, _LONGEST)


def engineering(axis: Any, unit: str) -> None:
    """Writes the ticks of an axis with decimal prefixes, ``"20 MB"``."""
    axis.set_major_formatter(engineering_format(unit))


def engineering_format(unit: str) -> Any:
    """A ``matplotlib.ticker.Formatter`` with decimal prefixes."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(unit=unit)
