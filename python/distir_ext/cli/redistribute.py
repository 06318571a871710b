"""``distir redistribute``: prints the plan for one tensor."""

from __future__ import annotations

import argparse
import math

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.notation import parse_dims, parse_shape
from distir_ext.cli.shared.output import add_json, print_json, show_tables
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import add_mesh

EXAMPLE = "distir redistribute dp,- -,dp --mesh dp=2,tp=4 --shape 1024,1024"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "redistribute",
        help="print the cheapest steps from one sharding of a tensor to another",
        description="Prints the steps that lead a tensor from one sharding to another, with what\n"
        "each sends and takes (docs/redistribution.md).",
        epilog="A sharding has an entry per dimension: an axis, several ('dp+tp'), or '-' for\n"
        "none; 'replicated' is one of any dimensions:\n\n"
        "  distir redistribute dp,- -,dp --mesh dp=2,tp=4 --shape 1024,1024\n\n"
        f"{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    for name, help_text in (("source", "how it is sharded"), ("target", "how it is to be")):
        parser.add_argument(
            name, type=argument_type(parse_dims), metavar=name.upper(), help=help_text
        )
    add_mesh(parser, required=True)
    parser.add_argument(
        "--shape",
        type=argument_type(parse_shape),
        required=True,
        metavar="SIZE,..",
        help="the global shape of the tensor, as 1024,1024",
    )
    parser.add_argument("--dtype", default="float32", help="its elements (default: %(default)s)")
    add_cluster(parser, f"{DEFAULT}; may be repeated", action="append")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the plans, one for each cluster."""
    import distir_ext as dx
    from distir_ext.views.tables.costs import redistribution_table

    mesh = dx.Mesh(tuple(options.mesh.values()), tuple(options.mesh))
    names = options.cluster or [DEFAULT]
    plans = [
        dx.analysis.redistribution(
            mesh,
            options.source,
            options.target,
            options.shape,
            options.dtype,
            cluster_of(name, math.prod(mesh.shape)),
        )
        for name in names
    ]
    named = list(zip(names, plans, strict=True))
    if options.json:
        print_json({"plans": [{**plan.as_data(), "cluster": name} for name, plan in named]})
    else:
        show_tables([redistribution_table(plan, name) for name, plan in named])
    return 0
