"""``distir launch``: starts copies of a script on this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from distir_ext.cli.shared.parser import Commands, argument_type

EXAMPLE = "distir launch -n 4 script.py"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "launch",
        help="run copies of a script on this machine, as one program",
        description="Runs copies of a script of Python, which dx.Session(mesh, workers='auto') "
        "makes one program: rank 0 goes on, the others serve it. What they print begins with their "
        "rank. The first copy that fails ends all others, and its exit status is the command's.",
        epilog="Other launchers (torchrun, mpiexec, srun) start copies on several machines: "
        "docs/clusters.md.",
    )
    parser.set_defaults(run=run, needs_package=False)
    parser.add_argument(
        "-n",
        "--nproc",
        type=argument_type(_count),
        required=True,
        metavar="N",
        help="how many copies",
    )
    parser.add_argument("script", help="the script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="what the script gets as arguments"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the copies."""
    from distir_ext.launch.children import run_copies

    if not Path(options.script).is_file():
        raise ValueError(f"there is no script {options.script}")
    return run_copies([sys.executable, options.script, *options.arguments], options.nproc)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 4096:
        raise ValueError(f"{text!r} is no number of copies, 1 to 4096")
    return int(text)
