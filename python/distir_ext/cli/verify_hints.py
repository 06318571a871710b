"""``distir verify-hints``: verifies layer hints of models."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os

from distir_ext.cli.shared.notation import parse_count
from distir_ext.cli.shared.output import add_json, print_json, show_tables
from distir_ext.cli.shared.parser import Commands, argument_type
from distir_ext.cli.shared.sharded import add_sizes, sizes_of
from distir_ext.text.files.argument_files import existing

# As in distir_ext.hints.verification, which imports TVM.
_ALL = "all"
_TOLERANCE_VARIABLE = "DISTIR_VERIFY_TOL"
# Values of --hints that are no files.
_DETECT, _CONFIG = "detect", "config"

EXAMPLE = "distir verify-hints llama --config tp-only"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "verify-hints",
        help="shard models by layer hints, and compare with them unsharded",
        description="Shards models by hints, runs them on CPU workers, and compares the result\n"
        "with PyTorch's (of ONNX and TVMScript with that of one device), and what is\n"
        "communicated with the textbook's count. Models of torch need\n"
        "pip install 'distir-ext[torch]'.\n\n"
        "  distir verify-hints llama --config tp-only --tol 1e-4",
        epilog="models: llama, deepseek_v3, qwen3_moe, mamba2, qwen3_next, nemotron_h, which are\n"
        "tiny (four layers, hidden states of 64), or all; and your own: a file '.pt2', '.onnx' or\n"
        "'.py'; a config.json of transformers, or its directory; or a class of transformers, as\n"
        "Phi3ForCausalLM, with small sizes\n\n"
        "configurations:\n"
        "  tp-only   2 devices share every layer\n"
        "  ep-only   2 groups of experts; 2 devices share all other layers\n"
        "  tep       4 devices share every layer: 2 groups of experts, 2 devices each\n"
        "  attn-dp   4 groups of experts; all else is data parallel\n\n"
        "With --devices NUMBER they are of so many devices. The exit status is 1 if one of them\n"
        f"fails. The environment variable {_TOLERANCE_VARIABLE} is another default of --tol.",
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
    parser.add_argument(
        "--tol",
        type=argument_type(_tolerance),
        metavar="NUMBER",
        help="what the relative root mean square error has to be below (default: 1e-5)",
    )
    parser.add_argument(
        "--devices",
        type=argument_type(parse_count),
        metavar="NUMBER",
        help="how many devices the configurations have (default: 2 or 4)",
    )
    add_sizes(parser)
    parser.add_argument("--show", action="store_true", help="print what was done with each weight")
    add_json(parser)


def _tolerance(text: str) -> float:
    """A number above 0.

    Raises:
        ValueError: It is none.
    """
    try:
        found = float(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no number") from error
    if not 0 < found < math.inf:
        raise ValueError(f"{text!r} is not a number above 0")
    return found


def run(options: argparse.Namespace) -> int:
    """Prints the matrix of models and configurations."""
    from distir_ext import hints
    from distir_ext.hints.verification.check import (
        CONFIGS,
        FAIL,
        TOLERANCE,
        Outcome,
        configuration_of,
        outcome_line,
        outcome_table,
        verify,
    )
    from distir_ext.hints.verification.models import MODELS, imported
    from distir_ext.hints.verification.own_models import is_own, own_program
    from distir_ext.text.errors.spelling import did_you_mean

    is_file = options.hints not in (_DETECT, _CONFIG)
    stated = hints.load(existing(options.hints, "hints")) if is_file else hints.Hints()
    tolerance = options.tol
    if tolerance is None:
        stated_tolerance = os.environ.get(_TOLERANCE_VARIABLE)
        try:
            tolerance = TOLERANCE if stated_tolerance is None else _tolerance(stated_tolerance)
        except ValueError as error:
            raise ValueError(f"the environment variable {_TOLERANCE_VARIABLE}: {error}") from error
    sizes = sizes_of(options)
    names = [name for name in options.models if name != _ALL] or list(MODELS)
    tiny = [name for name in names if not is_own(name)]
    for known, given, what in ((MODELS, tiny, "model"), (CONFIGS, options.configs, "config")):
        for name in given:
            if name not in known:
                raise ValueError(
                    f"there is no {what} {name!r}, only {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
    outcomes: list[Outcome] = []
    for name in names:
        try:
            program = own_program(name, sizes) if is_own(name) else imported(name)
        except ValueError as error:
            outcomes += [
                Outcome(name, each, FAIL, str(error)) for each in options.configs or CONFIGS
            ]
            continue
        if options.hints == _CONFIG and program.config is None:
            raise ValueError(f"{name} has no configuration of transformers for --hints config")
        if options.hints == _CONFIG:
            found = hints.from_config(program.config)
        else:
            found = hints.detect(program.mod).merged(stated)
        for config in options.configs or CONFIGS:
            try:
                outcomes.append(
                    verify(
                        name,
                        program,
                        config,
                        found,
                        tolerance=tolerance,
                        devices=options.devices,
                    )
                )
            except ValueError as error:
                outcomes.append(Outcome(name, config, FAIL, str(error)))
            if options.show and not options.json:
                dist = CONFIGS[config]
                if options.devices is not None:
                    dist = configuration_of(config, options.devices)
                show_tables(hints.apply(program.mod, dist, found).report.tables())
    if options.json:
        print_json({"outcomes": [dataclasses.asdict(each) for each in outcomes]})
    else:
        for each in outcomes:
            print(outcome_line(each))
        show_tables([outcome_table(outcomes)])
    return int(any(each.status == FAIL for each in outcomes))
