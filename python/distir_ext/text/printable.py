"""Escapes text from outside, so that terminals show it and obey nothing in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Of C0 (but new lines and tabs), DEL and C1, which terminals obey, what begins a line elsewhere or
# changes the direction or the shape of text that follows, tags and marks that nobody sees, halves
# of characters, which no file can be given, and what XML has no place for.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff\U000e0000-\U000e007f]"
)
LONGEST = 400
"""Most characters of a name that messages, tables and pictures show."""

_LONG_WORD = re.compile(rf"\S{{{LONGEST + 1},}}")
_CONTROL_OR_LINE = re.compile(f"[\t\n]|{_CONTROL.pattern}")


def printable(text: str) -> str:
    r"""A text without what a terminal would obey: ``"\x1b[2J"`` becomes ``"\\x1b[2J"``.

    What other hosts, files and programs say is shown to users, in errors above all. Lines and tabs
    stay; a text that has nothing else is the same one.
    """
    return _CONTROL.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Escapes a text of one line, such as a name, with new lines and tabs."""
    return _CONTROL_OR_LINE.sub(_escaped, text)


def shown(text: str, longest: int = LONGEST) -> str:
    """A name or value of others for a message: one printable line.

    Of one that has more than ``longest`` characters, the begin and the end are left, with how much
    is left out between them.
    """
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}...({len(text) - 2 * half} more)...{text[-half:]}"
    return printable_line(text)


def message_text(text: str) -> str:
    """The text of an error or a log, in which words that have a name of others are not long.

    It is one line, unless it is a :class:`TextLines`.
    """
    if isinstance(text, TextLines):
        return TextLines(map(message_text, text.split("\n")))
    return printable_line(with_short_words(text))


def with_short_words(text: str) -> str:
    """The text with words of at most :data:`LONGEST` characters, cut as :func:`shown` does."""
    return _LONG_WORD.sub(lambda found: shown(found[0]), text)


class TextLines(str):
    """A text of several lines, each of which may have names of others: these begin no line.

    Where one line is expected, of an error, a cell of a table or its notes, a text of this type
    says that its new lines are meant.
    """

    __slots__ = ()

    def __new__(cls, lines: Iterable[str]) -> TextLines:
        """Joins the lines, each of them made printable."""
        return super().__new__(cls, "\n".join(map(printable_line, lines)))


def shortened(text: str, longest: int) -> str:
    """A text cut to so many characters; what is missing is counted behind them."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}... ({len(text) - longest} more characters)"


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
