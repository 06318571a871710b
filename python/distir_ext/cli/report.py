"""``distir report``."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from distir_ext.cli.clusters import CLUSTER_FILES, DEFAULT, add_cluster, cluster_of
from distir_ext.cli.failures import FAILED, say
from distir_ext.cli.output import add_json, print_json, show_tables, write_text
from distir_ext.cli.parser import Commands
from distir_ext.cli.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_sharded_program,
    check_sizes,
    devices_of,
    on_cluster,
    sharded_program,
)


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
        metavar="FILE",
        help="also write the report as a page, one file that opens without a network",
    )
    parser.add_argument(
        "--fail-over-memory",
        action="store_true",
        help="exit with 1 if a device needs more memory than it has",
    )


def run(options: argparse.Namespace) -> int:
    """Prints the report."""
    from distir_ext import analysis
    from distir_ext._tables import amount
    from distir_ext.analysis.page import report_page
    from distir_ext.analysis.tables import estimate_tables

    mod = sharded_program(options)
    check_sizes(mod)
    cluster = cluster_of(options.cluster, devices_of(mod))
    estimate = analysis.estimate(mod, cluster)
    tensors = analysis.shardings(on_cluster(mod, cluster))
    if options.json:
        rows = [asdict(tensor) for tensor in tensors]
        print_json({"program": options.program, **json.loads(estimate.to_json()), "tensors": rows})
    else:
        show_tables([analysis.sharding_table(tensors), *estimate_tables(estimate)])
    if options.html:
        write_text(options.html, report_page(options.program, estimate, tensors))
    if options.fail_over_memory and not estimate.fits:
        needed, there = (
            amount(value, "B") for value in (estimate.peak_memory, estimate.device.memory)
        )
        say("distir report", f"a device needs {needed} of memory, but has {there}")
        return FAILED
    return 0
