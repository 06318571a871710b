"""The command ``distir``, also ``python -m distir_ext``."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Sequence

from distir_ext import _command
from distir_ext._version import __version__
from distir_ext._workers import SUPPORTED_WORKERS
from distir_ext._workers.connections import DEFAULT_HOST, DEFAULT_PORT
from distir_ext._workers.tokens import TOKEN_VARIABLE, make_token, read_token

# A file has no width; this one holds the widest table on one line per row.
_WIDTH_OF_A_FILE = 120

_DEMONSTRATIONS = {
    "forum": "one function called twice, each call on a mesh of its own; 2 workers",
    "megatron": "the same program on a 2x2 mesh: batch over dp, Megatron sharding over tp; "
    "4 workers",
    "llama": "a four-layer decoder on a 2x4 mesh, its weights sharded by one plan; 8 workers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: What follows the command's name; by default the process's arguments.

    Returns:
        The exit status: 0 for success, 1 for what failed. Arguments that the command does not take
        end the process with 2.
    """
    options = command_parser().parse_args(arguments)
    if options.command == "token":
        return _token(options.file)
    _command.load_package()
    if options.command == "demo":
        return _demo(options)
    if options.command == "host":
        return _host(options)
    if options.command == "gpu-check":
        return _gpu_check(options)
    if options.command == "rules":
        return _rules(options.operators, options.markdown)
    raise AssertionError(f"command {options.command!r} has no handler")


