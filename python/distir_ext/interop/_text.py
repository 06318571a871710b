"""Scanner for texts of other systems, and the error for texts that do not parse.

All reads skip white space and comments before what they read. Every character is looked at once,
so the time is linear in the length of a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from distir_ext.text.printable import printable_line

_SPACE = re.compile(r"\s*")
_LINE = re.compile(r"[^\n]*")
_DIGITS = re.compile(r"[0-9]+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHOWN = 40  # characters on each side of a mistake

_LONGEST_NUMBER = 18
"""Digits: what is longer is no 64-bit integer."""

T = TypeVar("T")


class FormatError(ValueError):
    """A text is not of its format.

    Attributes:
        what: Kind of text that was read, as "GSPMD sharding".
        text: All of it.
        position: Position of the mistake, in characters from 0.
        expected: Text that is valid there.
    """

    def __init__(self, what: str, text: str, position: int, expected: str) -> None:
        super().__init__(what, text, position, expected)
        self.what = what
        self.text = text
        self.position = position
        self.expected = expected

    def __str__(self) -> str:
        found = self.text[self.position : self.position + 12]
        begin, end = max(0, self.position - _SHOWN), self.position + _SHOWN
        before = ("..." if begin else "") + self.text[begin : self.position]
        after = self.text[self.position : end] + ("..." if end < len(self.text) else "")
        return printable_line(
            f"{self.what}, column {self.position + 1}: expected {self.expected}, found "
            f"{found if found.strip() else 'white space' if found else 'the end'!s}; "
            f"here: {before} >>> {after}"
        )


class Scanner:
    """A text and how far it was read.

    Args:
        text: The text.
        what: Name of the text in errors.

    Raises:
        TypeError: It is no text.
    """

    def __init__(self, text: str, what: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a {what} is a text, not {text!r} of type {type(text).__name__}")
        self.text = text
        self.position = 0
        self._what = what

    def skip(self) -> int:
        """Goes past white space and comments; returns the position."""
        while True:
            self.position = self._end_of(_SPACE)
            if self.text.startswith("/*", self.position):
                end = self.text.find("*/", self.position + 2)
                if end < 0:
                    self.fail("a comment that ends with '*/'")
                self.position = end + 2
            elif self.text.startswith("//", self.position):
                self.position = self._end_of(_LINE)
            else:
                return self.position

    def sees(self, literal: str) -> bool:
        """Returns whether the literal comes next."""
        return self.text.startswith(literal, self.skip())

    def accept(self, literal: str) -> bool:
        """Reads this if it comes next."""
        found = self.sees(literal)
        self.position += len(literal) if found else 0
        return found

    def expect(self, literal: str, purpose: str = "") -> None:
        """Reads this."""
        if not self.accept(literal):
            self.fail(f"{literal!r}{purpose}")

    def word(self) -> str:
        """Reads an identifier; the empty text if none comes next."""
        found = _WORD.match(self.text, self.skip())
        self.position = found.end() if found else self.position
        return found[0] if found else ""

    def integer(self, what: str = "an integer") -> int:
        """Reads an integer that is not negative."""
        begin = self.skip()
        end = self._end_of(_DIGITS)
        if not 0 < end - begin <= _LONGEST_NUMBER:
            self.fail(what if end == begin else f"{what} below 10^{_LONGEST_NUMBER}")
        self.position = end
        return int(self.text[begin:end])

    def one_or_more(self, read: Callable[[], T]) -> list[T]:
        """Reads what a function reads, with commas between."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return found

    def until(self, end: str, read: Callable[[], T]) -> list[T]:
        """Reads what a function reads, with commas between, up to a closing bracket."""
        if self.accept(end):
            return []
        found = self.one_or_more(read)
        self.expect(end)
        return found

    def nothing_more(self) -> None:
        """Raises an error unless the text has ended."""
        if self.skip() < len(self.text):
            self.fail("nothing more")

    def fail(self, expected: str, position: int | None = None) -> NoReturn:
        """Raises the error, by default for what comes next."""
        raise FormatError(
            self._what, self.text, self.position if position is None else position, expected
        )

    def _end_of(self, pattern: re.Pattern[str]) -> int:
        found = pattern.match(self.text, self.position)
        return found.end() if found else self.position
