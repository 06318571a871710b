"""Draws alternatives by time and memory, and marks those that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from distir_ext.text.palette import VERMILION
from distir_ext.views.drawing.figure import (
    engineering,
    engineering_format,
    label_text,
    new_figure,
)

# Where the label of a point may begin, in points from it: the first of these that is free.
_PLACES = [(7, 7), (7, -15), (7, 19), (7, -27), (7, 31), (7, -39)]


@dataclass(frozen=True)
class Point:
    """One alternative."""

    label: str
    """Name of the point."""

    seconds: float
    """Time in seconds."""

    memory: float
    """Bytes that a device needs."""

    bytes_sent: float
    """Bytes that a device sends."""


def front(points: Iterable[Point]) -> list[Point]:
    """The points than which no other takes less time and no more memory, or the reverse.

    Returns:
        By time, ascending. Of equal points all.

    Example:
        >>> points = [Point("bad", 3, 9, 0), Point("small", 3, 4, 0), Point("fast", 1, 9, 0)]
        >>> [each.label for each in front(points)]
        ['fast', 'small']
    """
    found: list[Point] = []
    for point in sorted(points, key=lambda each: (each.seconds, each.memory)):
        last = found[-1] if found else None
        is_same = last and (last.seconds, last.memory) == (point.seconds, point.memory)
        if last is None or point.memory < last.memory or is_same:
            found.append(point)
    return found


def draw(points: Sequence[Point], capacity: float | None = None, title: str = "") -> Any:
    """The figure.

    Args:
        points: The alternatives, at least one.
        capacity: Bytes of memory that a device has, if that is to be drawn.
        title: Of the figure.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: There is no point.
    """
    if not points:
        raise ValueError("there is nothing to draw: no point is given")
    figure = new_figure(8, 5)
    axes = figure.subplots()
    best = front(points)
    axes.step(
        [each.seconds for each in best],
        [each.memory for each in best],
        where="post",
        color=VERMILION,
        linewidth=1.5,
        label="Pareto front",
        zorder=1,
    )
    # cividis: Nuñez, Anderton and Renslow, "Optimizing colormaps with consideration for color
    # vision deficiency", 2018.
    for chosen, size, edge in ((best, 110, VERMILION), (points, 45, "black")):
        circles = axes.scatter(
            [each.seconds for each in chosen],
            [each.memory for each in chosen],
            s=size,
            c=[each.bytes_sent for each in chosen],
            cmap="cividis",
            vmin=min(each.bytes_sent for each in points),
            vmax=max(each.bytes_sent for each in points),
            edgecolor=edge,
            linewidth=2 if chosen is best else 0.6,
            zorder=3 if chosen is best else 2,
        )
    labels = [
        axes.annotate(
            label_text(each.label),
            (each.seconds, each.memory),
            xytext=_PLACES[0],
            textcoords="offset points",
            fontsize="small",
            fontweight="bold" if each in best else "normal",
        )
        for each in points
    ]
    if capacity is not None:
        axes.axhline(capacity, color="black", linestyle=":", label="memory of a device")
    figure.colorbar(circles, ax=axes, label="sent by a device (B)", format=engineering_format("B"))
    axes.set(title=label_text(title), xlabel="time (s)", ylabel="memory of a device (B)")
    axes.margins(0.15)
    engineering(axes.xaxis, "s")
    engineering(axes.yaxis, "B")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    _keep_apart(figure, labels)
    return figure


def _keep_apart(figure: Any, labels: Iterable[Any]) -> None:
    """Moves labels that would lie on others to the next free place beside their points."""
    figure.draw_without_rendering()
    taken: list[Any] = []
    for label in labels:
        if not label.get_text():
            continue
        for place in _PLACES:
            label.set_position(place)
            box = label.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
