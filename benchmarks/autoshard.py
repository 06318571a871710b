"""Times the search of plans, and compares its plans with those that are written by hand.

    python benchmarks/autoshard.py [--only plans|speed|deepseek ...]

``plans``: the six plans of ``plans.py``, on the same unannotated models, with the memory that the
plan by hand needs. ``speed``: Llama 3 8B on 8x8 devices, and 80 layers of 70B on 4x4x4, with the
memory of the device and with a quarter of what the plan without a limit takes. ``deepseek``: 61
layers with 256 experts on 8x16. All on H100s, prefill of a batch; seconds are those of one call by
``dx.analysis.estimate``, and of the search with everything around it but the model's construction.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator

import tvm
from models.plans import PLANS
from models.transformers import Llama, ModelConfig, build
from rich.console import Console
from rich.table import Table

import distir_ext as dx
from models import deepseek

LLAMA_8B = ModelConfig(layers=32, dtype="bfloat16", batch=64, sequence=2048)
LLAMA_70B = ModelConfig(
    layers=80,
    hidden=8192,
    heads=64,
    feed_forward=28672,
    dtype="bfloat16",
    batch=64,
    sequence=2048,
)


def by_hand() -> Iterator[tuple[str, ...]]:
    """The six plans and what the search finds."""
    cluster = dx.Cluster.preset("H100")
    for name, plan in PLANS.items():
        mod = build(plan.model, ModelConfig())
        mesh = dx.Mesh(tuple(plan.mesh.values()), tuple(plan.mesh))
        emitter = plan.model(None, ModelConfig())
        shapes = {each: shape for each, (shape, _) in emitter.inputs().items()} | emitter.weights()
        stated = {re.escape(each): plan.dims(each, shape) for each, shape in shapes.items()}
        hand = dx.analysis.estimate(dx.annotate(mod, mesh, stated), cluster)
        yield name, f"{hand.seconds * 1e3:.2f}", *searched(mod, mesh, hand.peak_memory)


def searched(mod: tvm.IRModule, mesh: dx.Mesh, limit: float | None) -> tuple[str, ...]:
    """Milliseconds of the plan, those that the search believes, gap, memory, limit, seconds."""
    start = time.perf_counter()
    found = dx.autoshard(mod, mesh, dx.Cluster.preset("H100"), memory_limit=limit)
    seconds = time.perf_counter() - start
    return (
        f"{found.seconds * 1e3:.2f}",
        f"{found.searched_seconds / found.seconds - 1:+.2%}",
        f"{found.gap:.2%}",
        f"{found.memory / 1e9:.2f}",
        "device" if limit is None else f"{limit / 1e9:.2f}",
        f"{seconds:.2f}",
    )


def large(name: str, config: ModelConfig, mesh: dx.Mesh) -> Iterator[tuple[str, ...]]:
    """A large model without and with a limit."""
    mod = build(Llama, config)
    row = searched(mod, mesh, None)
    yield f"{name}", "", *row
    yield f"{name}, a quarter", "", *searched(mod, mesh, float(row[3]) * 1e9 / 4)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("plans", "speed", "deepseek")
    parser.add_argument("--only", nargs="+", choices=kinds, default=list(kinds))
    only = parser.parse_args().only
    rows: list[tuple[str, ...]] = []
    if "plans" in only:
        rows += by_hand()
    if "speed" in only:
        rows += large("8B on 8x8", LLAMA_8B, dx.Mesh((8, 8), ("x", "y")))
        rows += large("70B on 4x4x4", LLAMA_70B, dx.Mesh((4, 4, 4), ("x", "y", "z")))
    if "deepseek" in only:
        mod = build(deepseek.DeepSeek, deepseek.config(61))
        rows.append(("DeepSeek on 8x16", "", *searched(mod, dx.Mesh((8, 16), ("x", "y")), None)))
    table = Table("plan", "by hand, ms", "found, ms", "believed", "gap", "GB", "limit", "search, s")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
