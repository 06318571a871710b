"""Compares ``dx.analysis.simulate`` with runs on CPU workers.

Each program (a model, a plan, a mesh, a batch size) runs on worker threads and on worker processes;
what is measured is the time between the first begin and the last end on its devices. It is
simulated for what ``dx.Cluster.measure`` says of this host. The machine should have nothing else to
do::

    python benchmarks/accuracy.py            # all programs, some minutes
    python benchmarks/accuracy.py --quick    # a few
    python benchmarks/accuracy.py --csv runs.csv
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from models.small_programs import MODELS, Model
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx

MESHES = ((2,), (4,), (2, 2))
BATCHES = (16, 128, 512)
QUICK_BATCHES = (32, 256)
PLANS = ("data", "tensor", "fsdp", "stages")
# Of a batch that goes through stages.
MICROBATCHES = 4


@dataclass(frozen=True)
class Case:
    """A program and how it runs."""

    model: Model
    plan: str
    mesh: tuple[int, ...]
    batch: int

    @property
    def microbatches(self) -> int:
        """How many calls of the program make up the batch."""
        return MICROBATCHES if self.plan == "stages" else 1

    @property
    def name(self) -> str:
        """For tables."""
        mesh = "x".join(map(str, self.mesh))
        return f"{self.model.name} {self.plan} {mesh} batch {self.batch}"

    def module(self) -> tvm.IRModule:
        """The annotated program of one microbatch."""
        axes = tuple("ab"[: len(self.mesh)])
        mesh = dx.Mesh(self.mesh, axes)
        mod = self.model.build(self.batch // self.microbatches)
        last, others = axes[-1], axes[:-1]
        if self.plan == "data":
            return dx.annotate(mod, mesh, {"x": (axes, None)})
        if self.plan == "fsdp":
            return dx.annotate(mod, mesh, {"x": (axes, None), r".*(up|down)": (axes, None)})
        tensor = {r".*up": (None, last), r".*down": (last, None)}
        if self.plan == "tensor":
            return dx.annotate(mod, mesh, tensor | ({"x": (others, None)} if others else {}))
        plan = tensor if others else {"x": (None, None)}
        return dx.transform.AssignStages(mesh, axes[0])(dx.annotate(mod, mesh, plan))


@dataclass(frozen=True)
class Run:
    """A measured and a simulated time, in seconds."""

    case: Case
    workers: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative."""
        return abs(self.simulated - self.measured) / self.measured


def cases(quick: bool) -> Iterator[Case]:
    """What is run."""
    models: Sequence[Model] = MODELS[:2] if quick else MODELS
    meshes = MESHES[::2] if quick else MESHES
    plans = PLANS[1::2] if quick else PLANS
    batches = QUICK_BATCHES if quick else BATCHES
    for each in itertools.product(models, plans, meshes, batches):
        yield Case(*each)


def measure(case: Case, executable: Any, workers: str, repeats: int) -> float:
    """The median of several runs."""
    devices = int(np.prod(case.mesh))
    weights, x = case.model.values(case.batch)
    with dx.Session(devices, workers=workers) as session:
        run = session.load(executable, params=weights)["main"].pipeline(case.microbatches)
        taken = []
        for _ in range(repeats + 2):
            run(x)
            taken.append(run.timeline.seconds)
    return statistics.median(taken[2:])


def spearman(runs: Sequence[Run]) -> float:
    """The rank correlation of measured and simulated times."""
    ranks = [
        np.argsort(np.argsort([getattr(run, name) for run in runs]))
        for name in ("measured", "simulated")
    ]
    return float(np.corrcoef(*ranks)[0, 1])


def summary(runs: Sequence[Run]) -> Table:
    """Errors by workers and by plan."""
    table = Table(
        *("runs", "number", "Spearman", "mean error", "median simulated / measured"),
        box=SIMPLE_HEAD,
    )
    groups: dict[str, list[Run]] = {"all": list(runs)}
    for run in runs:
        for key in (run.workers, run.case.plan, run.case.model.name):
            groups.setdefault(key, []).append(run)
    for name, found in groups.items():
        table.add_row(
            name,
            str(len(found)),
            f"{spearman(found):.3f}",
            f"{statistics.mean(run.error for run in found):.1%}",
            f"{statistics.median(run.simulated / run.measured for run in found):.2f}",
        )
    return table


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", nargs="+", default=["threads", "processes"])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--csv", help="a file for all runs")
    options = parser.parse_args()
    console = Console(width=120)
    clusters: Mapping[tuple[int, str], dx.Cluster] = {}
    runs: list[Run] = []
    for case in cases(options.quick):
        devices = int(np.prod(case.mesh))
        mod = case.module()
        executable = dx.build(mod)
        for workers in options.workers:
            kind = devices, workers
            if kind not in clusters:
                clusters = {**clusters, kind: dx.Cluster.measure(*kind)}
                console.print(f"{devices} {workers}: {clusters[kind]} {clusters[kind].device}")
            kernels = dx.analysis.time_kernels(mod, clusters[kind], devices)
            simulated = dx.analysis.simulate(
                mod, clusters[kind], microbatches=case.microbatches, kernels=kernels
            )
            measured = measure(case, executable, workers, options.repeats)
            runs.append(Run(case, workers, measured, simulated.seconds))
            console.print(
                f"{case.name:40} {workers:10} measured {measured * 1e3:9.3f} ms, "
                f"simulated {simulated.seconds * 1e3:9.3f} ms, "
                f"ratio {simulated.seconds / measured:.2f}",
                highlight=False,
            )
    console.print(summary(runs))
    console.print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.csv:
        with Path(options.csv).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["model", "plan", "mesh", "batch", "workers", "measured", "simulated"])
            for run in runs:
                case = run.case
                mesh = "x".join(map(str, case.mesh))
                words = (case.model.name, case.plan, mesh, case.batch, run.workers)
                writer.writerow([*words, run.measured, run.simulated])


if __name__ == "__main__":
    main()
