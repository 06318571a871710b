"""Times decode steps with caches of keys and values, beside JAX with donated caches.

    python benchmarks/decode.py [--hidden 512 1024] [--batch 1 8] [--positions 128 1024 4096]
                                [--workers 1 2 4] [--steps 20] [--no-jax] [--small]

The model is the Llama of ``examples/generation/llama.py``: 2 layers, heads of 64 numbers, two
query heads for each key head, tensor parallel. A step takes one token per sequence and the caches,
which it makes longer by one position. JAX runs the same model with the same weights and shardings
on as many virtual devices in a process of its own: its caches have a fixed size, are given to be
overwritten (``donate_argnums``), and get the new position by ``dynamic_update_slice``. Both must
give the same tokens.

Steps of both are run in turn. Times are medians of processor time per step, of the whole process.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import distir_ext as dx
from generation.llama import LlamaConfig
from generation.serve import Task, partition, random_task

SMALL = (128, 2, 16, 2)
"""Hidden size, batch, positions and workers, to try the benchmark."""


@dataclasses.dataclass(frozen=True)
class Row:
    """Sizes of one row of the table."""

    hidden: int
    batch: int
    positions: int
    workers: int

    def config(self) -> LlamaConfig:
        """The model."""
        heads = max(self.workers, self.hidden // 64)
        return LlamaConfig(
            layers=2,
            hidden=self.hidden,
            heads=heads,
            kv_heads=max(self.workers, heads // 2),
            feed_forward=3 * self.hidden,
            vocabulary=8192 if self.hidden >= 512 else 256,
        )

    def caches(self) -> list[np.ndarray[Any, Any]]:
        """Keys and values of all layers, (positions, batch, kv_heads, head_size)."""
        config = self.config()
        shape = (self.positions, self.batch, config.kv_heads, config.head_size)
        generator = np.random.default_rng(3)
        return [generator.standard_normal(shape, "float32") for _ in range(2 * config.layers)]


class Ours:
    """A session that decodes."""

    def __init__(self, row: Row, task: Task) -> None:
        mesh = dx.Mesh((1, row.workers), ("dp", "tp"))
        self.session = dx.Session(mesh)
        self.decode = self.session.load(partition(task, mesh)[0], params=task.weights)["decode"]
        self.token, self.caches, self.at = task.prompt, tuple(row.caches()), row.positions

    def step(self) -> float:
        """Seconds of processor time of one step."""
        begin = time.process_time()
        at = np.full(1, self.at, "float32")
        token, self.caches = self.decode(self.token, at, self.caches)
        self.token = token.numpy()
        taken = time.process_time() - begin
        self.at += 1
        return taken


class Jax:
    """Steps of JAX on the same model, in a process of its own."""

    def __init__(self, row: Row, steps: int) -> None:
        script = Path(__file__).parent / "models" / "jax_decode.py"
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(dataclasses.asdict(row)), str(steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self) -> tuple[float, list[int]]:
        """Seconds of processor time of one step, and its tokens."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("JAX's process ended")
        taken, tokens = json.loads(line)
        return taken, tokens

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def measure(row: Row, steps: int, with_jax: bool) -> tuple[list[float], list[float]]:
    """Returns the times of our steps and of JAX's, after three that are not counted."""
    task = random_task(row.config(), row.batch, 1)
    ours, jax = Ours(row, task), Jax(row, steps + 3) if with_jax else None
    times: tuple[list[float], list[float]] = [], []
    for step in range(steps + 3):
        taken = ours.step()
        theirs = 0.0
        if jax is not None:
            theirs, tokens = jax.step()
            if tokens != ours.token.ravel().tolist():
                raise RuntimeError(f"{row}: step {step} gives other tokens than JAX")
        if step >= 3:
            times[0].append(taken)
            times[1].append(theirs)
    ours.session.close()
    if jax is not None:
        jax.close()
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 1024])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--positions", type=int, nargs="+", default=[128, 1024, 4096])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-jax", action="store_true", help="time this project only")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the benchmark")
    options = parser.parse_args(arguments)
    with_jax = not options.no_jax and importlib.util.find_spec("jax") is not None
    sizes = itertools.product(options.hidden, options.batch, options.positions, options.workers)
    columns = ["hidden", "batch", "positions", "workers", "processor ms"]
    table = Table(*columns, *(["JAX", "times JAX"] if with_jax else []), box=SIMPLE_HEAD)
    for column in table.columns:
        column.justify = "right"
    for each in [SMALL] if options.small else sizes:
        row = Row(*each)
        ours, theirs = measure(row, options.steps, with_jax)
        cells = [*map(str, each), f"{statistics.median(ours) * 1e3:.2f}"]
        if with_jax:
            ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
            cells += [f"{statistics.median(theirs) * 1e3:.2f}", f"{ratio:.2f}"]
        table.add_row(*cells)
    Console().print(table)


if __name__ == "__main__":
    main()
