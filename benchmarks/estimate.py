"""Times ``dx.analysis.estimate`` on stacks with the shapes of Llama-70B, and its parts.

Processor time of this process, best of several::

    python benchmarks/estimate.py --layers 1 16 80
"""

from __future__ import annotations

import argparse

from models.llama_stack import annotated, build_stack
from processor_time import seconds
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 16, 80])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table = Table("layers", "lower, s", "estimate, s", "estimate per layer, ms", box=SIMPLE_HEAD)
    cluster = dx.Cluster.preset("H100")
    for layers in options.layers:
        mod = annotated(build_stack(layers))
        lower = seconds(lambda mod=mod: dx.lower(mod), options.repeats)
        whole = seconds(lambda mod=mod: dx.analysis.estimate(mod, cluster), options.repeats)
        table.add_row(str(layers), f"{lower:.3f}", f"{whole:.2f}", f"{whole / layers * 1e3:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
