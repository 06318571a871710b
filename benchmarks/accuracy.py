"""Compares ``dx.analysis.simulate`` with runs on CPU workers.

Each program (a model, a plan, a mesh, a batch size) runs on worker threads and on worker processes;
what is measured is the time between the first begin and the last end on its devices. It is
simulated for what ``dx.Cluster.measure`` says of this host. The machine should have nothing else to
do::

    python benchmarks/accuracy.py            # all programs, some minutes
    python benchmarks/accuracy.py --quick    # a few
    python benchmarks/accuracy.py --csv runs.csv

It can be done in pieces, and what was measured can be simulated again by another cost model::

    python benchmarks/accuracy.py --workers threads --record threads.pickle
    python benchmarks/accuracy.py --workers processes --models wide deep --record wide.pickle
    python benchmarks/accuracy.py --replay threads.pickle wide.pickle
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import os
import pickle
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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
        """Number of calls of the program that make up the batch."""
        return MICROBATCHES if self.plan == "stages" else 1

    @property
    def name(self) -> str:
        """Name of the case in tables."""
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
class Measured:
    """Measurements of a program and of the host that ran it."""

    case: Case
    workers: str
    seconds: float
    cluster: dx.Cluster
    kernels: tuple[dx.analysis.KernelTimes, ...]
    """Timed at different times."""


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


def cases(quick: bool, models: Sequence[str], plans: Sequence[str]) -> Iterator[Case]:
    """Yields the cases to run, ordered by number of devices, then by model."""
    of_models: Sequence[Model] = [model for model in MODELS if model.name in models]
    meshes = MESHES[::2] if quick else MESHES
    if quick:
        of_models, plans = of_models[:2], plans[1::2]
    batches = QUICK_BATCHES if quick else BATCHES
    by_devices = itertools.groupby(meshes, math.prod)
    for of_devices in [list(each) for _, each in by_devices]:
        for model, mesh, plan, batch in itertools.product(of_models, of_devices, plans, batches):
            yield Case(model, plan, mesh, batch)


def measure(
    cases_: Iterable[Case], workers: str, rounds: int, repeats: int, console: Console
) -> Iterator[Measured]:
    """The median of several runs of each, of the round in which that is least.

    The programs of a model are run in turns, round after round, so that other work on the host
    meets some rounds of each of them and not all runs of one. Their kernels are timed before and
    after that, and both count alike.
    """
    for devices, of_devices in itertools.groupby(cases_, lambda case: math.prod(case.mesh)):
        cluster = dx.Cluster.measure(devices, workers)
        console.print(f"{devices} {workers}: {cluster} {cluster.device}")
        for _, group in itertools.groupby(of_devices, lambda case: case.model):
            listed = list(group)
            before = kernels_of(listed, cluster)
            seconds = seconds_of(listed, cluster, workers, rounds, repeats)
            after = kernels_of(listed, cluster)
            for case, taken, *kernels in zip(listed, seconds, before, after, strict=True):
                yield Measured(case, workers, taken, cluster, tuple(kernels))


def kernels_of(cases_: Iterable[Case], cluster: dx.Cluster) -> list[dx.analysis.KernelTimes]:
    """The kernels of each case, timed for as many workers as it has devices."""
    return [
        dx.analysis.time_kernels(each.module(), cluster, math.prod(each.mesh)) for each in cases_
    ]


def seconds_of(
    cases_: Sequence[Case], cluster: dx.Cluster, workers: str, rounds: int, repeats: int
) -> list[float]:
    """Times cases, planned for the cluster: the least median of a case's calls over all rounds."""
    devices = math.prod(cases_[0].mesh)
    medians: list[list[float]] = [[] for _ in cases_]
    with dx.Session(devices, workers=workers) as session:
        loaded = []
        for case in cases_:
            weights, x = case.model.values(case.batch)
            model = session.load(dx.build(case.module(), cluster=cluster), params=weights)
            loaded.append((model["main"].pipeline(case.microbatches), x))
        for _ in range(rounds):
            for (run, x), of_case in zip(loaded, medians, strict=True):
                taken = []
                for _ in range(repeats + 1):
                    run(x)
                    taken.append(run.timeline.seconds)
                of_case.append(statistics.median(taken[1:]))
    return [min(each) for each in medians]


def simulate(measured: Measured) -> Run:
    """Simulates a measured case on the cluster that was measured."""
    case = measured.case
    simulated = statistics.mean(
        dx.analysis.simulate(
            case.module(), measured.cluster, microbatches=case.microbatches, kernels=kernels
        ).seconds
        for kernels in measured.kernels
    )
    return Run(case, measured.workers, measured.seconds, simulated)


def recorded(files: Iterable[str]) -> Iterator[Measured]:
    """Reads the measurements that earlier runs saved in these files."""
    for name in files:
        with Path(name).open("rb") as file:
            yield from pickle.load(file)


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
        mesh = "x".join(map(str, run.case.mesh))
        for key in (run.workers, f"mesh {mesh}", run.case.plan, run.case.model.name):
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
    names = [model.name for model in MODELS]
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--workers", nargs="+", default=["threads", "processes"])
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--plans", nargs="+", default=PLANS, choices=PLANS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5, help="of each program in a round")
    parser.add_argument("--csv", help="a file for all runs, to which they are appended")
    parser.add_argument("--record", help="a file for what is measured")
    parser.add_argument("--replay", nargs="+", help="such files, instead of measuring")
    options = parser.parse_args()
    console = Console(width=120)
    if options.replay:
        source = recorded(options.replay)
    else:
        chosen = list(cases(options.quick, options.models, options.plans))
        source = itertools.chain.from_iterable(
            measure(chosen, workers, options.rounds, options.repeats, console)
            for workers in options.workers
        )
    measured, runs = [], []
    for each in source:
        measured.append(each)
        runs.append(run := simulate(each))
        console.print(
            f"{run.case.name:40} {run.workers:10} measured {run.measured * 1e3:9.3f} ms, "
            f"simulated {run.simulated * 1e3:9.3f} ms, ratio {run.simulated / run.measured:.2f}",
            highlight=False,
        )
    console.print(summary(runs))
    console.print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    if options.record:
        with Path(options.record).open("wb") as file:
            pickle.dump(measured, file)
    if options.csv:
        write_csv(Path(options.csv), runs)


def write_csv(path: Path, runs: Sequence[Run]) -> None:
    """Appends a row for each run."""
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(["model", "plan", "mesh", "batch", "workers", "measured", "simulated"])
        for run in runs:
            case = run.case
            mesh = "x".join(map(str, case.mesh))
            words = (case.model.name, case.plan, mesh, case.batch, run.workers)
            writer.writerow([*words, run.measured, run.simulated])


if __name__ == "__main__":
    main()
