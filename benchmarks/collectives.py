"""Times collectives on CPU workers, beside copying the same bytes and beside Gloo.

    python benchmarks/collectives.py [--sizes 1K 64K 16M ...] [--collective NAME ...]
                                     [--workers 2 4] [--repeats 15] [--no-gloo] [--no-processes]
    python benchmarks/collectives.py --hosts 2 --gigabits 1 10 [--milliseconds 0.1] [--workers 2 4]
                                     [--libraries TCP MPI ...] [--repeats 3] [--rounds 3]

A size is what the larger of a worker's two tensors has, float32. The columns are this project's
workers that are threads, those that are processes, ``torch.distributed`` with Gloo (processes; if
torch is installed), as many threads that each copy a tensor of this size (memcpy), which is about
what a collective costs at least, and one thread that copies one. Each of them repeats calls
within its workers, so that only the first pays for being asked. Runs are interleaved, since other
processes slow some of them. Times are medians over the repeats, of the slowest worker; ratios are
medians of the ratios of neighbouring runs. Every result is compared with NumPy before it is timed.

With ``--hosts`` workers are on so many hosts, which are network namespaces with links of the stated
rate (root is needed): this project over TCP with TLS, as copies of a script have it, over MPI (the
mpiexec beside Python) as sessions use it by default and with ``bitwise=False``, and Gloo, of which
only the first encrypts. ``--libraries`` takes others of MPI, too: messages alone, and MPI's own
collectives wherever they can be. They are started one after the other, and again in each of the
rounds. The line is what the link would take for the least bytes that a host can send, and the
shares are those of it. The last column is what the busiest host sends over TCP, and the least.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from collective_workers.cases import COLLECTIVES, COPY, operand, shapes
from collective_workers.hosts import (
    GLOO,
    HOST_COLLECTIVES,
    LIBRARIES,
    TCP,
    least_bytes,
    measure_hosts,
)
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from distir_ext.params.host_array import host_array
from distir_ext.workers.processes import ProcessWorkers
from distir_ext.workers.threads import ThreadWorkers

LOOPS = "collective_workers.distir_loop"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
SIZES = [1 << 10, 64 << 10, 1 << 20, 16 << 20]
# A timed run moves so many bytes per worker, in at most so many calls.
RUN_BYTES = 32 << 20
MOST_CALLS = 200
THREADS, PROCESSES = "threads", "processes"
MEMCPY, ALONE = "memcpy", "one memcpy"


class Ours:
    """Workers of this project that run a collective, or copies."""

    def __init__(self, kind: str, num_workers: int) -> None:
        if kind == PROCESSES:
            self.workers = ProcessWorkers(range(num_workers), "cpu", imports=[LOOPS])
        else:
            importlib.import_module(LOOPS)
            self.workers = ThreadWorkers(range(num_workers), "cpu")
        self.num_workers = num_workers
        self.copies = kind in (MEMCPY, ALONE)
        self.collective = COPY
        self.tensors: list[list[object]] = []

    def _run(self, name: str, per_worker: Sequence[Sequence[object]]) -> list[float]:
        functions = [f"distir.benchmark.{name}"] * self.num_workers
        return self.workers.run(name, functions, per_worker)

    def prepare(self, collective: str, size: int) -> None:
        """Makes the tensors of all workers and checks the results of one call."""
        if not self.copies:
            self.collective = collective
        of = (self.collective, size, self.num_workers)
        self.tensors = []  # the old ones are dropped first
        arrays = [
            [host_array(operand(*of, rank)), host_array(np.full(shapes(*of)[1], -1, np.float32))]
            for rank in range(self.num_workers)
        ]
        shards = [[each.shard((0,), each.shape) for each in mine] for mine in arrays]
        self.tensors = self.workers.hold("hold", shards)
        self._run("check", [[*mine, *of, rank] for rank, mine in enumerate(self.tensors)])

    def seconds(self, calls: int) -> float:
        """Returns the seconds that one call takes: the mean of `calls` calls in a row."""
        arguments = (self.collective, self.num_workers, calls)
        return max(self._run("seconds", [[*mine, *arguments] for mine in self.tensors])) / calls

    def close(self) -> None:
        """Ends the workers."""
        self.workers.close()


class Gloo:
    """Workers that run the collectives of ``torch.distributed``."""

    def __init__(self, num_workers: int) -> None:
        script = Path(__file__).parent / "collective_workers" / "gloo_loop.py"
        self.folder = tempfile.TemporaryDirectory()
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(num_workers),
                 f"{self.folder.name}/store"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_workers)
        ]  # fmt: skip

    def _ask(self, line: str) -> float:
        for process in self.processes:
            assert process.stdin is not None
            print(line, file=process.stdin, flush=True)
        answers = [process.stdout.readline() for process in self.processes if process.stdout]
        if not all(answers):
            raise RuntimeError("a process of Gloo ended")
        return max(map(float, answers))

    def prepare(self, collective: str, size: int) -> None:
        """Prepares a collective, like ``Ours.prepare``."""
        self._ask(f"{collective} {size}")

    def seconds(self, calls: int) -> float:
        """Returns the seconds that one call takes, like ``Ours.seconds``."""
        return self._ask(str(calls)) / calls

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.communicate()
        self.folder.cleanup()


def measure(
    backends: dict[str, Ours | Gloo], collective: str, size: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds of a call, per backend and repeat."""
    for backend in backends.values():
        backend.prepare(collective, size)
    calls = max(1, min(MOST_CALLS, RUN_BYTES // size))
    times: dict[str, list[float]] = {name: [] for name in backends}
    for _ in range(repeats):
        for name, backend in backends.items():
            times[name].append(backend.seconds(calls))
    return times


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    """Median of one time over the other."""
    return f"{statistics.median(a / b for a, b in zip(above, below, strict=True)):.2f}"


def number_of_bytes(text: str) -> int:
    """The bytes that "64K" or "16M" says."""
    found = re.fullmatch(r"(\d+)([KM]?)", text)
    if found is None or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64K or 16M")
    return int(found[1]) * UNITS[found[2]]


def named(size: int) -> str:
    """The text of a size."""
    unit = next(name for name in ("M", "K", "") if size % UNITS[name] == 0)
    return f"{size // UNITS[unit]}{unit}"


def columns_of(names: Sequence[str]) -> dict[str, Callable[[dict[str, list[float]], int], str]]:
    """Returns the columns of a row: each makes its text of the times of a size, and the size."""

    def microseconds(name: str) -> Callable[[dict[str, list[float]], int], str]:
        return lambda times, _: f"{statistics.median(times[name]) * 1e6:.1f}"

    def over(above: str, below: str) -> Callable[[dict[str, list[float]], int], str]:
        return lambda times, _: ratio(times[above], times[below])

    def rate(name: str) -> Callable[[dict[str, list[float]], int], str]:
        return lambda times, size: f"{size / statistics.median(times[name]) / 1e9:.2f}"

    ours = [name for name in (THREADS, PROCESSES) if name in names]
    columns = {f"{name} µs": microseconds(name) for name in names}
    columns |= {f"{name} GB/s": rate(name) for name in ours}
    if GLOO in names:
        columns |= {f"Gloo / {name}": over(GLOO, name) for name in ours}
    return columns | {f"{name} / memcpy": over(name, MEMCPY) for name in ours}


def print_hosts(console: Console, options: argparse.Namespace) -> None:
    """Prints a table for each number of workers and each kind of link."""
    sizes = options.sizes
    collectives = [each for each in HOST_COLLECTIVES if each in options.collective]
    libraries = [each for each in options.libraries if each != GLOO or not options.no_gloo]
    for workers, gigabits, milliseconds in itertools.product(
        options.workers, options.gigabits, options.milliseconds
    ):
        if workers % options.hosts:
            continue
        found, delayed = measure_hosts(
            *(options.hosts, workers, gigabits, milliseconds, sizes, collectives),
            *(libraries, options.repeats, options.rounds),
        )
        link = f"{gigabits:g} Gbit/s" + (f", {milliseconds:g} ms" if delayed else ", no delay")
        names = list(found)
        title = f"{workers} workers on {options.hosts} hosts, {link}"
        table = Table("collective", "size", box=SIMPLE_HEAD, title=title)
        for name in names:
            table.add_column(f"{name} ms", justify="right")
        for name in names:
            table.add_column(f"{name} of line", justify="right")
        if TCP in found:
            table.add_column("sent MB", justify="right")
        for name, size in itertools.product(collectives, sizes):
            times = [statistics.median(found[each][name, size][0]) for each in names]
            least = least_bytes(name, size, options.hosts)
            line = least * 8 / gigabits / 1e9
            cells = [f"{each * 1e3:.2f}" for each in times]
            cells += [f"{line / each:.0%}" for each in times]
            if TCP in found:
                cells.append(f"{found[TCP][name, size][1] / 1e6:.3g} of {least / 1e6:.3g}")
            table.add_row(name, named(size), *cells)
        console.print(table)


def main() -> None:
    """Runs the benchmark and prints a table per number of workers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", type=number_of_bytes, default=SIZES)
    parser.add_argument("--collective", nargs="+", choices=COLLECTIVES, default=COLLECTIVES)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-gloo", action="store_true")
    parser.add_argument("--no-processes", action="store_true", help="no workers that are processes")
    parser.add_argument("--hosts", type=int, help="on so many hosts: network namespaces")
    parser.add_argument("--gigabits", nargs="+", type=float, default=[1, 10], help="of links")
    parser.add_argument("--milliseconds", nargs="+", type=float, default=[0.1], help="of links")
    parser.add_argument(
        "--libraries", nargs="+", choices=LIBRARIES, default=["TCP", "MPI", "MPI-unordered", "Gloo"]
    )
    parser.add_argument("--rounds", type=int, default=1, help="in which hosts are started anew")
    options = parser.parse_args()
    if min(options.repeats, options.rounds) < 1 or min(options.workers) < 1:
        parser.error("--repeats, --rounds and --workers take positive numbers")
    with_gloo = not options.no_gloo and importlib.util.find_spec("torch") is not None
    console = Console()
    if not console.is_terminal:
        console = Console(width=170)
    if options.hosts:
        print_hosts(console, options)
        return
    for num_workers in options.workers:
        if any(size % (4 * num_workers) for size in options.sizes):
            parser.error(f"sizes must divide into {num_workers} shards of float32")
        with ExitStack() as stack:
            backends: dict[str, Ours | Gloo] = {THREADS: Ours(THREADS, num_workers)}
            if not options.no_processes:
                backends[PROCESSES] = Ours(PROCESSES, num_workers)
            if with_gloo:
                backends[GLOO] = Gloo(num_workers)
            backends |= {MEMCPY: Ours(MEMCPY, num_workers), ALONE: Ours(ALONE, 1)}
            for backend in backends.values():
                stack.callback(backend.close)
            columns = columns_of(list(backends))
            title = f"{num_workers} workers on {len(os.sched_getaffinity(0))} cores"
            table = Table("collective", "size", *columns, box=SIMPLE_HEAD, title=title)
            table.columns[0].no_wrap = True
            for column in table.columns[1:]:
                column.justify = "right"
            for collective in options.collective:
                for size in options.sizes:
                    times = measure(backends, collective, size, options.repeats)
                    cells = [write(times, size) for write in columns.values()]
                    table.add_row(collective, named(size), *cells)
            console.print(table)
    if not with_gloo:
        why = "left out" if options.no_gloo else "not compared: torch is not installed"
        console.print(f"Gloo is {why}.")


if __name__ == "__main__":
    main()
