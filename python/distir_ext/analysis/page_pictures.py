"""The pictures of a report's page."""

from __future__ import annotations

import tvm

from distir_ext._pictures.figure import new_figure
from distir_ext._pictures.inline_svg import inline_svg
from distir_ext.analysis.costs import Estimate
from distir_ext.analysis.simulate import simulate
from distir_ext.cluster import Cluster

_OF_ESTIMATES = ("roofline", "memory", "collectives")
_NO_PICTURES = "This page has no pictures: they need matplotlib, pip install 'distir-ext[plot]'."
# More bars make a page of megabytes, and no bar of them can be told from the next.
_MOST_EVENTS = 5000


def report_pictures(
    estimate: Estimate, mod: tvm.IRModule, cluster: Cluster, func: str | None = None
) -> tuple[dict[str, str], list[str]]:
    """Draws the program that takes longest, and one call of a function on all devices.

    Args:
        estimate: What the module costs.
        mod: The module.
        cluster: What it runs on.
        func: The function that is called; the only one if left out.

    Returns:
        Elements ``<svg>`` by what they show, and why others are missing; all are missing where
        matplotlib is not installed.
    """
    try:
        new_figure(1, 1)
    except ImportError:
        return {}, [_NO_PICTURES]
    if not estimate.programs:
        return {}, []
    pictures, notes = {}, []
    try:
        timeline = simulate(mod, cluster, function=func)
        devices = [group.device_ids[0] for group in timeline.groups]
        if sum(event.device in set(devices) for event in timeline.events) > _MOST_EVENTS:
            notes.append(
                "The page has no timeline: there is too much on it. 'distir simulate --perfetto' "
                "writes a trace."
            )
        else:
            pictures["timeline"] = inline_svg(timeline.plot(), "timeline")
    except ValueError as error:  # as of several functions, or of stages that no session runs so
        notes.append(f"The page has no timeline: {error}")
    for kind in _OF_ESTIMATES:
        pictures[kind] = inline_svg(estimate.plot(kind), kind)
    return pictures, notes
