"""``distir diff``: compares two programs, or one program under two plans."""

from __future__ import annotations

import argparse
import json

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.notation import parse_shard, parse_sizes
from distir_ext.cli.shared.output import add_json, print_json, show_tables
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_sharded_program,
    check_sizes,
    devices_of,
    on_cluster,
    sharded_program,
)

EXAMPLE = "distir diff model.py --mesh dp=2,tp=4 --plan a.json --with-plan b.json"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "diff",
        help="say what another sharding of a program changes",
        description="Compares a program under two shardings: what is sharded differently, which\n"
        "collectives vanish and appear, operations, bytes, times and memory of both. The second\n"
        "is what '--with-plan', '--with-shard' and '--with-mesh' change of the first, or a file\n"
        "of its own:\n\n"
        "  distir diff model.py --mesh dp=2,tp=4 --plan a.json --with-plan b.json\n"
        "  distir diff before.py after.py\n\n"
        f"{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    parser.add_argument(
        "others",
        nargs="*",
        metavar="OTHER",
        help="a file of the same program to compare with (default: PROGRAM itself)",
    )
    parser.add_argument("--with-plan", metavar="FILE", help="the second's plan, instead of --plan")
    parser.add_argument(
        "--with-shard",
        action="append",
        default=[],
        type=argument_type(parse_shard),
        metavar="PATTERN=DIMS",
        help="what the second shards otherwise; comes before all else; may be repeated",
    )
    parser.add_argument(
        "--with-mesh",
        type=argument_type(parse_sizes),
        metavar="AXIS=SIZE,..",
        help="the second's mesh, instead of --mesh",
    )
    add_cluster(parser, DEFAULT, default=DEFAULT)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the difference."""
    from distir_ext import analysis
    from distir_ext.views.tables.difference import difference_tables

    second = _second(options)
    first_mod, second_mod = (sharded_program(each) for each in (options, second))
    for mod in (first_mod, second_mod):
        check_sizes(mod)
    cluster = cluster_of(options.cluster, max(map(devices_of, (first_mod, second_mod))))
    difference = analysis.diff(
        on_cluster(first_mod, cluster), on_cluster(second_mod, cluster), cluster
    )
    if options.json:
        programs = {"program": options.program, "with": second.program}
        print_json({**programs, **json.loads(difference.to_json())})
    else:
        show_tables(difference_tables(difference))
    return 0


def _second(options: argparse.Namespace) -> argparse.Namespace:
    """The arguments of the second program."""
    if len(options.others) > 1:
        raise UsageError(f"two programs are compared, not {1 + len(options.others)}")
    stated = dict(options.with_shard)
    others = [(pattern, dims) for pattern, dims in options.shard if pattern not in stated]
    changes = {
        "program": options.others[0] if options.others else None,
        "plan": options.with_plan,
        "mesh": options.with_mesh,
        "shard": [*options.with_shard, *others] if stated else None,
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if not changes:
        raise UsageError("state a second program, --with-plan, --with-shard or --with-mesh")
    if "mesh" in changes:
        changes["configuration"] = None  # of the first, if it has no mesh
    return argparse.Namespace(**{**vars(options), **changes})
