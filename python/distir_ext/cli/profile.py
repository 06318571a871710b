"""``distir profile``: runs a program on workers and prints its times."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from distir_ext.cli.shared.clusters import CLUSTER_FILES, MEASURE, add_cluster, cluster_of
from distir_ext.cli.shared.failures import UsageError, say
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
from distir_ext.text.errors.spelling import counted, did_you_mean
from distir_ext.workers import SUPPORTED_WORKERS

if TYPE_CHECKING:
    from distir_ext.analysis import Comparison, Profile
    from distir_ext.signature.signature import Signature

# More workers than this on one host measure how its system shares cores.
_MOST_WORKERS = 64

EXAMPLE = "distir profile model.py --mesh dp=2,tp=2 --shard 'up=-,tp'"


def add(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "profile",
        help="run a sharded program on CPU workers and measure its kernels and collectives",
        description="Builds a program, runs it on workers on this host's CPU, one per device, and\n"
        "prints what its kernels and collectives took, waiting apart from moving\n"
        "(docs/analysis.md#measuring). Parameters without values are random: floats are normal,\n"
        "with a standard deviation of 1 for inputs and 0.02 for weights, and integers are 0 or 1,\n"
        f"unless '--integers-below' says otherwise.\n\n{PROGRAMS}",
        epilog=f"{SHARDINGS}\n\n{CLUSTER_FILES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run, needs_package=True)
    add_sharded_program(parser)
    parser.add_argument(
        "--workers",
        choices=SUPPORTED_WORKERS,
        default="threads",
        help="what the workers are (default: %(default)s)",
    )
    for name, default, text in (
        ("--repeat", 5, "how many calls are measured"),
        ("--warmup", 1, "how many calls come before them"),
        ("--integers-below", 2, "random integers are less than this"),
    ):
        parser.add_argument(
            name,
            type=argument_type(parse_count),
            default=default,
            metavar="NUMBER",
            help=f"{text} (default: %(default)s)",
        )
    parser.add_argument(
        "--seed", type=int, default=0, help="of random numbers (default: %(default)s)"
    )
    parser.add_argument(
        "--values",
        metavar="FILE.npz",
        help="values for parameters, by name, as numpy.savez writes them; the others are random",
    )
    parser.add_argument(
        "-o",
        "--perfetto",
        type=new_file,
        metavar="FILE",
        help="also write a trace for https://ui.perfetto.dev, compressed if it ends with '.gz'",
    )
    parser.add_argument(
        "--compare",
        action="store_true",
        help="also print what is predicted for the cluster, beside what was measured",
    )
    add_cluster(parser, f"the program's own; for --compare {MEASURE!r}")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the profile."""
    import distir_ext as dx
    from distir_ext.views.tables.comparison import comparison_table
    from distir_ext.views.tables.profile import profile_tables

    if options.seed < 0:
        raise UsageError(f"--seed is at least 0, not {options.seed}")
    mod = sharded_program(options)
    check_sizes(mod)
    devices = devices_of(mod)
    _check_devices(devices)
    named = options.cluster or (MEASURE if options.compare else None)
    cluster = None if named is None else cluster_of(named, devices)
    profile = _measured(options, dx.build(mod, cluster=cluster))
    comparison = None
    if options.compare and cluster is not None:
        comparison = dx.analysis.compare(dx.analysis.estimate(mod, cluster), profile)
    if options.perfetto:
        profile.to_perfetto(options.perfetto)
    if options.json:
        print_json({"program": options.program, **_data(profile, comparison)})
    else:
        compared = [] if comparison is None else [comparison_table(comparison)]
        show_tables([*profile_tables(profile), *compared])
    return 0


def _check_devices(devices: int) -> None:
    from distir_ext.native.machine.cores import allowed_cores

    if devices > _MOST_WORKERS:
        raise ValueError(
            f"the program has {devices} devices; this host's CPU runs at most {_MOST_WORKERS} "
            "workers. State a smaller mesh, or predict times by 'distir simulate'"
        )
    cores = len(allowed_cores())
    if devices > cores:
        say(
            "distir profile",
            f"warning: {devices} workers share {counted(cores, 'core')}, so that kernels take "
            "longer, and collectives wait longer, than with a core for each",
        )


def _measured(options: argparse.Namespace, executable: Any) -> Profile:
    import distir_ext as dx
    from distir_ext.cli.array_files import read_arrays
    from distir_ext.cli.shared.arguments import Arguments, arrays_taken
    from distir_ext.signature.signature import parse_signature

    signature = parse_signature(executable.distir_signature)
    name = _function(signature, options.func)
    given = read_arrays(options.values, arrays_taken(signature)) if options.values else {}
    arguments = Arguments(given, options.seed, options.integers_below)
    inputs = arguments.inputs(signature.functions[name])
    weights = arguments.weights(signature)
    if arguments.random_integers:
        say(
            "distir profile",
            f"warning: {', '.join(arguments.random_integers)}: random integers below "
            f"{options.integers_below}; --integers-below and --values state others",
        )
    mesh = dx.Mesh((len(signature.device_ids),), ("device",), signature.device_ids)
    with dx.Session(mesh, workers=options.workers) as session:
        function = session.load(executable, params=weights or None)[name]
        return function.profile(*inputs, repeat=options.repeat, warmup=options.warmup)


def _function(signature: Signature, name: str | None) -> str:
    names = list(signature.functions)
    wanted = name or (names[0] if len(names) == 1 else "main")
    if wanted not in names:
        raise ValueError(
            f"the program has no function {wanted!r} to call; --func names one of: "
            f"{', '.join(names)}{did_you_mean(wanted, names)}"
        )
    return wanted


def _data(profile: Profile, comparison: Comparison | None) -> dict[str, Any]:
    data = {
        "function": profile.function,
        "repetitions": profile.repetitions,
        "seconds": profile.seconds,
        "devices": list(profile.device_ids),
        "totals": [{**asdict(each), "imbalance": each.imbalance} for each in profile.totals()],
        "notes": list(profile.notes),
    }
    if comparison is None:
        return data
    spearman = comparison.spearman
    compared = {
        "rows": [asdict(each) for each in comparison.compared],
        "predicted": comparison.predicted,
        "measured": comparison.measured,
        "spearman": spearman if spearman == spearman else None,  # JSON has no NaN
        "mean_error": comparison.mean_error,
        "only_predicted": list(comparison.only_predicted),
        "only_measured": list(comparison.only_measured),
    }
    return {**data, "comparison": compared}
