"""Text of others, made fit for a terminal."""

from __future__ import annotations

import re

# Of C0 (but new lines and tabs), DEL and C1, which terminals obey, and what changes the direction
# of text that follows.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    r"""A text without what a terminal would obey: ``"\x1b[2J"`` becomes ``"\\x1b[2J"``.

    What other hosts, files and programs say is shown to users, in errors above all. Lines and tabs
    stay; a text that has nothing else is the same one.
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
