"""``distir rules``: prints the sharding rules of operators."""

from __future__ import annotations

import argparse
import dataclasses
import sys

from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.output import add_json, console, print_json
from distir_ext.cli.shared.parser import Commands

EXAMPLE = "distir rules relax.matmul"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "rules",
        help="print what each operator means for sharding",
        description="Prints every operator of TVM's Relax with what its rule shards, and how.",
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument(
        "operators",
        nargs="*",
        metavar="OPERATOR",
        help="print only these: a name, as matmul or relax.nn.softmax, or a part of one",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    add_json(form)


def run(options: argparse.Namespace) -> int:
    """Prints the rules."""
    from distir_ext.explain import rules

    if options.markdown and options.operators:
        raise UsageError("--markdown prints all operators; leave the names out")
    if options.markdown:
        sys.stdout.write(rules.markdown())
    elif options.json:
        rows = rules.find_all(options.operators) if options.operators else rules.operators()
        print_json({"operators": [dataclasses.asdict(row) for row in rows]})
    else:
        rules.print_operators(options.operators, console(rules.WIDTH_OF_A_FILE))
    return 0
