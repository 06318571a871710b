"""Draws the bytes that a device sends, and the times of collectives, by mesh axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distir_ext.text.errors.spelling import counted
from distir_ext.text.palette import series, text_on
from distir_ext.text.tables import amount
from distir_ext.views.drawing.figure import engineering, label_text, new_figure

if TYPE_CHECKING:
    from distir_ext.analysis.costs import ProgramEstimate

_ROOM = 1.6  # of an axis, for the text behind the longest bar
_HATCHES = ("", "//", "..", "\\\\", "xx", "++", "oo")


def draw(program: ProgramEstimate, title: str) -> Any:
    """The figure: bytes at the left, seconds at the right, a bar for each of the axes.

    Args:
        program: The program that runs.
        title: Of the figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    found: dict[str, dict[str, tuple[int, float, float]]] = {}
    for each in program.collectives:
        if each.count == 0:
            continue
        of_axes = found.setdefault(label_text(", ".join(each.axes)) or "between meshes", {})
        count, sent, seconds = of_axes.get(each.kind, (0, 0.0, 0.0))
        of_axes[each.kind] = (
            count + each.count,
            sent + each.count * each.bytes_per_device,
            seconds + each.count * each.seconds,
        )
    kinds = list(dict.fromkeys(kind for of_axes in found.values() for kind in of_axes))
    names = list(found)
    figure = new_figure(10, 2.2 + 0.6 * max(1, len(names)))
    shown = label_text(title) if found else f"{label_text(title)}: nothing is communicated"
    figure.suptitle(shown, fontsize="medium")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, index, unit, label in (
        (panels[0], 1, "B", "sent by a device (B)"),
        (panels[1], 2, "s", "one after the other (s)"),
    ):
        totals = [sum(each[index] for each in found[name].values()) for name in names]
        left = [0.0] * len(names)
        for number, kind in enumerate(kinds):
            sizes = [found[name].get(kind, (0, 0.0, 0.0))[index] for name in names]
            color = series(number)
            axes.barh(
                names,
                sizes,
                left=left,
                height=0.6,
                color=color,
                hatch=_HATCHES[number % len(_HATCHES)],
                edgecolor=text_on(color),
                linewidth=0.8,
                label=kind,
            )
            left = [begin + size for begin, size in zip(left, sizes, strict=True)]
        for name, total in zip(names, totals, strict=True):
            count = sum(each[0] for each in found[name].values())
            text = f" {amount(total, unit)}" + (
                f", {counted(count, 'collective')}" if index == 1 else ""
            )
            axes.text(total, name, text, va="center", fontsize="small")
        axes.set(xlabel=label, xlim=(0, (max(totals, default=0.0) or 1.0) * _ROOM))
        axes.locator_params(axis="x", nbins=5)  # so that their texts do not touch
        engineering(axes.xaxis, unit)
        axes.grid(axis="x", alpha=0.3)
    panels[0].set(ylabel="mesh axes", ylim=(max(1, len(names)) - 0.4, -0.6))
    if kinds:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
