"""Escapes text for HTML and SVG, whatever names it has."""

from __future__ import annotations

from html import escape

from distir_ext.text.printable import TextLines, printable, shown

# Of what is drawn or stands in a cell; a browser takes long for words of a million letters.
_LONGEST = 2000


def html_text(text: str) -> str:
    """A text for an element or an attribute in quotes, of HTML and of XML.

    Tags and references are text, and what terminals obey is escaped, which XML does not allow
    either. New lines stay in a :class:`TextLines` only.
    """
    return escape(text if isinstance(text, TextLines) else shown(text, _LONGEST))


def html_code(text: str) -> str:
    """A program or another text of many lines, for an element ``<pre>``."""
    return escape(printable(text))
