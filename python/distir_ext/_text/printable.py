"""Text of others, made fit for a terminal."""

from __future__ import annotations

import re

# Of C0 (but new lines and tabs), DEL and C1, which terminals obey, what begins a line elsewhere or
# changes the direction of text that follows, and halves of characters, which no file can be given.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_CONTROL_OR_LINE = re.compile(f"[\t\n]|{_CONTROL.pattern}")


def printable(text: str) -> str:
    r"""A text without what a terminal would obey: ``"\x1b[2J"`` becomes ``"\\x1b[2J"``.

    What other hosts, files and programs say is shown to users, in errors above all. Lines and tabs
    stay; a text that has nothing else is the same one.
    """
    return _CONTROL.sub(_escaped, text)


def printable_line(text: str) -> str:
    """The same of a text that has one line, such as a name: new lines and tabs do not stay."""
    return _CONTROL_OR_LINE.sub(_escaped, text)


def shortened(text: str, longest: int) -> str:
    """A text cut to so many characters; what is missing is counted behind them."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}... ({len(text) - longest} more characters)"


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
