"""``distir simulate``: prints a timeline of a program."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.notation import parse_count
from distir_ext.cli.shared.output import add_json, new_file, print_json, show_tables
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_sharded_program,
    check_sizes,
    devices_of,
    sharded_program,
)

if TYPE_CHECKING:
    from distir_ext.analysis import Timeline

EXAMPLE = "distir simulate model.py --mesh dp=2,tp=4 --shard 'up=-,tp' --cluster H100"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "simulate",
        help="say when each device computes, communicates and waits",
        description="Shards a program and simulates one call of it, or the microbatches of a\n"
        "pipeline: when each device computes, communicates and waits (docs/analysis.md).\n\n"
        f"{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    add_cluster(parser, DEFAULT, default=DEFAULT)
    parser.add_argument(
        "--microbatches",
        type=argument_type(parse_count),
        default=1,
        metavar="NUMBER",
        help="how many calls follow each other (default: %(default)s)",
    )
    parser.add_argument(
        "--schedule",
        choices=("gpipe", "1f1b", "interleaved"),
        help="the order of microbatches (default: that of the program)",
    )
    parser.add_argument(
        "--overlap",
        action="store_true",
        help="let communication run beside kernels that do not need it: what that could save",
    )
    parser.add_argument(
        "-o",
        "--perfetto",
        type=new_file,
        metavar="FILE",
        help="also write a trace for https://ui.perfetto.dev, compressed if it ends with '.gz'",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the timeline."""
    from distir_ext import analysis
    from distir_ext.views.tables.timeline import timeline_tables

    mod = sharded_program(options)
    check_sizes(mod)
    timeline = analysis.simulate(
        mod,
        cluster_of(options.cluster, devices_of(mod)),
        function=options.func,
        microbatches=options.microbatches,
        schedule=options.schedule,
        overlap=options.overlap,
    )
    if options.perfetto:
        timeline.to_perfetto(options.perfetto)
    if options.json:
        print_json({"program": options.program, **_data(timeline)})
    else:
        show_tables(timeline_tables(timeline))
    return 0


def _data(timeline: Timeline) -> dict[str, Any]:
    def times(of: Any) -> dict[str, Any]:
        return {str(key): {**asdict(time), "bubble": time.bubble} for key, time in of.items()}

    return {
        "function": timeline.function,
        "schedule": timeline.schedule,
        "microbatches": timeline.microbatches,
        "overlap": timeline.overlap,
        "seconds": timeline.seconds,
        "utilization": timeline.utilization,
        "bubble": timeline.bubble,
        "exposed_communication": timeline.exposed_communication,
        "devices": times(timeline.by_device()),
        "stages": times(timeline.by_stage()),
        "critical_operators": [asdict(each) for each in timeline.critical_operators],
        "notes": list(timeline.notes),
    }
