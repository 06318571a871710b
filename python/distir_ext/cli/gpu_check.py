"""``distir gpu-check``: checks this machine's GPUs."""

from __future__ import annotations

import argparse

from distir_ext.cli.shared.parser import Commands

EXAMPLE = "distir gpu-check"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "gpu-check",
        help="check this machine's GPUs: versions, numbers, collectives, speed, how sessions end",
        description="Runs programs and collectives on this machine's GPUs, compares the numbers "
        "with float64 and measures times; makes workers fail, be killed and stall. Prints tables, "
        "what is out of range, and what to send back. Takes some minutes.",
        epilog="Exit status: 0 if all is in range, 1 if something is not, 2 without a GPU.",
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--bundle",
        metavar="DIR",
        help="only download the wheels that the check needs into this folder, for a machine "
        "without a network",
    )


def run(options: argparse.Namespace) -> int:
    """Checks the GPUs, or downloads the packages that the check needs."""
    from distir_ext.cli.shared.output import console
    from distir_ext.gpu_check.bundle import make_bundle
    from distir_ext.gpu_check.run import run_gpu_check

    if options.bundle is not None:
        return make_bundle(options.bundle)
    return run_gpu_check(console(), options.json)
