"""``distir demo``: runs the demonstrations."""

from __future__ import annotations

import argparse

from distir_ext.cli.credentials import add_credentials
from distir_ext.cli.shared.parser import Commands
from distir_ext.workers import SUPPORTED_WORKERS

DEMONSTRATIONS = {
    "megatron": "two MLP layers on a 2x2 mesh: batch over dp, Megatron sharding over tp; 4 workers",
    "llama": "a four-layer decoder on a 2x4 mesh, its weights sharded by one plan; 8 workers",
    "forum": "the two MLP layers again, each on a mesh of its own; 2 workers",
}

EXAMPLE = "distir demo"


def add(commands: Commands) -> None:
    """Adds the command."""
    cases = "\n".join(f"  {name:<10}{text}" for name, text in DEMONSTRATIONS.items())
    parser = commands.add_parser(
        "demo",
        help="partition small programs, run them on CPU workers and check the results",
        description=(
            "Annotates, partitions and compiles small programs, runs them on CPU workers, and\n"
            "compares each result with that of the unpartitioned program. Prints where tensors\n"
            "are, what is communicated, a simulated timeline and the error. Fails if a relative\n"
            "RMSE exceeds 1e-5."
        ),
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument(
        "--case",
        choices=[*DEMONSTRATIONS, "all"],
        default="all",
        help="which program (default: all)",
    )
    parser.add_argument(
        "--workers",
        choices=SUPPORTED_WORKERS,
        default="threads",
        help="what the workers are (default: threads)",
    )
    parser.add_argument(
        "--hosts",
        nargs="+",
        metavar="ADDRESS[:PORT]",
        help="run on these hosts, on each of which 'distir host' runs",
    )
    add_credentials(parser)


def run(options: argparse.Namespace) -> int:
    """Runs the cases."""
    from distir_ext.cli.shared.output import console
    from distir_ext.demo.run import run_demo
    from distir_ext.session.session import Hosts

    names = None if options.case == "all" else [options.case]
    if options.hosts is None:
        return run_demo(console(), names, options.workers)
    hosts = Hosts(
        options.hosts,
        token_file=options.token_file,
        tls=options.tls,
        certificate=options.certificate,
        key=options.key,
        authority=options.authority,
    )
    return run_demo(console(), names, hosts)
