"""``distir verify-hints``."""

from __future__ import annotations

import argparse
import dataclasses

from distir_ext.cli.shared.files import existing
from distir_ext.cli.shared.output import add_json, print_json, show_tables
from distir_ext.cli.shared.parser import Commands

# As in distir_ext.hints.verification, which imports TVM.
_ALL = "all"
# What --hints takes but files.
_DETECT, _CONFIG = "detect", "config"

EXAMPLE = "distir verify-hints llama --config tp-only"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "verify-hints",
        help="shard tiny models of transformers by layer hints, and compare with them unsharded",
        description="Shards tiny models of transformers (four layers, hidden states of 64) by\n"
        "hints, runs them on CPU workers, and compares the result with PyTorch's, and what\n"
        "is communicated with the textbook's count.\n"
        "Needs pip install 'distir-ext[torch]'.",
        epilog="models: llama, deepseek_v3, qwen3_moe, mamba2, qwen3_next, nemotron_h, or all\n\n"
        "configurations:\n"
        "  tp-only   2 devices share every layer\n"
        "  ep-only   2 groups of experts; 2 devices share all other layers\n"
        "  tep       4 devices share every layer: 2 groups of experts, 2 devices each\n"
        "  attn-dp   4 groups of experts; all else is data parallel\n\n"
        "The exit status is 1 if one of them fails.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="which models (default: all)")
    parser.add_argument(
        "--config",
        dest="configs",
        action="append",
        default=[],
        metavar="NAME",
        help="which configuration; may be repeated (default: all)",
    )
    parser.add_argument(
        "--hints",
        metavar="SOURCE",
        default=_DETECT,
        help="detect (default); config: hints that the model's configuration states; or a YAML "
        "file of hints in place of those that are detected, for the layers it names",
    )
    parser.add_argument("--show", action="store_true", help="print what was done with each weight")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the matrix of models and configurations."""
    from distir_ext import hints
    from distir_ext._errors.spelling import did_you_mean
    from distir_ext.hints.verification.check import (
        CONFIGS,
        FAIL,
        Outcome,
        outcome_table,
        verify,
    )
    from distir_ext.hints.verification.models import MODELS, imported

    is_file = options.hints not in (_DETECT, _CONFIG)
    stated = hints.load(existing(options.hints, "hints")) if is_file else hints.Hints()
    names = [name for name in options.models if name != _ALL] or list(MODELS)
    for known, given, what in ((MODELS, names, "model"), (CONFIGS, options.configs, "config")):
        for name in given:
            if name not in known:
                raise ValueError(
                    f"there is no {what} {name!r}, only {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
    outcomes: list[Outcome] = []
    for name in names:
        try:
            program = imported(name)
        except ValueError as error:
            outcomes += [
                Outcome(name, each, FAIL, str(error)) for each in options.configs or CONFIGS
            ]
            continue
        if options.hints == _CONFIG:
            found = hints.from_config(program.config)
        else:
            found = hints.detect(program.mod).merged(stated)
        for config in options.configs or CONFIGS:
            try:
                outcomes.append(verify(name, program, config, found))
            except ValueError as error:
                outcomes.append(Outcome(name, config, FAIL, str(error)))
            if options.show and not options.json:
                show_tables(hints.apply(program.mod, CONFIGS[config], found).report.tables())
    if options.json:
        print_json({"outcomes": [dataclasses.asdict(each) for each in outcomes]})
    else:
        show_tables([outcome_table(outcomes)])
    return int(any(each.status == FAIL for each in outcomes))
