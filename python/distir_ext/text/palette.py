"""Chooses colours that colour-blind readers can tell apart, and readable text colours on them.

The colours are those of Okabe and Ito, "Color Universal Design" (2008,
https://jfly.uni-koeln.de/color/), without black, in an order in which those that are most alike to
who sees no red or no green are no neighbours. Contrast is that of WCAG 2.2 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
"""

from __future__ import annotations

ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
BLUISH_GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
REDDISH_PURPLE = "#CC79A7"
GREY = "#808080"

SERIES = (BLUE, VERMILION, REDDISH_PURPLE, ORANGE, BLUISH_GREEN, YELLOW, SKY_BLUE)
"""For things that have no colour of their own, in this order, then again from the first."""

# What rows and slices are ahead of each other in SERIES, so that no two neighbours are alike.
_ROW, _SLICE = 3, 5


def series(index: int) -> str:
    """The colour of one of many things."""
    return SERIES[index % len(SERIES)]


def cell_color(row: int, column: int, block: int = 0) -> str:
    """The colour of a cell of a grid, unlike that of its neighbours; of one grid of several."""
    return series(column + _ROW * row + _SLICE * block)


def text_on(color: str) -> str:
    """Black or white, whichever is easier to read.

    Example:
        >>> text_on(YELLOW), text_on(BLUE)
        ('#000000', '#FFFFFF')
    """
    return max(("#000000", "#FFFFFF"), key=lambda text: contrast(text, color))


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, from 1 to 21."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
