"""Embeds figures of matplotlib in a page of HTML."""

from __future__ import annotations

import io
import re
from typing import Any

# What of a file a page does not need: it is an SVG element of HTML there.
_OF_A_FILE = re.compile(
    r"\A.*?(?=<svg)|<metadata>.*?</metadata>|<style[^>]*>.*?</style>| xmlns(:\w+)?=\"[^\"]*\"",
    re.DOTALL,
)
_NAMED = re.compile(r'(\bid="|\bhref="#|url\(#)')


def inline_svg(figure: Any, name: str) -> str:
    """A figure as an element ``<svg>``, which fetches nothing.

    Args:
        figure: A ``matplotlib.figure.Figure``.
        name: Prefix of the ids in it; pictures of one page need different ones.
    """
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": name}):
        figure.savefig(file, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = _OF_A_FILE.sub("", file.getvalue())
    return _NAMED.sub(rf"\1{name}-", text)
