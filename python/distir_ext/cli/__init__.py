"""The command ``distir``, also ``python -m distir_ext``.

Each command has a file: ``add`` states its arguments, ``run`` does it and returns the exit status,
``EXAMPLE`` is a line for its help.
A new command is such a file, and an entry in ``COMMANDS``. What needs TVM is imported in ``run``,
so that ``distir --help`` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from distir_ext import _command
from distir_ext._version import __version__
from distir_ext.cli import (
    autoshard,
    completion,
    demo,
    diff,
    explain,
    generate,
    gpu_check,
    host,
    launch,
    partition,
    passes,
    profile,
    redistribute,
    report,
    rules,
    simulate,
    sweep,
    token,
    verify_hints,
    visualize,
    where,
)
from distir_ext.cli.shared.failures import exit_status_of
from distir_ext.cli.shared.parser import Parser
from distir_ext.text.files.argument_files import check_files

COMMANDS = (
    report,
    simulate,
    sweep,
    autoshard,
    profile,
    diff,
    explain,
    visualize,
    partition,
    passes,
    verify_hints,
    redistribute,
    rules,
    demo,
    generate,
    host,
    launch,
    token,
    where,
    gpu_check,
    completion,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: Arguments after the command's name; by default those of the process.

    Returns:
        The exit status: 0 for success, 1 for what failed, 2 for options that exclude each other,
        130 if it was interrupted, 141 if nobody reads the output any more. Arguments that the
        command does not take end the process with 2.
    """
    options = command_parser().read(arguments)

    def run() -> int:
        if options.needs_package:
            check_files(options)  # at once: TVM takes a second to import
            _command.load_package()
        status: int = options.run(options)
        return status

    return exit_status_of(f"distir {options.command}", run)


def command_parser() -> Parser:
    """The parser of the command and its subcommands; ``docs/command.md`` is made from it."""
    parser = Parser(
        prog="distir",
        description="Distributed tensor programs for TVM Relax.",
        epilog="'distir COMMAND --help' describes a command. The exit status is 0 for success, 1 "
        "if a command failed, with the reason on standard error, and 2 for arguments that it does "
        "not take. The variable DISTIR_EXT_FULL_TRACEBACKS has errors show where they were raised.",
    )
    parser.add_argument("--version", action="version", version=f"distir_ext {__version__}")
    parser.set_defaults(command_parser=command_parser)  # which completion describes
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(commands)
        list(commands.choices.values())[-1].example = command.EXAMPLE
    return parser
