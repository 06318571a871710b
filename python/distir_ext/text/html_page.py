"""Wraps HTML content in a complete page that opens offline: no scripts, fonts or images."""

from __future__ import annotations

from distir_ext.text.html_text import html_text

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem;
       padding: 0 1rem; }}
{style}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def html_page(title: str, style: str, body: str) -> str:
    """The text of a page that follows the reader's light or dark mode.

    Args:
        title: Title of the page, as text.
        style: More rules of CSS.
        body: Content under the title, as HTML.
    """
    return _PAGE.format(title=html_text(title), style=style.strip(), body=body.strip())
