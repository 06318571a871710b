"""Prints the results of commands: tables that fit a terminal or a file, or one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# A file has no width; this one holds the widest table on one line per row.
_WIDTH_OF_A_FILE = 120


def console(width_of_a_file: int = _WIDTH_OF_A_FILE) -> Console:
    """Standard output, as wide as its terminal."""
    from rich.console import Console

    class Output(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command's exit status says it

    found = Output(emoji=False)
    return found if found.is_terminal else Output(width=width_of_a_file, emoji=False)


def add_json(parser: argparse._ActionsContainer) -> None:
    """Adds the option ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object, and nothing else"
    )


def print_json(data: Mapping[str, Any]) -> None:
    """Prints one JSON object, at once, since copies of a script print at the same time."""
    sys.stdout.write(json.dumps(data) + "\n")


def show_tables(tables: Iterable[Table]) -> None:
    """Prints tables as wide as the terminal; for a file as plain text, without trailing spaces."""
    from distir_ext.text.tables import as_text, print_tables

    output = console()
    if output.is_terminal:
        print_tables(tables, output)
    else:
        print(as_text(tables))


def new_file(text: str) -> str:
    """The type of an option that names a file to be written, which is refused before any work.

    Raises:
        argparse.ArgumentTypeError: Its folder does not exist, it is a folder, or no file can have
            this name.
    """
    path = Path(text)
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text!r} is a folder, not a file")
        has_folder = path.parent.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not has_folder:
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r} for {text!r}")
    return text


def write_text(file: str, text: str) -> None:
    """Writes a file of text."""
    Path(file).write_text(text, encoding="utf-8")
