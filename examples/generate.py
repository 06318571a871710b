"""Generates tokens with a small Llama on several CPU workers, and compares with one.

The model is randomly initialised. A prompt of any length is prefilled, then each step decodes one
token per sequence; the caches of keys and values stay on the workers. The tokens have to equal
those of the unpartitioned program.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx
from distir_ext.analysis import Collective
from generation.llama import LlamaConfig
from generation.serve import Outcome, partition, random_task, run_partitioned, run_unpartitioned


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what the command line asks for; 0 if the tokens are equal, else 1."""
    options = parse(arguments)
    data, tensor = options.mesh
    config = LlamaConfig(
        layers=options.layers, hidden=options.hidden, feed_forward=options.hidden * 11 // 4
    )
    console = Console()
    with console.status("unpartitioned program"):
        task = random_task(config, options.batch, options.prompt)
        expected = run_unpartitioned(task, options.tokens)
    with console.status(f"{data * tensor} workers"):
        mesh = dx.Mesh((data, tensor), ("dp", "tp"))
        executable, collectives = partition(task, mesh)
        actual = run_partitioned(executable, task, mesh, options.tokens)
    step = [each for each in collectives if each.function == "decode"]
    outcomes = {"unpartitioned": (expected, []), f"{data}x{tensor} workers": (actual, step)}
    console.print(table(outcomes))
    equal = np.array_equal(actual.tokens, expected.tokens)
    verdict = "[green]equal[/]" if equal else "[bold red]different[/]"
    console.print(f"{expected.tokens.size} tokens of both: {verdict}")
    return 0 if equal else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; ``mesh`` is (data, tensor)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--mesh",
        metavar="DxT",
        type=mesh_shape,
        default=(2, 2),
        help="workers, data x tensor parallel (2x2)",
    )
    where.add_argument(
        "--workers",
        dest="mesh",
        metavar="N",
        type=lambda text: (1, positive(text)),
        help="as many workers, tensor parallel: a mesh of 1xN",
    )
    for name, default, what in (
        ("batch", 4, "sequences"),
        ("prompt", 16, "tokens of the prompt"),
        ("tokens", 64, "tokens to generate"),
        ("layers", 4, "layers of the model"),
        ("hidden", 128, "hidden size, a multiple of 16"),
    ):
        parser.add_argument(f"--{name}", type=positive, default=default, help=f"{what} ({default})")
    options = parser.parse_args(arguments)
    if options.hidden % 16 != 0:
        parser.error(f"--hidden {options.hidden} is not a multiple of 16, for 8 heads of even size")
    return options


def positive(text: str) -> int:
    """A number of at least one."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def mesh_shape(text: str) -> tuple[int, int]:
    """Two sizes, as in 2x4."""
    try:
        data, tensor = map(positive, text.split("x"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not two numbers, as in 2x4") from error
    return data, tensor


def table(outcomes: Mapping[str, tuple[Outcome, Sequence[Collective]]]) -> Table:
    """Returns a table of speed, and of the communication of a decode step, by program."""
    result = Table(
        "program",
        "prefill",
        "tokens/s",
        "collectives per step",
        "bytes per step",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in (result.columns[1], result.columns[2], result.columns[4]):
        column.justify = "right"
    result.caption = "bytes: sent by one device"
    for name, (outcome, step) in outcomes.items():
        kinds: Counter[str] = Counter()
        for each in step:
            kinds[each.kind] += each.count
        result.add_row(
            name,
            f"{outcome.prefill_seconds * 1e3:,.0f} ms",
            f"{outcome.tokens_per_second:,.0f}",
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none",
            f"{sum(each.count * (each.bytes_per_device or 0) for each in step):,}",
        )
    return result


if __name__ == "__main__":
    sys.exit(main())
