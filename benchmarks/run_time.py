"""Times a forward pass on CPU workers, beside JAX on as many virtual CPU devices.

    python benchmarks/run_time.py [--plan NAME ...] [--repeats 15] [--no-jax] [--small]

The model is the Llama of ``models/transformers.py``, hidden size 512, four layers, eight heads,
batch 8, sequence 128, float32: unpartitioned, and sharded by the plans of ``models/plans.py``, on
eight workers that share this machine's cores. JAX, if it is installed, runs the same model with
the same weights and shardings in a process of its own, and both must give the same logits.

The runs are interleaved, ours and JAX's in turn, since other processes slow some of them. Times
are medians: of a whole call with its input and its result on the host, and the processor time of
the process, which other processes change less. The ratio is the median of the ratios of
neighbouring runs. Collectives are timed in runs of their own; their share is of processor time, so
that waiting for other workers, whose turn it is on the cores, does not count.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import tvm_ffi
from models.plans import PLANS
from models.transformers import Llama, ModelConfig, build
from models.values import llama_values
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import distir_ext as dx

UNPARTITIONED = "unpartitioned"
PROGRAMS = [UNPARTITIONED, "tp8", "dp2_tp4", "fsdp8"]
CONFIG = ModelConfig(
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=8,
    feed_forward=1536,
    vocabulary=8192,
    batch=8,
    sequence=128,
)
SMALL = ModelConfig(
    layers=1,
    hidden=64,
    heads=8,
    kv_heads=8,
    feed_forward=64,
    vocabulary=128,
    batch=8,
    sequence=8,
)
COLLECTIVES = (
    "all_reduce",
    "shared_all_reduce",
    "shared_all_gather",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "slice",
    "transfer",
)
# Largest difference of logits, relative to their root mean square.
TOLERANCE = 1e-4

Times = tuple[float, float]
"""Seconds, and seconds of processor time."""


class Ours:
    """A program on workers of this process."""

    def __init__(self, name: str, config: ModelConfig) -> None:
        axes = PLANS[name].mesh if name in PLANS else {"all": 1}
        self.mesh = dx.Mesh(tuple(axes.values()), tuple(axes))
        model = Llama(None, config)
        shapes = {key: shape for key, (shape, _) in model.inputs().items()} | model.weights()
        plan = {
            re.escape(key): PLANS[name].dims(key, shape) if name in PLANS else (None,) * len(shape)
            for key, shape in shapes.items()
        }
        self.executable = dx.build(dx.annotate(build(Llama, config), self.mesh, plan))
        self.tokens, self.weights = llama_values(config)
        self.session = dx.Session(self.mesh)
        self.function = self.session.load(self.executable, params=self.weights)["main"]

    def run(self) -> tuple[Times, np.ndarray]:
        """One forward."""
        wall, processor = time.perf_counter(), time.process_time()
        logits = self.function(self.tokens).numpy()
        return (time.perf_counter() - wall, time.process_time() - processor), logits

    def collective_share(self, repeats: int) -> float:
        """Part of the processor time that workers spend in collectives."""
        with timed_collectives() as spent, dx.Session(self.mesh) as session:
            function = session.load(self.executable, params=self.weights)["main"]
            function(self.tokens)
            spent.clear()
            start = time.process_time()
            for _ in range(repeats):
                function(self.tokens)
            return sum(spent) / (time.process_time() - start)


@contextmanager
def timed_collectives() -> Iterator[list[float]]:
    """Collectives of programs that are loaded meanwhile append the processor time of their call."""
    spent: list[float] = []
    lock = threading.Lock()
    originals = {}

    def timed(function: tvm_ffi.Function):
        def call(*arguments):
            start = time.thread_time()
            try:
                return function(*arguments)
            finally:
                with lock:
                    spent.append(time.thread_time() - start)

        return call

    for name in COLLECTIVES:
        name = f"distir.runtime.{name}"
        originals[name] = tvm_ffi.get_global_func(name)
        tvm_ffi.register_global_func(name, timed(originals[name]), override=True)
    try:
        yield spent
    finally:
        for name, function in originals.items():
            tvm_ffi.register_global_func(name, function, override=True)


class Jax:
    """All programs in JAX, in a process of its own."""

    def __init__(self, names: Sequence[str], config: ModelConfig) -> None:
        script = Path(__file__).parent / "models" / "jax_forward.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(asdict(config)), *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, file: str = "") -> Times:
        """One forward; its logits are saved to the file."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(name, file, file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("JAX's process ended")
        wall, processor = json.loads(line)
        return wall, processor

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def check(logits: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Raises RuntimeError where two runs of one model do not agree."""
    scale = np.sqrt(np.mean(expected**2))
    difference = float(np.abs(logits - expected).max() / scale)
    if not difference < TOLERANCE:
        raise RuntimeError(f"{name}: logits differ by {difference:.1e} of their size")


def measure(
    names: Sequence[str], config: ModelConfig, repeats: int, with_jax: bool
) -> dict[str, tuple[list[Times], list[Times], float]]:
    """Per program our times, JAX's times, and the share of our collectives."""
    programs = {name: Ours(name, config) for name in names}
    jax = Jax(names, config) if with_jax else None
    expected = Ours(UNPARTITIONED, config).run()[1]
    for name, program in programs.items():
        check(program.run()[1], expected, name)
        if jax is not None:
            with tempfile.TemporaryDirectory() as folder:
                file = f"{folder}/logits.npy"
                jax.run(name, file)
                check(np.load(file), expected, f"JAX's {name}")
    ours: dict[str, list[Times]] = {name: [] for name in names}
    theirs: dict[str, list[Times]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, program in programs.items():
            ours[name].append(program.run()[0])
            if jax is not None:
                theirs[name].append(jax.run(name))
    if jax is not None:
        jax.close()
    result = {}
    for name, program in programs.items():
        program.session.close()
        result[name] = (ours[name], theirs[name], program.collective_share(max(1, repeats // 3)))
    return result


def median(times: Sequence[Times], which: int) -> str:
    """Formats the median in milliseconds; `which` is 0 for seconds, 1 for processor time."""
    return f"{statistics.median(each[which] for each in times) * 1e3:.1f}"


def ratio(ours: Sequence[Times], theirs: Sequence[Times], which: int) -> str:
    """Median of our time over theirs."""
    pairs = zip(ours, theirs, strict=True)
    return f"{statistics.median(a[which] / b[which] for a, b in pairs):.2f}"


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plan", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--no-jax", action="store_true", help="time this project only")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the benchmark")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats takes a positive number")
    with_jax = not options.no_jax and importlib.util.find_spec("jax") is not None
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    columns = ["plan", "ms", "processor ms", "in collectives"]
    if with_jax:
        columns += ["JAX ms", "processor ms", "times JAX", "processor"]
    table = Table(*columns, box=SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    found = measure(options.plan, SMALL if options.small else CONFIG, options.repeats, with_jax)
    for name, (ours, theirs, share) in found.items():
        row = [name, median(ours, 0), median(ours, 1), f"{share * 100:.1f}%"]
        if with_jax:
            row += [median(theirs, 0), median(theirs, 1)]
            row += [ratio(ours, theirs, 0), ratio(ours, theirs, 1)]
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    main()