def command_parser() -> argparse.ArgumentParser:
    """The parser of the command and its subcommands; ``docs/command.md`` is made from it."""
    parser = argparse.ArgumentParser(
        prog="distir",
        description="Distributed tensor programs for TVM Relax.",
        epilog="'distir COMMAND --help' describes a command. The exit status is 0 for success, 1 "
        "if a command failed, with the reason on standard error, and 2 for arguments that it does "
        "not take.",
    )
    parser.add_argument("--version", action="version", version=f"distir_ext {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    cases = "\n".join(f"  {name:<10}{text}" for name, text in _DEMONSTRATIONS.items())
    demo = commands.add_parser(
        "demo",
        help="partition small programs, run them on CPU workers and check the results",
        description=(
            "Annotates, partitions and compiles small programs, runs them on CPU workers, and\n"
            "compares each result with that of the unpartitioned program. Prints where tensors\n"
            "are, what is communicated, and the error. Fails if a relative RMSE exceeds 1e-5."
        ),
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument(
        "--case",
        choices=[*_DEMONSTRATIONS, "all"],
        default="all",
        help="which program (default: all)",
    )

    demo.add_argument(
        "--workers",
        choices=SUPPORTED_WORKERS,
        default="threads",
        help="what the workers are (default: threads)",
    )
    demo.add_argument(
        "--hosts",
        nargs="+",
        metavar="ADDRESS[:PORT]",
        help="run on these hosts, on each of which 'distir host' runs",
    )
    _add_credentials(demo)

    host = commands.add_parser(
        "host",
        help="run workers on this host for sessions of others",
        description="Starts worker processes on this host for sessions that name it in dx.Hosts, "
        "and ends them with their session. Runs until it is interrupted.",
        epilog="Whoever has the token can run programs here as this user. Connections that leave "
        "the machine are encrypted. See docs/security.md.",
    )
    host.add_argument(
        "--bind",
        default=f"{DEFAULT_HOST}:{DEFAULT_PORT}",
        metavar="ADDRESS[:PORT]",
        help="where to listen, by this host's address that other hosts use "
        "(default: %(default)s, for this host only); port 0 finds a free one",
    )
    _add_credentials(host)

    token = commands.add_parser(
        "token",
        help="make a token for hosts",
        description="Writes a new random token into a file that only you may read. Copy it to "
        "every host, and to where sessions are opened.",
    )
    token.add_argument("file", metavar="FILE", help="the file, which must not exist yet")

    check = commands.add_parser(
        "gpu-check",
        help="check this machine's GPUs: versions, numbers, collectives, speed, how sessions end",
        description="Runs programs and collectives on this machine's GPUs, compares the numbers "
        "with float64 and measures times; makes workers fail, be killed and stall. Prints tables, "
        "what is out of range, and what to send back. Takes some minutes.",
        epilog="Exit status: 0 if all is in range, 1 if something is not, 2 without a GPU.",
    )
    check.add_argument("--json", action="store_true", help="print one JSON object instead")
    check.add_argument(
        "--bundle",
        metavar="DIR",
        help="only download the wheels that the check needs into this folder, for a machine "
        "without a network",
    )

    table = commands.add_parser(
        "rules",
        help="print what each operator means for sharding",
        description="Prints every operator of TVM's Relax with what its rule shards, and how.",
    )
    table.add_argument(
        "operators",
        nargs="*",
        metavar="OPERATOR",
        help="print only these: a name, as matmul or relax.nn.softmax, or a part of one",
    )
    table.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    return parser


def _add_credentials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file with the token that hosts share (default: the variable {TOKEN_VARIABLE})",
    )
    encryption = parser.add_mutually_exclusive_group()
    encryption.add_argument(
        "--tls",
        action="store_true",
        default=None,
        help="encrypt also connections that stay on this machine",
    )
    encryption.add_argument(
        "--insecure",
        action="store_false",
        dest="tls",
        default=None,
        help="encrypt nothing: whoever is between can run programs on the hosts",
    )
    parser.add_argument(
        "--certificate", metavar="FILE", help="use this certificate (PEM), not a new one"
    )
    parser.add_argument("--key", metavar="FILE", help="its private key (PEM)")
    parser.add_argument(
        "--authority",
        metavar="FILE",
        help="accept only certificates that these authorities (PEM) have signed, for the address "
        "that is dialled",
    )


# The imports in these functions are of what `distir --help` does not need, and what needs TVM.


def _rules(operators: Sequence[str], markdown: bool) -> int:
    from distir_ext import rules

    if markdown and operators:
        print("distir rules: --markdown prints all operators; leave the names out", file=sys.stderr)
        return 2
    if markdown:
        sys.stdout.write(rules.markdown())
        return 0
    try:
        rules.print_operators(operators)
    except ValueError as error:
        print(f"distir rules: {error}", file=sys.stderr)
        return 1
    return 0


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console

    from distir_ext.demo.run import run_demo
    from distir_ext.session import Hosts

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_A_FILE)
    names = None if options.case == "all" else [options.case]
    if options.hosts is None:
        return run_demo(console, names, options.workers)
    try:
        hosts = Hosts(
            options.hosts,
            token_file=options.token_file,
            tls=options.tls,
            certificate=options.certificate,
            key=options.key,
            authority=options.authority,
        )
        return run_demo(console, names, hosts)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"distir demo: {error}", file=sys.stderr)
        return 1


def _gpu_check(options: argparse.Namespace) -> int:
    from rich.console import Console

    from distir_ext.gpu_check.bundle import make_bundle
    from distir_ext.gpu_check.run import run_gpu_check

    if options.bundle is not None:
        return make_bundle(options.bundle)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH_OF_A_FILE)
    return run_gpu_check(console, options.json)


def _token(file: str) -> int:
    try:
        make_token(file)
    except OSError as error:
        print(f"distir token: no token was made: {error}", file=sys.stderr)
        return 1
    return 0


def _host(options: argparse.Namespace) -> int:
    from distir_ext._workers.credentials import UNENCRYPTED, Credentials
    from distir_ext._workers.host_agent import HostAgent

    try:
        credentials = Credentials(
            read_token(options.token_file),
            options.tls,
            options.certificate,
            options.key,
            options.authority,
        )
        agent = HostAgent(options.bind, credentials)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"distir host: {error}", file=sys.stderr)
        return 1
    if options.tls is False:
        print(f"distir host: --insecure: {UNENCRYPTED}", file=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    with contextlib.suppress(KeyboardInterrupt):
        print(f"listening at {agent.address}", flush=True)
        agent.serve()
    return 0
