"""``distir host``."""

from __future__ import annotations

import argparse
import contextlib
import signal

from distir_ext.cli.credentials import add_credentials
from distir_ext.cli.shared.failures import say
from distir_ext.cli.shared.parser import Commands
from distir_ext.wire.connections import DEFAULT_HOST, DEFAULT_PORT
from distir_ext.wire.tokens import read_token

EXAMPLE = "distir host --bind 10.0.0.2"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "host",
        help="run workers on this host for sessions of others",
        description="Starts worker processes on this host for sessions that name it in dx.Hosts, "
        "and ends them with their session. Runs until it is interrupted.",
        epilog="Whoever has the token can run programs here as this user. Connections that leave "
        "the machine are encrypted. See docs/security.md.",
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument(
        "--bind",
        default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
        metavar="ADDRESS[:PORT]",
        help="where to listen, by this host's address that other hosts use "
        "(default: %(default)s, for this host only); port 0 finds a free one",
    )
    add_credentials(parser)


def run(options: argparse.Namespace) -> int:
    """Serves sessions until it is interrupted."""
    from distir_ext.wire.credentials import UNENCRYPTED, Credentials
    from distir_ext.workers.hosts.host_agent import HostAgent

    credentials = Credentials(
        read_token(options.token_file),
        options.tls,
        options.certificate,
        options.key,
        options.authority,
    )
    agent = HostAgent(options.bind, credentials)
    if options.tls is False:
        say("distir host", f"--insecure: {UNENCRYPTED}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    with contextlib.suppress(KeyboardInterrupt):
        print(f"listening at {agent.address}", flush=True)
        agent.serve()
    return 0
