"""Draws the memory of a device while its kernels and collectives run, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distir_ext.text.palette import BLUE, BLUISH_GREEN, ORANGE, SKY_BLUE
from distir_ext.text.tables import amount
from distir_ext.views.drawing.figure import engineering, label_text, new_figure

if TYPE_CHECKING:
    from distir_ext.analysis.costs import ProgramEstimate

_NAMED = 8
_PARTS = (("weights", BLUE), ("constants", BLUISH_GREEN), ("inputs", SKY_BLUE))


def draw(program: ProgramEstimate, capacity: float, title: str) -> Any:
    """The figure.

    Args:
        program: The program that runs.
        capacity: Bytes of memory that a device has.
        title: Of the figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(8.5, 5)
    axes = figure.subplots()
    memory = program.memory
    edges, live = [0.0], []
    for seconds, size in memory.held:
        edges.append(edges[-1] + seconds)
        live.append(size)
    bottom = 0.0
    for name, color in _PARTS:
        size = getattr(memory, name)
        if size:
            label = f"{name}: {amount(size, 'B')}"
            top = bottom + size
            axes.fill_between([0, edges[-1]], bottom, top, color=color, linewidth=0, label=label)
            bottom = top
    held = [bottom + size for size in live]
    axes.stairs(
        held,
        edges,
        baseline=bottom,
        fill=True,
        facecolor=ORANGE,
        edgecolor="black",
        linewidth=0.8,
        label=f"activations: at most {amount(memory.activations, 'B')}",
    )
    peak = memory.peak_memory
    at = f", in computing {label_text(memory.at)}" if memory.at else ""
    axes.axhline(peak, color="black", linestyle="--", linewidth=1.2)
    axes.annotate(
        f"peak: {amount(peak, 'B')}{at}",
        (0, peak),
        xytext=(4, 4),
        textcoords="offset points",
        fontsize="small",
    )
    if capacity <= 2 * peak:
        axes.axhline(capacity, color="black", linestyle=":", linewidth=1.2)
        text = f"a device has {amount(capacity, 'B')}"
        axes.annotate(
            text, (0, capacity), xytext=(4, 4), textcoords="offset points", fontsize="small"
        )
    top = max(peak, capacity if capacity <= 2 * peak else 0.0) * 1.15 or 1.0
    axes.set(
        xlim=(0, edges[-1] or 1.0),
        ylim=(0, top),
        title=label_text(title),
        xlabel="time of kernels and collectives, one after the other (s)",
        ylabel="memory of a device (B)",
    )
    engineering(axes.xaxis, "s")
    engineering(axes.yaxis, "B")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.75), fontsize="small", frameon=False)
    lines = [f"{label_text(name)}: {amount(size, 'B')}" for name, size in memory.alive[:_NAMED]]
    if len(memory.alive) > _NAMED:
        rest = sum(size for _, size in memory.alive[_NAMED:])
        lines.append(f"{len(memory.alive) - _NAMED} others: {amount(rest, 'B')}")
    if lines:
        text = "\n".join(["alive at the peak:", *lines])
        axes.text(1.03, 0.5, text, transform=axes.transAxes, fontsize="small", va="top")
    return figure
