"""``distir report``: prints the costs of a program."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from distir_ext.cli.shared.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.shared.failures import FAILED, say
from distir_ext.cli.shared.notation import parse_bytes
from distir_ext.cli.shared.output import add_json, new_file, print_json, show_tables, write_text
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
from distir_ext.text.errors.spelling import counted

if TYPE_CHECKING:
    from distir_ext.analysis import Reshards

EXAMPLE = "distir report model.py --mesh dp=2,tp=4 --shard 'up=-,tp' --html report.html"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "report",
        help="print what a sharded program computes, sends and holds, and how long it takes",
        description="Shards a program and prints, per device: where its tensors are, operations,\n"
        "bytes, times, collectives and peak memory. Nothing is compiled, and no device is needed\n"
        f"(docs/analysis.md).\n\n{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    add_cluster(parser, DEFAULT, default=DEFAULT)
    add_json(parser)
    parser.add_argument(
        "--html",
        type=new_file,
        metavar="FILE",
        help="also write the report as a page, one file that opens without a network",
    )
    parser.add_argument(
        "--reshards",
        choices=("allow", "warn", "error"),
        default="allow",
        help="what to do about redistributions that nobody asked for: only list them, warn, or "
        "exit with 1 (default: %(default)s)",
    )
    parser.add_argument(
        "--reshards-above",
        type=argument_type(parse_bytes),
        default=0.0,
        metavar="BYTES",
        help="only about those for which a device sends more than this, as 1e6",
    )
    parser.add_argument(
        "--fail-over-memory",
        action="store_true",
        help="exit with 1 if a device needs more memory than it has",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report."""
    import distir_ext as dx
    from distir_ext import analysis
    from distir_ext.text.tables import amount
    from distir_ext.views.page import report_page
    from distir_ext.views.page_pictures import call_timeline, report_pictures
    from distir_ext.views.tables.costs import estimate_tables
    from distir_ext.views.tables.reshard import implicit_tables

    mod = sharded_program(options)
    check_sizes(mod)
    cluster = cluster_of(options.cluster, devices_of(mod))
    estimate = analysis.estimate(mod, cluster)
    tensors = analysis.shardings(on_cluster(mod, cluster))
    # Behind LowerCCL nothing says any more what collectives are there for.
    is_known = dx.phase(mod) != "runtime" or options.reshards != "allow"
    reshards = analysis.reshards(mod, cluster) if is_known else None
    implicit = implicit_tables(reshards) if reshards is not None and reshards.reshards else []
    if options.json:
        rows = [asdict(tensor) for tensor in tensors]
        listed = None if reshards is None else json.loads(reshards.to_json())
        data = {**json.loads(estimate.to_json()), "tensors": rows, "reshards": listed}
        print_json({"program": options.program, **data})
    else:
        show_tables([analysis.sharding_table(tensors), *estimate_tables(estimate), *implicit])
    if options.html:
        timeline = call_timeline(mod, cluster, options.func)
        pictures, notes = report_pictures(estimate, timeline)
        seconds = None if isinstance(timeline, ValueError) else timeline.seconds
        page = report_page(options.program, estimate, tensors, implicit, pictures, notes, seconds)
        write_text(options.html, page)
    failed = reshards is not None and _complain(reshards, options)
    if options.fail_over_memory and not estimate.fits:
        needed, there = (
            amount(value, "B") for value in (estimate.peak_memory, estimate.device.memory)
        )
        say("distir report", f"a device needs {needed} of memory, but has {there}")
        return FAILED
    return FAILED if failed else 0


def _complain(reshards: Reshards, options: argparse.Namespace) -> bool:
    """Prints the redistributions that ``--reshards`` does not allow; returns whether it fails."""
    from distir_ext.text.tables import amount

    above = options.reshards_above
    costly = [each for each in reshards.reshards if each.bytes_per_device > above]
    if options.reshards == "allow" or not costly:
        return False
    is_error: bool = options.reshards == "error"
    bound = f" of more than {amount(above, 'B')} per device" if above else ""
    number = counted(sum(each.count for each in costly), "redistribution")
    say(
        "distir report",
        f"{'' if is_error else 'warning: '}nobody asked for {number}{bound}; the most expensive: "
        f"{costly[0]}",
    )
    return is_error
