"""Runs the demonstrations: partition, run on workers, compare with the unpartitioned program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tvm
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from tvm import relax

from distir_ext.analysis import (
    collective_table,
    collectives,
    sharding_table,
    shardings,
    simulate,
)
from distir_ext.compile.entry import build, lower
from distir_ext.demo.case import Array, Case
from distir_ext.demo.forum import forum_case, megatron_case
from distir_ext.demo.llama import llama_case
from distir_ext.mesh.cluster import Cluster
from distir_ext.passes.transform import PropagateSharding
from distir_ext.session.session import Hosts, Session
from distir_ext.text.tables import print_tables

CASES: Mapping[str, Callable[[], Case]] = {
    "megatron": megatron_case,
    "llama": llama_case,
    "forum": forum_case,
}

# Reductions in another order change float32 sums by some 1e-7; a wrong shard changes them by 1.
LIMIT = 1e-5

TARGET = "llvm"

SIMULATED = "H100"

NEXT = """
[bold]Next[/]
  distir report --help           these tables for your own module: TVMScript, ONNX, torch.export
  docs/first_ten_lines.md        the same from Python: a table, a timeline and a picture
  docs/interop/torch.md          a Hugging Face model on several workers by its own plan"""


def run_demo(
    console: Console, names: Sequence[str] | None = None, workers: str | Hosts = "threads"
) -> int:
    """Runs cases and prints, for each, its placements, collectives and error.

    Args:
        console: Output; progress is shown if it is a terminal.
        names: Names in :data:`CASES`; all of them by default.
        workers: Kind of the workers, as for :class:`distir_ext.Session`.

    Returns:
        The exit status: 0, or 1 if a result differs by more than :data:`LIMIT`.
    """
    failed = []
    for name in CASES if names is None else names:
        error = run_case(CASES[name](), console, workers)
        if not error <= LIMIT:  # also true for NaN
            failed.append(name)
    if failed:
        console.print(f"[bold red]wrong results:[/] {', '.join(failed)}")
        return 1
    console.print(NEXT, highlight=False)
    return 0


def run_case(case: Case, console: Console, workers: str | Hosts = "threads") -> float:
    """Runs and prints one case.

    Returns:
        The relative root mean square error against the unpartitioned program; NaN if one of the
        two results has a NaN.
    """
    kind = workers if isinstance(workers, str) else f"on {len(workers.addresses)} hosts"
    with _progress(console) as progress:
        task = progress.add_task(case.name, total=5, step="")

        def step(text: str) -> None:
            progress.update(task, step=text)

        def done() -> float:
            progress.advance(task)
            return time.perf_counter()

        step("unpartitioned program")
        expected = run_unpartitioned(case)
        start = done()

        step("propagation")
        propagated = PropagateSharding()(case.annotate(case.module))
        done()

        step("lowering")
        lowered = lower(propagated)
        partitioned = done()

        step("compilation")
        executable = build(propagated, target=TARGET)
        compiled = done()

        step(f"{case.workers} workers ({kind})")
        with Session(case.workers, workers=workers) as session:
            model = session.load(executable, params=case.weights)
            loaded = time.perf_counter()
            actual = np.asarray(model[case.function](*case.inputs.values()).numpy())
            stepped = done()

    error = relative_rmse(actual, expected)
    console.print(f"\n[bold]{case.name}[/]: {case.title}")
    tables = [sharding_table(shardings(lowered)), collective_table(collectives(lowered))]
    print_tables(tables, console)
    timeline = simulate(propagated, Cluster.preset(SIMULATED))
    console.print(f"timeline, simulated for {SIMULATED}\n\n{timeline}\n", highlight=False)
    verdict = "[green]ok[/]" if error <= LIMIT else "[bold red]wrong[/]"
    console.print(
        f"relative RMSE against the unpartitioned program {error:.2e} "
        f"(limit {LIMIT:.0e}): {verdict}"
    )
    console.print(
        f"{case.workers} workers ({kind}); partition {_milliseconds(partitioned - start)}, "
        f"compile {_milliseconds(compiled - partitioned)}, first step "
        f"{_milliseconds(stepped - loaded)}"
    )
    return error


def run_unpartitioned(case: Case) -> Array:
    """The result of the program as it was written, compiled and run by TVM alone."""
    machine = relax.VirtualMachine(tvm.compile(case.module, TARGET), tvm.cpu())
    arguments = [tvm.runtime.tensor(value) for value in case.arguments]
    return np.asarray(machine[case.function](*arguments).numpy())


def relative_rmse(actual: Array, expected: Array) -> float:
    """Returns the root mean square of the difference over that of the expected values.

    Raises:
        ValueError: The shapes or element types differ.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        raise ValueError(
            f"the partitioned program returns {actual.dtype} {actual.shape}, "
            f"the unpartitioned one {expected.dtype} {expected.shape}"
        )
    wide = expected.astype(np.float64)
    difference = math.sqrt(np.mean((actual.astype(np.float64) - wide) ** 2))
    size = math.sqrt(np.mean(wide**2))
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms"
