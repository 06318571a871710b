"""Adds and reads the arguments that choose which passes run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from distir_ext.text.files.argument_files import existing

if TYPE_CHECKING:
    from distir_ext.pipelines import PassPipeline

CONFIGURATIONS = """A configuration is a YAML file that states what is different from the defaults,
which 'distir passes --yaml' prints:

  passes:
    OutlineRepeats: {enabled: true, min_operators: 16}
    OptimizeCollectives: {disable: [combine_collectives]}"""


def add_pipeline(parser: argparse.ArgumentParser) -> None:
    """Adds the configurations, and the files of passes that they may name."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file that says which passes run, with which options; may be repeated, the "
        "last one wins",
    )
    parser.add_argument(
        "--import",
        action="append",
        default=[],
        dest="imports",
        metavar="FILE",
        help="a Python file that registers passes; it is run. May be repeated",
    )


def pipeline_of(options: argparse.Namespace) -> PassPipeline:
    """The pipeline that the arguments state.

    Raises:
        ValueError: A configuration is wrong.
        OSError: A file cannot be read.
        RuntimeError: A Python file raised an error.
    """
    from distir_ext import pipelines
    from distir_ext.interop._program_files import run_file

    for file in options.imports:
        run_file(existing(file))
    return pipelines.load(*(existing(file, "configuration") for file in options.config))
