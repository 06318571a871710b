"""Measures the controller's work to start worker processes, load weights and call a program.

    python benchmarks/control.py [--workers 1 4 16] [--weights 1 100 500] [--hosts 2 [--fanout 1]]
        [--calls 30]

Programs are tiny, so that what is measured is control: ``main(x)`` is ``x + w0``, with so many
weights of eight elements, which workers keep. Processor time is that of the controller alone, which
is this process; the time until a result is there depends on how many cores workers share. With
``--hosts`` workers are behind so many agents (``distir host``) of this machine, each with an equal
part of them. Memory is proportional (PSS): what processes share is divided among them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save_file
from tvm import relax

import distir_ext as dx

SIZE = 8
TOKEN = "of a benchmark, on loopback alone"


@dataclass
class Started:
    """One session.

    Attributes:
        seconds: Until it has started.
        memory: Of a worker, in bytes.
        descriptors: That the controller has open for it.
        threads: Of the controller, for it.
    """

    seconds: float
    memory: float
    descriptors: int
    threads: int


@dataclass
class Called:
    """One program on one session; times in seconds.

    Attributes:
        load: Until it is loaded.
        load_processor: Processor time of the controller for that.
        call: A call, until its result is here.
        processor: Processor time of the controller for that.
    """

    load: float
    load_processor: float
    call: float
    processor: float


def build(num_workers: int, num_weights: int) -> Any:
    """``main(x) = x + w0`` on so many devices, with more weights that are kept."""
    type_ = relax.TensorType((SIZE,), "float32")
    builder = relax.BlockBuilder()
    params = [relax.Var(name, type_) for name in ("x", *(f"w{i}" for i in range(num_weights)))]
    with builder.function("main", params, attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(relax.op.add(params[0], params[1]))
        builder.emit_func_output(y)
    mesh = dx.Mesh(d=num_workers)
    return dx.build(dx.annotate(builder.get(), mesh, {"x": (None,), r"w\d+": (None,)}))


@contextlib.contextmanager
def agents(count: int) -> Iterator[list[str]]:
    """Addresses of so many agents of this machine."""
    os.environ["DISTIR_EXT_TOKEN"] = TOKEN
    command = [sys.executable, "-m", "distir_ext", "host", "--bind", "127.0.0.1:0"]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        lines = [each.stdout.readline() for each in started if each.stdout is not None]
        yield [line.removeprefix("listening at ").strip() for line in lines]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            each.wait()


def proportional_memory(pid: int) -> int:
    """Returns the proportional memory (PSS) of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("Linux does not say how much memory a process has")


def resources() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    me = psutil.Process()
    return me.num_fds(), me.num_threads()


def workers_of(hosts: Sequence[str]) -> list[psutil.Process]:
    """The worker processes of the session that is open."""
    children = psutil.Process().children(recursive=bool(hosts))
    return [each for each in children if "_workers.start" in " ".join(each.cmdline())]


def call_times(model: Any, calls: int) -> tuple[float, float]:
    """Medians of the time of a call, and of the controller's processor time."""
    main, x = model["main"], np.ones(SIZE, "float32")
    walls, processors = [], []
    for _ in range(calls + 3):
        begin, busy = time.perf_counter(), time.process_time()
        y = main(x).numpy()
        walls.append(time.perf_counter() - begin)
        processors.append(time.process_time() - busy)
    if not np.array_equal(y, x + 1):
        raise AssertionError(f"x + 1 is not {y}")
    return statistics.median(walls[3:]), statistics.median(processors[3:])


def measure(
    num_workers: int,
    executables: dict[int, Any],
    hosts: Sequence[str],
    fanout: int | None,
    calls: int,
) -> tuple[Started, dict[int, Called]]:
    """One session of so many workers, and what it does with each executable."""
    kind = dx.Hosts(hosts, lost_after=120, fanout=fanout) if hosts else "processes"
    before = resources()
    begin = time.monotonic()
    called = {}
    with dx.Session(num_workers, workers=kind) as session, tempfile.TemporaryDirectory() as folder:
        seconds = time.monotonic() - begin
        after = resources()
        for num_weights, exe in executables.items():
            file = Path(folder) / f"{num_weights}.safetensors"
            save_file({f"w{i}": np.ones(SIZE, "float32") for i in range(num_weights)}, file)
            begin, busy = time.perf_counter(), time.process_time()
            model = session.load(exe, params=file)
            load = time.perf_counter() - begin, time.process_time() - busy
            called[num_weights] = Called(*load, *call_times(model, calls))
        memory = [proportional_memory(each.pid) for each in workers_of(hosts)]
    start = Started(seconds, statistics.mean(memory), after[0] - before[0], after[1] - before[1])
    return start, called


def table(title: str, columns: Sequence[str]) -> Table:
    """An empty one."""
    made = Table(box=SIMPLE_HEAD, title=title)
    for column in columns:
        made.add_column(column, justify="right")
    return made


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--weights", type=int, nargs="+", default=[1, 100, 500])
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--fanout", type=int, help="to how many hosts anybody passes on")
    parser.add_argument("--calls", type=int, default=30)
    arguments = parser.parse_args()
    where = f"{arguments.hosts} hosts" if arguments.hosts else "one host"
    starts = table(f"starts, {where}", ["workers", "s", "MB per worker", "descriptors", "threads"])
    columns = ["workers", *(f"{each} weights" for each in arguments.weights)]
    titles = {
        "load": "until it is loaded, ms",
        "load_processor": "a load, processor time of the controller, ms",
        "call": "until a result is here, ms",
        "processor": "a call, processor time of the controller, ms",
    }
    tables = {name: table(f"{title}, {where}", columns) for name, title in titles.items()}
    with agents(arguments.hosts) as hosts:
        for num_workers in arguments.workers:
            executables = {each: build(num_workers, each) for each in arguments.weights}
            start, called = measure(
                num_workers, executables, hosts, arguments.fanout, arguments.calls
            )
            starts.add_row(
                str(num_workers),
                f"{start.seconds:.1f}",
                f"{start.memory / 2**20:.1f}",
                str(start.descriptors),
                str(start.threads),
            )
            for name, each in tables.items():
                found = [f"{getattr(row, name) * 1e3:.2f}" for row in called.values()]
                each.add_row(str(num_workers), *found)
    console = Console()
    for each in (starts, *tables.values()):
        console.print(each)


if __name__ == "__main__":
    main()
