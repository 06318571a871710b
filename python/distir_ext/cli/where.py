"""``distir where``: prints the place of this process among the copies of a script."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from distir_ext.cli.shared.output import add_json, print_json
from distir_ext.cli.shared.parser import Commands
from distir_ext.text.printable import printable

EXAMPLE = "torchrun --no-python --nproc-per-node 4 distir where"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "where",
        help="print which copy of a script a launcher made of this process",
        description="Prints what the environment says of this process: which launcher started it, "
        "which of how many copies it is, and where the first is. Run it as the script would be: "
        "'torchrun --no-python --nproc-per-node 4 distir where', 'mpiexec -n 4 distir where', "
        "'srun -n 4 distir where'.",
    )
    parser.set_defaults(run=run, needs_package=False)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the place."""
    from distir_ext import launch

    findings = launch.look_around()
    if options.json:
        print_json(
            {
                "place": findings.place and dataclasses.asdict(findings.place),
                "outer": [dataclasses.asdict(place) for place in findings.outer],
                "notes": list(findings.notes),
            }
        )
        return 0
    lines = [str(findings.place) if findings.place else "no launcher started this process"]
    if findings.place:
        lines += [f"  {name}={value}" for name, value in findings.place.variables.items()]
    lines += [f"  within: {place}" for place in findings.outer]
    lines += [f"  note: {note}" for note in findings.notes]
    # At once, since copies print at the same time.
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))
    return 0
