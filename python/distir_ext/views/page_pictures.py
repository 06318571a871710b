"""Draws the pictures of a report's HTML page."""

from __future__ import annotations

import tvm

from distir_ext.analysis.costs import Estimate
from distir_ext.analysis.simulate import simulate
from distir_ext.analysis.timelines.timeline import Timeline
from distir_ext.mesh.cluster import Cluster
from distir_ext.views.drawing.figure import new_figure
from distir_ext.views.drawing.inline_svg import inline_svg

_OF_ESTIMATES = ("roofline", "memory", "collectives")
NO_PICTURES = "This page has no pictures: they need matplotlib, pip install 'distir-ext[plot]'."
"""Text of a page where matplotlib is not installed."""

# More bars make a page of megabytes, and no bar of them can be told from the next.
_MOST_EVENTS = 5000


def call_timeline(
    mod: tvm.IRModule, cluster: Cluster, func: str | None = None
) -> Timeline | ValueError:
    """One call of a function on all devices, or why it cannot be simulated.

    Args:
        mod: The module.
        cluster: Cluster that it runs on.
        func: The function that is called; the only one if left out.
    """
    try:
        return simulate(mod, cluster, function=func)
    except ValueError as error:  # as of several functions, or of stages that no session runs so
        return error


def report_pictures(
    estimate: Estimate, timeline: Timeline | ValueError
) -> tuple[dict[str, str], list[str]]:
    """Draws the program that takes longest, and one call of a function on all devices.

    Args:
        estimate: Cost of the module.
        timeline: Result of :func:`call_timeline`.

    Returns:
        Elements ``<svg>`` by what they show, and why others are missing; all are missing where
        matplotlib is not installed.
    """
    try:
        new_figure(1, 1)
    except ImportError:
        return {}, [NO_PICTURES]
    if not estimate.programs:
        return {}, []
    pictures, notes = {}, []
    if isinstance(timeline, ValueError):
        notes.append(f"The page has no timeline: {timeline}")
    elif sum(map(len, timeline.groups)) > _MOST_EVENTS:
        notes.append(
            "The page has no timeline: there is too much on it. 'distir simulate --perfetto' "
            "writes a trace."
        )
    else:
        pictures["timeline"] = inline_svg(timeline.plot(), "timeline")
    for kind in _OF_ESTIMATES:
        pictures[kind] = inline_svg(estimate.plot(kind), kind)
    return pictures, notes
