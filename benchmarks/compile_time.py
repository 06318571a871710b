"""Compile time of partitioning, per pass, as a program grows; with upstream TVM in the same run.

    python benchmarks/compile_time.py [--layers 1 4 16 80] [--repeats 5] [--no-upstream]
    python benchmarks/compile_time.py --scale [layers parameters ...] [--repeats 3]

The program is a stack of decoder layers with the shapes of Llama 2 70B on 8 devices, its
projections sharded as Megatron does, see ``models/llama_stack.py``. First as one function, which
upstream's PropagateSharding accepts as well, then as one private function that is called once per
layer, which it does not. Times are the processor time of the thread, since no pass uses several and
other processes count less; the best of several repeats, with the garbage collector off. A pass gets
the result of the one before it. Each repeat goes through all programs, small and large, so that a
neighbour's load on the shared cache meets all of them.

The second table of each says how far time is from linear between the two largest programs: (ratio
of times) over (ratio of program sizes) minus one, so that below zero is better than linear. Size is
the number of variables, since calls have few operators but many arguments.

With ``--scale`` one thing at a time grows: 1,000 layers, 10,000 parameters, 2,000 functions, 4,096
devices, 6 axes, 512 stages, disjoint meshes of 4,096 devices each. Time per unit stays the same
where time is linear.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import scale
import tvm
from models.llama_stack import (
    annotated,
    build_calls,
    build_stack,
    count_operators,
    count_variables,
)
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from tvm import relax

import distir_ext as dx

PROPAGATION = "PropagateSharding"

# In order. LowerCCL comes after per-worker Relax, so it does not count as partitioning.
PARTITIONING = [PROPAGATION, "LegalizeRedistribute", "OptimizeCollectives", "LowerDistIR"]
PASSES = [*PARTITIONING, "LowerCCL"]

# A repeat of upstream's pass takes minutes in all where its quadratic time shows.
LONG = 1.0


@dataclass
class Measurement:
    """The best times of one program, in seconds."""

    layers: int
    operators: int
    variables: int
    passes: dict[str, float] = field(default_factory=dict)
    upstream: float | None = None

    @property
    def partitioning(self) -> float:
        """Time from the annotated program to per-worker Relax."""
        return sum(self.passes[name] for name in self.passes if name in PARTITIONING)

    @property
    def total(self) -> float:
        """Time of all passes."""
        return sum(self.passes.values())


def available_passes() -> list[str]:
    """Returns the passes among :data:`PASSES` that the installed package has."""
    return [name for name in PASSES if hasattr(dx.transform, name)]


def timed(
    apply: Callable[[tvm.IRModule], tvm.IRModule], mod: tvm.IRModule
) -> tuple[float, tvm.IRModule]:
    """Seconds that a pass takes on a module, and its result."""
    gc.collect()
    gc.disable()
    try:
        start = time.thread_time()
        result = apply(mod)
        return time.thread_time() - start, result
    finally:
        gc.enable()


def measure(
    layers: Sequence[int], build: Callable[[int], tvm.IRModule], repeats: int, upstream: bool
) -> list[Measurement]:
    """Times every pass on the program of each size."""
    mods = [annotated(build(count)) for count in layers]
    measurements = [
        Measurement(count, count_operators(mod), count_variables(mod))
        for count, mod in zip(layers, mods, strict=True)
    ]
    for _ in range(repeats):
        for mod, measurement in zip(mods, measurements, strict=True):
            best = measurement.passes
            current = mod
            for name in available_passes():
                seconds, current = timed(getattr(dx.transform, name)(), current)
                best[name] = min(seconds, best.get(name, seconds))
    if upstream:
        for mod, measurement in zip(mods, measurements, strict=True):
            seconds = []
            while len(seconds) < repeats and (not seconds or seconds[-1] < LONG):
                seconds.append(timed(relax.distributed.transform.PropagateSharding(), mod)[0])
            measurement.upstream = min(seconds)
    return measurements


def time_table(title: str, measurements: Sequence[Measurement]) -> Table:
    """One row per program, in milliseconds."""
    names = available_passes()
    columns = ["layers", "operators", *names, "all", "partitioning, us per operator"]
    upstream = any(each.upstream is not None for each in measurements)
    if upstream:
        columns += [f"upstream {PROPAGATION}", "times ours"]
    table = Table(*columns, title=f"{title} (ms)", box=SIMPLE_HEAD)
    for column in table.columns:
        column.justify = "right"
    for each in measurements:
        row = [str(each.layers), str(each.operators)]
        row += [f"{each.passes[name] * 1e3:.2f}" for name in names]
        row += [f"{each.total * 1e3:.2f}", f"{each.partitioning / each.operators * 1e6:.1f}"]
        if each.upstream is not None:
            ratio = each.upstream / each.passes[PROPAGATION]
            row += [f"{each.upstream * 1e3:.1f}", f"{ratio:.1f}"]
        table.add_row(*row)
    return table


def linearity_table(title: str, small: Measurement, large: Measurement) -> Table:
    """Returns a table of how far each pass is from linear growth with the program."""
    growth = large.variables / small.variables
    table = Table(
        "pass",
        "deviation from linear",
        title=f"{title}, {small.layers} to {large.layers} layers",
        box=SIMPLE_HEAD,
    )
    table.columns[1].justify = "right"
    rows = {name: large.passes[name] / small.passes[name] for name in small.passes}
    rows["all"] = large.total / small.total
    if small.upstream is not None and large.upstream is not None:
        rows[f"upstream {PROPAGATION}"] = large.upstream / small.upstream
    for name, ratio in rows.items():
        table.add_row(name, f"{(ratio / growth - 1) * 100:+.1f}%")
    return table


def main() -> None:
    """Runs the benchmark and prints its tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 16, 80])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-upstream", action="store_true", help="time this project only")
    parser.add_argument(
        "--scale", nargs="*", metavar="UNIT", help="grow one thing at a time: all, or these"
    )
    options = parser.parse_args()
    if min(options.layers) < 1 or options.repeats < 1:
        parser.error("--layers and --repeats take positive numbers")

    console = Console()
    if not console.is_terminal:
        console = Console(width=160)
    if options.scale is not None:
        scale.run(console, options.repeats, options.scale)
        return
    variants = {
        "one function": (build_stack, not options.no_upstream),
        "one call per layer": (build_calls, False),
    }
    layers = sorted(set(options.layers))
    for title, (build, upstream) in variants.items():
        measure([1], build, 1, upstream)  # the first use of a pass pays for what it looks up
        with console.status(f"{title}: {', '.join(map(str, layers))} layers"):
            measurements = measure(layers, build, options.repeats, upstream)
        console.print(time_table(title, measurements))
        if len(layers) > 1:
            console.print(linearity_table(title, *measurements[-2:]))


if __name__ == "__main__":
    main()
