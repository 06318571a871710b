"""``distir token``: makes a token for hosts."""

from __future__ import annotations

import argparse

from distir_ext.cli.shared.failures import FAILED, say
from distir_ext.cli.shared.parser import Commands
from distir_ext.wire.tokens import make_token

EXAMPLE = "distir token ~/.distir_token"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "token",
        help="make a token for hosts",
        description="Writes a new random token into a file that only you may read. Copy it to "
        "every host, and to where sessions are opened.",
    )
    parser.set_defaults(run=run, needs_package=False)
    parser.add_argument("file", metavar="FILE", help="the file, which must not exist yet")


def run(options: argparse.Namespace) -> int:
    """Writes the token."""
    try:
        make_token(options.file)
    except OSError as error:
        say("distir token", f"no token was made: {error}")
        return FAILED
    return 0
