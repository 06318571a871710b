"""``distir passes``: lists the passes and their options."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from distir_ext.cli.shared.failures import UsageError
from distir_ext.cli.shared.output import add_json, print_json, show_tables
from distir_ext.cli.shared.parser import Commands
from distir_ext.cli.shared.pipelines import CONFIGURATIONS, add_pipeline, pipeline_of

EXAMPLE = "distir passes --yaml"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "passes",
        help="print which passes run, in which order, with which options",
        description="Prints the passes of the pipeline, those that are registered by installed\n"
        "packages and imported files among them.",
        epilog=CONFIGURATIONS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_pipeline(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--yaml", action="store_true", help="print the defaults as a configuration")
    add_json(form)


def run(options: argparse.Namespace) -> int:
    """Prints the passes."""
    from distir_ext import pipelines

    if options.yaml and (options.config or options.imports):
        raise UsageError("--yaml prints the defaults; leave --config and --import out")
    if options.yaml:
        sys.stdout.write(pipelines.default_text())
        return 0
    pipeline = pipeline_of(options)
    if options.json:
        print_json({"passes": [_row(each) for each in pipeline]})
    else:
        show_tables([pipeline.table()])
    return 0


def _row(each: Any) -> dict[str, Any]:
    registered = each.registered
    return {
        "name": each.name,
        "phase": registered.phase,
        "enabled": each.is_enabled,
        "required": registered.is_required,
        "options": dict(each.options),
        "target": registered.target or None,
        "source": registered.source,
        "summary": registered.summary,
    }
