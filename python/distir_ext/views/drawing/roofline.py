"""Draws kernels under the roofline of a device.

The roofline is that of Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model", 2009: what a kernel reaches is bounded by the operations of the device, and by
its bandwidth times the operations per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distir_ext.text.errors.spelling import counted
from distir_ext.text.palette import BLUE, BLUISH_GREEN, ORANGE
from distir_ext.text.tables import amount
from distir_ext.views.drawing.figure import engineering, label_text, new_figure

if TYPE_CHECKING:
    from distir_ext.analysis.costs import KernelCost
    from distir_ext.mesh.device import Device

_MARKS = {"compute": ("o", BLUE), "memory": ("s", ORANGE), "launch": ("^", BLUISH_GREEN)}
_NAMED = 6
_MOST_CHARACTERS = 64
_NEAR = 5.0
_SMALLEST, _LARGEST = 30.0, 500.0  # points squared, by the share of the time


def draw(kernels: Sequence[KernelCost], device: Device, title: str) -> Any:
    """The figure.

    Args:
        kernels: The kernels that run, with their numbers of calls.
        device: The device whose rates and bandwidth bound it.
        title: Of the figure.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(8.5, 5.5)
    axes = figure.subplots()
    merged = _merged(kernels)
    total = sum(seconds for _, _, seconds in merged.values()) or 1.0
    ranked = sorted(merged.items(), key=lambda item: -item[1][2])
    counted_ones = [(key, cost) for key, cost in ranked if cost[0] > 0 and cost[1] > 0]
    places = [flops / accessed for _, (flops, accessed, _) in counted_ones]
    bandwidths = [device.bandwidth, *device.caches.values()]
    ridges = [rate / each for rate in device.flops.values() for each in bandwidths]
    left, right = min([*places, *ridges]) / 4, max([*places, *ridges]) * 100
    reached = [flops / seconds for _, (flops, _, seconds) in counted_ones]
    lowest = min([*reached, *device.flops.values()])
    _roof(axes, device, left, right)
    for bound, (marker, color) in _MARKS.items():
        of_bound = [cost for (_, each), cost in counted_ones if each == bound]
        axes.scatter(
            [flops / accessed for flops, accessed, _ in of_bound],
            [flops / seconds for flops, _, seconds in of_bound],
            s=[max(_SMALLEST, _LARGEST * seconds / total) for *_, seconds in of_bound],
            marker=marker,
            facecolor=color,
            edgecolor="black",
            linewidth=0.7,
            alpha=0.85,
            zorder=3,
            label=f"bound by {bound}" if of_bound else "_",
        )
    names = _numbers(axes, counted_ones[:_NAMED], total)
    if len(counted_ones) < len(ranked):
        others = total - sum(seconds for _, (_, _, seconds) in counted_ones)
        text = counted(len(ranked) - len(counted_ones), "kernel")
        names.append(f"not drawn: {text} without operations, {amount(others, 's')}")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(left, right),
        ylim=(lowest / 8, 4 * max(device.flops.values())),
        title=label_text(title),
        xlabel="operations per byte of memory traffic (FLOP/B)",
        ylabel="operations per second (FLOP/s)",
    )
    engineering(axes.yaxis, "FLOP/s")
    axes.grid(alpha=0.3, which="major")
    if counted_ones:
        axes.legend(loc="lower right", fontsize="small")
    figure.supxlabel("\n".join(names), fontsize="small", x=0.02, ha="left")
    return figure


def _merged(
    kernels: Sequence[KernelCost],
) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Operations, bytes and seconds of all runs, by kernel and what bounds it."""
    found: dict[tuple[str, str], tuple[float, float, float]] = {}
    for each in kernels:
        if each.count == 0:
            continue
        flops, accessed, seconds = found.get((each.kernel, each.bound), (0.0, 0.0, 0.0))
        found[each.kernel, each.bound] = (
            flops + each.count * each.cost.flops,
            accessed + each.count * each.cost.bytes_accessed,
            seconds + each.count * each.cost.seconds,
        )
    return found


def _roof(axes: Any, device: Device, left: float, right: float) -> None:
    by_rate: dict[float, list[str]] = {}
    for dtype, rate in device.flops.items():
        by_rate.setdefault(rate, []).append(dtype)
    highest = max(by_rate)
    roofs = [("memory", device.bandwidth, "-")]
    roofs += [
        (f"up to {amount(size, 'B')} in caches", bandwidth, "--")
        for size, bandwidth in device.caches.items()
    ]
    for name, bandwidth, style in roofs:
        ridge = highest / bandwidth
        line = [left, ridge], [left * bandwidth, highest]
        axes.plot(*line, color="black", linestyle=style, linewidth=1.5)
        middle = (left * ridge**2) ** (1 / 3)
        axes.annotate(
            f"{name}, {amount(bandwidth, 'B/s')}",
            (middle, middle * bandwidth),
            xytext=(-6, 6),
            textcoords="offset points",
            ha="right",
            fontsize="small",
        )
    above = float("inf")
    for rate, dtypes in sorted(by_rate.items(), reverse=True):
        is_near = above / rate < _NEAR  # its text stands below then, or it would meet the other
        above = rate
        axes.plot([rate / device.bandwidth, right], [rate, rate], color="black", linewidth=1.5)
        axes.annotate(
            f"{', '.join(dtypes)}, {amount(rate, 'FLOP/s')}",
            (right, rate),
            xytext=(-4, -4 if is_near else 4),
            textcoords="offset points",
            ha="right",
            va="top" if is_near else "bottom",
            fontsize="small",
        )


def _numbers(
    axes: Any,
    kernels: Sequence[tuple[tuple[str, str], tuple[float, float, float]]],
    total: float,
) -> list[str]:
    """Numbers the longest kernels; returns what the numbers stand for."""
    at: dict[tuple[str, str], list[int]] = {}
    points: dict[tuple[str, str], tuple[float, float]] = {}
    names = []
    for number, ((kernel, _), (flops, accessed, seconds)) in enumerate(kernels, start=1):
        point = flops / accessed, flops / seconds
        near = f"{point[0]:.1e}", f"{point[1]:.1e}"  # one label for points on top of each other
        at.setdefault(near, []).append(number)
        points[near] = point
        share = seconds / total
        kernel = label_text(kernel)
        name = kernel if len(kernel) <= _MOST_CHARACTERS else f"{kernel[:_MOST_CHARACTERS]}…"
        names.append(f"{number}  {name}: {amount(seconds, 's')}, {share:.0%} of all kernels")
    for near, numbers in at.items():
        axes.annotate(
            ", ".join(map(str, numbers)),
            points[near],
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize="small",
            zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
        )
    return names
