"""Compares the communication of standard sharding plans of transformers with XLA's.

    python benchmarks/plans.py [--plan NAME ...] [--xla recorded|measured|none] [--detail]

The programs are plain models (``models/transformers.py``): Llama 3 8B's layer shapes, four layers,
batch 8, sequence 1024, float32, and one block of a mixture of eight experts, on 8 devices. Only
weights and inputs have shardings; everything else follows. Megabytes (1e6) are what a device sends
by ring factors: all-reduce 2 (n-1)/n of the tensor, all-gather and reduce-scatter (n-1)/n of the
whole, all-to-all (n-1)/n of the local one, exchanges what the busiest device sends.

XLA's column is JAX with Shardy on the same models and plans: the figures of JAX 0.10.2, or, with
``--xla measured`` and jax installed, compiled in this run by ``models/jax_transformers.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from models.plans import PLANS, Plan
from models.transformers import ModelConfig, build
from rich.console import Console
from rich.table import Table

import distir_ext as dx

# Collectives and megabytes of JAX 0.10.2.
RECORDED = {
    "tp8": ("9 all-reduce", 2113.9),
    "dp2_tp4": ("9 all-reduce", 906.0),
    "fsdp8": ("5 all-reduce + 31 all-gather", 2349.0),
    "dp2_tp2_sp2": ("9 all-reduce + 8 all-gather", 335.5),
    "moe_ep": ("1 all-reduce + 1 all-gather", 100.8),
    "moe_ep_a2a": ("2 all-to-all + 1 all-gather", 63.1),
}


def partitioned(plan: Plan, config: ModelConfig) -> list[dx.analysis.Collective]:
    """The collectives of a plan."""
    mesh = dx.Mesh(tuple(plan.mesh.values()), tuple(plan.mesh))
    model = plan.model(None, config)
    shapes = {name: shape for name, (shape, _) in model.inputs().items()} | model.weights()
    annotations = {re.escape(name): plan.dims(name, shape) for name, shape in shapes.items()}
    mod = dx.annotate(build(plan.model, config), mesh, annotations)
    return dx.analysis.collectives(dx.lower(mod))


def measured_by_xla(name: str) -> tuple[str, float]:
    """Collectives and megabytes of a plan, compiled by XLA in a process of its own."""
    script = Path(__file__).parent / "models" / "jax_transformers.py"
    run = subprocess.run(
        [sys.executable, str(script), name], capture_output=True, text=True, check=True
    )
    found = json.loads(run.stdout.splitlines()[-1])
    return counted(Counter(kind for kind, _, sent in found if sent)), sum(
        sent for *_, sent in found
    ) / 1e6


def counted(kinds: Counter[str]) -> str:
    """Such as "9 all-reduce + 1 all-gather"."""
    return " + ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", nargs="+", choices=PLANS, default=list(PLANS))
    has_jax = importlib.util.find_spec("jax") is not None
    parser.add_argument(
        "--xla",
        choices=("recorded", "measured", "none"),
        default="measured" if has_jax else "recorded",
    )
    parser.add_argument("--detail", action="store_true", help="list every kind of collective")
    options = parser.parse_args()
    console = Console()
    table = Table("plan", "collectives", "MB per device", "XLA", "MB per device")
    for name in options.plan:
        found = partitioned(PLANS[name], ModelConfig())
        kinds: Counter[str] = Counter()
        for one in found:
            kinds[one.kind.replace("_", "-")] += one.count
        megabytes = sum((one.bytes_per_device or 0) * one.count for one in found) / 1e6
        theirs = ("", None)
        if options.xla == "measured":
            theirs = measured_by_xla(name)
        elif options.xla == "recorded":
            theirs = RECORDED[name]
        table.add_row(
            name,
            counted(kinds),
            f"{megabytes:.1f}",
            theirs[0],
            "" if theirs[1] is None else f"{theirs[1]:.1f}",
        )
        if options.detail:
            for one in found:
                size = (one.bytes_per_device or 0) * one.count / 1e6
                console.print(
                    f"{name}: {one.count} x {one.kind} over {one.group_size}: {size:.1f} MB"
                )
    console.print(table)


if __name__ == "__main__":
    main()
