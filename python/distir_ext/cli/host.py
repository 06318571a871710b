"""``distir host``: serves sessions of other machines."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, NoReturn

from distir_ext.cli.credentials import add_credentials
from distir_ext.cli.shared.failures import say
from distir_ext.cli.shared.parser import Commands
from distir_ext.wire.connections import DEFAULT_HOST, DEFAULT_PORT
from distir_ext.wire.tokens import read_token

if TYPE_CHECKING:
    from distir_ext.workers.hosts.host_agent import HostAgent

# The signals that end it.
_ENDING = (signal.SIGINT, signal.SIGTERM)

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


def run(options: argparse.Namespace) -> NoReturn:
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
    _serve_until_a_signal(agent)
    # An interpreter that ends might wait for what threads of sessions still do.
    os._exit(0)


def _serve_until_a_signal(agent: HostAgent) -> None:
    """Serves in another thread, while this one, which has to be the main one, waits for a byte.

    A handler alone could come late: Python runs it when the main thread gets back from a system
    call, which a signal does not end that came just before, or was given to another thread.
    """
    ended, end = socket.socketpair()
    end.setblocking(False)
    wakeup = signal.set_wakeup_fd(end.fileno(), warn_on_full_buffer=False)
    for each in _ENDING:
        signal.signal(each, lambda *_: None)
    served: Future[None] = Future()

    def serve() -> None:
        try:
            agent.serve()
            served.set_result(None)
        except BaseException as error:
            served.set_exception(error)
        finally:
            end.send(bytes([signal.SIGTERM]))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    print(f"listening at {agent.address}", flush=True)
    while ended.recv(1)[0] not in _ENDING:
        pass
    agent.close()
    thread.join()  # it writes to the sockets, which close with this function
    signal.set_wakeup_fd(wakeup)
    served.result()
