"""``distir partition``: shards a program, runs passes up to a phase, and prints it."""

from __future__ import annotations

import argparse
import dataclasses

from distir_ext.cli.shared.clusters import CLUSTER_FILES, UNSTATED, add_cluster, cluster_of
from distir_ext.cli.shared.output import add_json, new_file, print_json, write_text
from distir_ext.cli.shared.parser import Commands
from distir_ext.cli.shared.pipelines import CONFIGURATIONS, add_pipeline, pipeline_of
from distir_ext.cli.shared.sharded import (
    PROGRAMS,
    SHARDINGS,
    add_sharded_program,
    devices_of,
    sharded_program,
)
from distir_ext.text.errors.spelling import did_you_mean

ANNOTATED = "annotated"

EXAMPLE = "distir partition model.py --mesh dp=2,tp=4 --shard 'up=-,tp' --output sharded.py"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "partition",
        help="shard a program, run the passes up to a phase, and print it as a Python file",
        description="Shards a program, runs the passes up to a phase, and prints the result as a\n"
        f"Python file with TVMScript, which runs.\n\n{PROGRAMS}",
        epilog="phases:\n"
        "  annotated   as the arguments shard it\n"
        "  propagated  every tensor has its sharding\n"
        "  legalized   redistributions are collectives\n"
        "  lowered     the program of each device (default)\n"
        "  runtime     collectives are calls of the runtime\n\n"
        f"{SHARDINGS}\n\n{CONFIGURATIONS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    add_cluster(parser, UNSTATED)
    add_pipeline(parser)
    parser.add_argument(
        "--phase",
        default="lowered",
        metavar="PHASE",
        help="where to stop: behind a phase, or behind a pass by its name (default: %(default)s)",
    )
    parser.add_argument(
        "-o", "--output", type=new_file, metavar="FILE", help="write it there, not to the output"
    )
    parser.add_argument(
        "--dump",
        metavar="DIR",
        help="also write the module before and after each pass, with a page of what each changed",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the module."""
    import distir_ext as dx
    from distir_ext.native.steps import steps

    every = steps()
    known = dict.fromkeys([ANNOTATED, *(name for s in every for name in (s.gives, s.name))])
    if options.phase not in known:
        raise ValueError(
            f"there is no phase or pass {options.phase!r}; there are {', '.join(known)}"
            f"{did_you_mean(options.phase, known)}"
        )
    mod = sharded_program(options)
    pipeline = pipeline_of(options)
    wanted = next((s.gives for s in every if s.name == options.phase), options.phase)
    reached, phases = str(dx.phase(mod)), [ANNOTATED, *(s.gives for s in every)]
    if phases.index(reached) > phases.index(wanted):
        raise ValueError(f"{options.program} is {reached} already, which comes after {wanted}")
    cluster = None if options.cluster is None else cluster_of(options.cluster, devices_of(mod))
    with dx.pass_reports() as reports:
        if options.phase != ANNOTATED:
            mod = dx.lower(
                mod, cluster, until=options.phase, pipeline=pipeline, dump_dir=options.dump
            )
    text = dx.script(mod)
    if options.output:
        write_text(options.output, text)
    if options.json:
        data = {
            "program": options.program,
            "phase": dx.phase(mod),
            "passes": [dataclasses.asdict(report) for report in reports],
        }
        print_json(
            {**data, "output": options.output} if options.output else {**data, "script": text}
        )
    elif not options.output:
        print(text, end="")
    return 0
