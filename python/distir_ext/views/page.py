"""Makes self-contained HTML pages of results of analysis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from distir_ext.text.html_page import html_page
from distir_ext.text.html_text import html_text
from distir_ext.text.tables import amount, as_html
from distir_ext.views.tables.costs import estimate_tables, sharding_table

if TYPE_CHECKING:
    from rich.table import Table

    from distir_ext.analysis.costs import Estimate
    from distir_ext.analysis.shardings import TensorSharding

_STYLE = """
:root { --back: #fff; --text: #1f2328; --faint: #59636e; --line: #d1d9e0; --tile: #f6f8fa;
        --bad: #cf222e; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #9198a1; --line: #3d444d; --tile: #151b23;
          --bad: #ff7b72; }
}
body { background: var(--back); color: var(--text); }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
.about { color: var(--faint); margin: 0 0 1.5rem; }
.bad { color: var(--bad); font-weight: 600; }
dl { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); }
dl > div { background: var(--tile); border: 1px solid var(--line); border-radius: 6px;
           padding: .5rem .75rem; }
dt { color: var(--faint); font-size: 13px; }
dd { font-size: 1.2rem; font-variant-numeric: tabular-nums; margin: 0; }
.table { margin: 2rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 50%; }
caption { font-weight: 600; padding-bottom: .5rem; text-align: left; }
th { color: var(--faint); font-weight: 500; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem 1.5rem .3rem 0;
         vertical-align: top; white-space: nowrap; }
td:first-child { min-width: 12rem; overflow-wrap: anywhere; white-space: normal; }
figure { margin: 2rem 0; }
/* Figures have a white ground in both modes: their lines and letters are black. */
figure svg { background: #fff; border: 1px solid var(--line); border-radius: 6px;
             box-sizing: border-box; display: block; height: auto; max-width: 100%;
             padding: .75rem; stroke-linecap: butt; stroke-linejoin: round; }
"""
_BODY = """
<p class="about">{about}</p>
{warning}<dl>
{tiles}
</dl>
{pictures}{tables}
"""


def report_page(
    title: str,
    estimate: Estimate,
    tensors: Sequence[TensorSharding] = (),
    others: Sequence[Table] = (),
    pictures: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[str] = (),
    seconds: float | None = None,
) -> str:
    """An estimate as the text of an HTML file that refers to nothing else.

    Args:
        title: Title of the page: the program.
        estimate: Its cost.
        tensors: Shardings of its parameters and results; none are shown if left out.
        others: Tables that stand behind those of the estimate.
        pictures: Elements ``<svg>`` by what they show.
        notes: Notes on missing parts of the page.
        seconds: From the begin to the end of a call on all devices. Where it is left out, the page
            has the time of the program that takes longest, in which nothing waits for others.
    """
    tables: list[Table] = [*estimate_tables(estimate), *others]
    if tensors:
        tables.insert(1, sharding_table(tensors))
    device = estimate.device
    devices = {each for program in estimate.programs for each in program.device_ids}
    about = f"{len(devices)} devices, each {device.name}; figures are of one call, per device"
    held, there = amount(estimate.peak_memory, "B"), amount(device.memory, "B")
    warning = f"A device needs {held} of memory, but has {there}." if not estimate.fits else ""
    time = "time of the slowest program" if len(estimate.programs) > 1 else "time"
    if seconds is not None:
        time = "time"
    tiles = {
        time: amount(estimate.seconds if seconds is None else seconds, "s"),
        "operations": amount(estimate.flops, "FLOP"),
        "bytes accessed": amount(estimate.bytes_accessed, "B"),
        "sent by a device": amount(estimate.bytes_sent, "B"),
        f"peak memory, of {there}": held,
    }
    return figures_page(title, about, tiles, tables, warning, pictures, notes)


def figures_page(
    title: str,
    about: str,
    tiles: Mapping[str, str],
    tables: Sequence[Table],
    warning: str = "",
    pictures: Mapping[str, str] = MappingProxyType({}),
    notes: Sequence[str] = (),
) -> str:
    """The text of an HTML file with figures, pictures and tables that refers to nothing else.

    Args:
        title: Title of the page.
        about: Subject of its figures.
        tiles: The most important ones, by what they say.
        tables: All of them.
        warning: Warning about the figures; empty if there is none.
        pictures: Elements ``<svg>`` by what they show.
        notes: Notes on missing parts of the page.
    """
    body = _BODY.format(
        about=html_text(about),
        warning=f'<p class="bad">{html_text(warning)}</p>\n' if warning else "",
        tiles="\n".join(
            f"<div><dt>{html_text(name)}</dt><dd>{html_text(value)}</dd></div>"
            for name, value in tiles.items()
        ),
        pictures="".join(
            [
                *(f'<p class="about">{html_text(note)}</p>\n' for note in notes),
                *(
                    f'<figure role="img" aria-label="{html_text(what)}">{svg}</figure>\n'
                    for what, svg in pictures.items()
                ),
            ]
        ),
        tables="\n".join(f'<div class="table">{as_html([table])}</div>' for table in tables),
    )
    return html_page(title, _STYLE, body)
