"""``distir completion``: prints completion scripts for shells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from distir_ext.cli.shared.parser import Commands, Parser

SHELLS = ("bash", "zsh", "fish")

# Kinds of arguments by their placeholders in the help.
_FILES = ("FILE", "PROGRAM")
_FOLDERS = ("DIR",)

EXAMPLE = "distir completion bash > ~/.local/share/bash-completion/completions/distir"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "completion",
        help="print a script that lets a shell complete commands and options",
        description="Prints a script that lets a shell complete commands, options and files. It\n"
        "is made by shtab: pip install 'distir-ext[completion]'.",
        epilog="bash:  distir completion bash > ~/.local/share/bash-completion/completions/distir\n"
        "zsh:   distir completion zsh > DIR/_distir, where DIR is in $fpath before compinit\n"
        "fish:  distir completion fish > ~/.config/fish/completions/distir.fish",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=False)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or fish")


def run(options: argparse.Namespace) -> int:
    """Prints the script."""
    try:
        import shtab
    except ImportError as error:
        # So that the file which a shell has made for this says why it completes nothing.
        print("# distir completion has failed: pip install 'distir-ext[completion]'")
        raise ImportError(
            f"completion needs shtab: pip install 'distir-ext[completion]' ({error})"
        ) from error

    parser = options.command_parser()
    for action in _actions(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: Parser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
        else:
            yield action
