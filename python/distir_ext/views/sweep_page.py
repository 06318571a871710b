"""Makes a self-contained HTML page of a sweep."""

from __future__ import annotations

from distir_ext.analysis.sweeps.sweep_result import Sweep
from distir_ext.text.tables import amount
from distir_ext.views.drawing.inline_svg import inline_svg
from distir_ext.views.page import figures_page
from distir_ext.views.page_pictures import NO_PICTURES
from distir_ext.views.tables.sweep import sweep_tables


def sweep_page(title: str, sweep: Sweep) -> str:
    """All configurations as the text of an HTML file that refers to nothing else.

    Args:
        title: Title of the page: the program.
        sweep: Costs of its configurations.
    """
    device = sweep.cluster.device
    limit, best = amount(sweep.memory_limit, "B"), sweep.best
    about = f"{len(sweep)} configurations on {device.name if device else 'unknown devices'}"
    tiles = (
        {}
        if best is None
        else {
            "the fastest that fits": str(best),
            "time": amount(best.seconds or 0.0, "s"),
            "sent by a device": amount(best.bytes_sent or 0.0, "B"),
            f"peak memory, of {limit}": amount(best.peak_memory or 0.0, "B"),
        }
    )
    pictures, notes = {}, []
    try:
        if any(row.error is None for row in sweep.configurations):
            pictures["time and memory"] = inline_svg(sweep.plot(), "pareto")
    except ImportError:
        notes.append(NO_PICTURES)
    return figures_page(
        title,
        about,
        tiles,
        sweep_tables(sweep, len(sweep)),
        "" if best else f"No configuration fits into {limit} per device.",
        pictures,
        notes,
    )
