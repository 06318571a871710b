"""Measures the time and the memory that a session of worker processes takes to start.

    python benchmarks/session_start.py [--workers 4] [--repeats 5]

Two kinds of sessions are started in turns. Workers without modules of the user import tvm-ffi and
load native libraries. With ``imports=["distir_ext"]`` they import TVM and all of this package
first, as workers of every session did before. Times are medians; a ratio is the median of those of
neighbours. Processor time is that of one worker, which other processes change less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx

KINDS = {"native libraries": (), "all of TVM": ("distir_ext",)}
COLUMNS = ("until it has started, s", "processor time of a worker, s", "memory of a worker, MB")


def measure(num_workers: int, imports: tuple[str, ...]) -> tuple[float, float, float]:
    """Returns the numbers that :data:`COLUMNS` names."""
    begin = time.monotonic()
    with dx.Session(num_workers, workers="processes", imports=imports):
        seconds = time.monotonic() - begin
        workers = psutil.Process().children()
        processor = [sum(worker.cpu_times()[:2]) for worker in workers]
        memory = [worker.memory_info().rss / 2**20 for worker in workers]
    return seconds, statistics.mean(processor), statistics.mean(memory)


def main() -> None:
    """Prints a table of both kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    runs: dict[str, list[tuple[float, float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.repeats):
        for kind, imports in KINDS.items():
            runs[kind].append(measure(arguments.workers, imports))
    table = Table(box=SIMPLE_HEAD, title=f"{arguments.workers} worker processes")
    for column in ("imports", *COLUMNS):
        table.add_column(column, justify="left" if column == "imports" else "right")
    ratios = [
        tuple(mine / all_of_it for mine, all_of_it in zip(one, other, strict=True))
        for one, other in zip(*runs.values(), strict=True)
    ]
    for name, found in [*runs.items(), ("ratio", ratios)]:
        medians = [statistics.median(column) for column in zip(*found, strict=True)]
        table.add_row(name, *(f"{median:.2f}" for median in medians))
    Console().print(table)


if __name__ == "__main__":
    main()
