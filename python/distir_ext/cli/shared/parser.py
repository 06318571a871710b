"""Defines an argument parser with one-line errors that suggest known words."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias, TypeVar

from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.printable import printable, with_short_words

Parsed = TypeVar("Parsed")


class Parser(argparse.ArgumentParser):
    """``argparse.ArgumentParser`` with other errors, and an example in the help.

    Attributes:
        example: A line of a shell; empty for none.
    """

    example = ""

    def format_help(self) -> str:
        """Returns the help, followed by the example."""
        text = super().format_help()
        return f"{text}\nexample:\n  {self.example}\n" if self.example else text

    def read(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """Parses arguments; unknown ones end the process with exit status 2.

        Names may stand behind options, too: ``explain model.py --mesh dp=2 lv3``.
        """
        options, rest = self.parse_known_args(arguments)
        if not rest:
            return options
        parser = self._subparser(options)
        names = [each for each in parser._actions if not each.option_strings and each.nargs == "*"]
        unknown = [each for each in rest if each.startswith("-")]
        if names and not unknown:
            getattr(options, names[0].dest).extend(rest)
            return options
        first = (unknown or rest)[0]
        known = [name for action in parser._actions for name in action.option_strings]
        near = did_you_mean(first.partition("=")[0], known) if unknown else ""
        parser.error(f"there is no argument {first!r}{near}")

    def error(self, message: str) -> NoReturn:
        """Ends the process with 2."""
        said = printable(with_short_words(message))
        self.exit(2, f"{self.prog}: {said} ('{self.prog} --help' lists all)\n")

    def _subparser(self, options: argparse.Namespace) -> argparse.ArgumentParser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                found: argparse.ArgumentParser = action.choices[getattr(options, action.dest)]
                return found
        return self

    def _parse_optional(self, arg_string: str) -> Any:
        # A sharding whose first dimension has no axis is no option: "-,tp".
        return None if arg_string.startswith("-,") else super()._parse_optional(arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value!r}{did_you_mean(value, choices)}")
        near = did_you_mean(str(value), choices)
        listed = ", ".join(choices)
        raise argparse.ArgumentError(action, f"there is no {value!r}, only {listed}{near}")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
"""The parsers to which a command adds its own."""


def argument_type(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Converts a ``ValueError`` about an argument's text to an error of the parser."""

    @functools.wraps(parse)
    def parsed(text: str) -> Parsed:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parsed
