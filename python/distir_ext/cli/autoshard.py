"""``distir autoshard``: searches the cheapest plan of a program."""

from __future__ import annotations

import argparse
import json

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.notation import parse_bytes, parse_count
from distir_ext.cli.shared.output import add_json, new_file, print_json, show_tables, write_text
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import PROGRAMS, add_mesh, add_sizes, default_function, sizes_of

EXAMPLE = "distir autoshard model.py --devices 64 --memory 80GB"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "autoshard",
        help="find the fastest plan that fits into the memory of a device",
        description="Searches how a program is sharded and prints the plan, with a bound of how\n"
        "much faster any plan could be (docs/autoshard.md). '--mesh' states the mesh; with\n"
        "'--devices', all arrangements in up to three axes are compared, and pipelines:\n\n"
        "  distir autoshard model.py --devices 64 --memory 80GB --batch n --size n=64\n\n"
        "The file of '--save' goes to '--plan' of other commands; for a pipeline, they need its\n"
        "stages too, so that 'dx.save' of 'dx.autoshard(..).mod' is the way.\n\n"
        f"{PROGRAMS}",
        epilog=CLUSTER_FILES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument("program", metavar="PROGRAM", help="the file of the program, or its folder")
    add_mesh(parser)
    parser.add_argument(
        "--devices",
        type=argument_type(parse_count),
        metavar="NUMBER",
        help="compare meshes of so many devices, and stages of pipelines on them",
    )
    parser.add_argument(
        "--batch",
        metavar="SIZE",
        help="the symbolic size that microbatches divide, with '--devices'; '--size' has its value",
    )
    parser.add_argument(
        "--memory",
        type=argument_type(parse_bytes),
        metavar="BYTES",
        help="what a device may hold, as 40e9 or 80GB (default: what the cluster's devices have)",
    )
    parser.add_argument(
        "--objective",
        choices=("time", "memory"),
        default="time",
        help="what is to be least (default: %(default)s)",
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=0.01,
        metavar="PART",
        help="end once no plan can be faster by more than this part (default: %(default)s)",
    )
    parser.add_argument(
        "--func",
        metavar="NAME",
        help="the function that is called (default: main, or the only one)",
    )
    add_sizes(parser)
    add_cluster(parser, DEFAULT, default=DEFAULT)
    add_json(parser)
    parser.add_argument(
        "--save",
        type=new_file,
        metavar="FILE",
        help="also write the plan as JSON, for '--plan' of other commands",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    import distir_ext as dx
    from distir_ext.interop._program_files import read_program
    from distir_ext.views.tables.autoshard import autoshard_tables

    if (options.mesh is None) == (options.devices is None):
        raise UsageError("state either --mesh or --devices")
    mesh = None
    devices = options.devices
    if options.mesh is not None:
        mesh = dx.Mesh(tuple(options.mesh.values()), tuple(options.mesh))
    mod = read_program(options.program)
    plan = dx.autoshard(
        mod,
        mesh,
        cluster_of(options.cluster, devices if mesh is None else len(mesh.device_ids)),
        devices=devices,
        memory_limit=options.memory,
        func=options.func or default_function(mod),
        objective=options.objective,
        sizes=sizes_of(options),
        batch=options.batch,
        gap=options.gap,
    )
    if options.json:
        print_json({"program": options.program, **json.loads(plan.to_json())})
    else:
        show_tables(autoshard_tables(plan))
    if options.save:
        write_text(options.save, json.dumps(dict(plan.plan)))
    return 0
