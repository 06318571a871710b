"""``distir sweep``: compares meshes and plans."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.failures import FAILED, UsageError, say
from distir_ext.cli.shared.notation import (
    parse_bytes,
    parse_count,
    parse_counts,
    parse_named_file,
)
from distir_ext.cli.shared.output import add_json, new_file, print_json, show_tables, write_text
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_function,
    add_mesh,
    add_shards,
    default_function,
    read_plan,
    sizes_of,
)
from distir_ext.text.files.argument_files import is_plan_name

if TYPE_CHECKING:
    from distir_ext.mesh.mesh import Mesh

# The plan that '--shard' alone states.
_STATED = "stated"

EXAMPLE = "distir sweep model.py --devices 8 --axes dp,tp --plan a.json --plan b.json"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "sweep",
        help="say which mesh, plan and number of microbatches is best",
        description="Simulates a program for every mesh, plan and number of microbatches, and\n"
        "prints them, the best first (docs/analysis.md#which-mesh-and-plan). Meshes are those of\n"
        "'--mesh', and all in which '--devices' can be arranged:\n\n"
        "  distir sweep model.py --devices 8 --axes dp,tp --plan a.json --plan b.json\n\n"
        f"{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument("program", metavar="PROGRAM", help="the file of the program, or its folder")
    add_mesh(
        parser, "a mesh to compare, as dp=2,tp=4; may be repeated", action="append", default=[]
    )
    parser.add_argument(
        "--devices",
        type=argument_type(parse_count),
        metavar="NUMBER",
        help="compare all meshes of so many devices that have the axes of '--axes'",
    )
    parser.add_argument(
        "--axes",
        type=lambda text: [name.strip() for name in text.split(",")],
        metavar="AXIS,..",
        help="the axes of these meshes, as dp,tp,pp",
    )
    parser.add_argument(
        "--plan",
        action="append",
        default=[],
        type=argument_type(parse_named_file),
        metavar="[NAME=]FILE",
        help="a plan to compare: tp, fsdp, auto, or a JSON file of patterns and shardings, which "
        "is called NAME or as the file; may be repeated. What '--shard' says comes first in each "
        "file",
    )
    add_shards(parser)
    add_function(parser)
    parser.add_argument(
        "--microbatches",
        type=argument_type(parse_counts),
        default=[1],
        metavar="NUMBER,..",
        help="numbers of microbatches to compare, as 1,2,4 (default: 1)",
    )
    parser.add_argument(
        "--batch",
        metavar="NAME",
        help="the symbolic size that microbatches divide; '--size' says how large all of it is",
    )
    parser.add_argument(
        "--memory-limit",
        type=argument_type(parse_bytes),
        metavar="BYTES",
        help="what a device may hold, as 40e9 (default: what the cluster's devices have)",
    )
    parser.add_argument(
        "--processes",
        type=argument_type(parse_count),
        default=1,
        metavar="NUMBER",
        help="share the work between so many processes (default: %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=argument_type(parse_count),
        default=20,
        metavar="NUMBER",
        help="how many configurations the table shows (default: %(default)s)",
    )
    add_cluster(parser, DEFAULT, default=DEFAULT)
    add_json(parser)
    parser.add_argument(
        "--html",
        type=new_file,
        metavar="FILE",
        help="also write all configurations as a page, one file that opens without a network",
    )
    parser.add_argument(
        "--plot",
        type=new_file,
        metavar="FILE",
        help="also draw time, memory and bytes sent, as FILE.svg, FILE.png or FILE.pdf; needs "
        "matplotlib",
    )
    parser.add_argument(
        "--fail-over-memory",
        action="store_true",
        help="exit with 1 if no configuration fits into a device's memory",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the sweep."""
    from distir_ext import analysis
    from distir_ext.interop._program_files import read_program
    from distir_ext.text.tables import amount
    from distir_ext.views.sweep_page import sweep_page
    from distir_ext.views.tables.sweep import sweep_tables

    meshes = _meshes(options)
    plans = _plans(options)
    if options.plot:
        _check_picture(options.plot)
    mod = read_program(options.program)
    found = analysis.sweep(
        mod,
        meshes,
        plans,
        cluster_of(options.cluster, max(math.prod(mesh.shape) for mesh in meshes)),
        func=options.func or default_function(mod),
        stages=options.stages,
        microbatches=options.microbatches,
        batch=options.batch,
        sizes=sizes_of(options),
        inputs=options.inputs,
        memory_limit=options.memory_limit,
        processes=options.processes,
    )
    if options.json:
        print_json({"program": options.program, **json.loads(found.to_json())})
    else:
        show_tables(sweep_tables(found, options.rows))
    if options.html:
        write_text(options.html, sweep_page(options.program, found))
    if options.plot:
        found.plot().savefig(options.plot, bbox_inches="tight")
    if all(row.error is not None for row in found.configurations):
        say("distir sweep", "no configuration can be partitioned")
        return FAILED
    if options.fail_over_memory and found.best is None:
        limit = amount(found.memory_limit, "B")
        say("distir sweep", f"no configuration fits into {limit} per device")
        return FAILED
    return 0


def _meshes(options: argparse.Namespace) -> list[Mesh]:
    import distir_ext as dx

    if (options.devices is None) != (options.axes is None):
        raise UsageError("--devices and --axes belong together, as --devices 8 --axes dp,tp")
    found = [dx.Mesh(tuple(each.values()), tuple(each)) for each in options.mesh]
    if options.devices is not None:
        found += dx.analysis.factorizations(options.devices, options.axes)
    if not found:
        raise UsageError("state what to compare: --mesh, or --devices and --axes")
    return found


def _plans(options: argparse.Namespace) -> dict[str, dict[str, Any] | str]:
    """The plans by name; what the command line shards comes first in each."""
    stated = dict(options.shard)
    if not options.plan and not stated:
        raise ValueError("no plan is stated: --plan FILE, or --shard PARAMETER=DIMS")
    if not options.plan:
        return {_STATED: stated}
    plans: dict[str, dict[str, Any] | str] = {}
    for name, file in options.plan:
        name = name or Path(file).stem
        if name in plans:
            raise UsageError(f"two plans are called {name!r}; name one, as --plan other={file}")
        if is_plan_name(file):
            if stated:
                raise UsageError(f"--shard goes with plans of files, not with {file!r}")
            plans[name] = file
            continue
        plans[name] = {**stated, **{key: d for key, d in read_plan(file) if key not in stated}}
    return plans


def _check_picture(file: str) -> None:
    """Refuses a picture that could not be drawn, before anything is computed for it."""
    from distir_ext.views.drawing.figure import new_figure

    known = new_figure(1, 1).canvas.get_supported_filetypes()
    suffix = Path(file).suffix.removeprefix(".")
    if suffix not in known:
        raise UsageError(f"--plot draws files {', '.join(known)}, not {file!r}")
