"""Times operators and blocks on CPU workers, beside torch and JAX.

    python benchmarks/operators.py [--rows REGEX] [--workers 1 4 8] [--repeats 9] [--no-jax]

The rows, in ``operators_by_library/rows.py``, are written in torch, from where this project imports
them, and in JAX. Inputs and weights are where they are used, and results stay there. The input is
sharded over the workers, which share this machine's cores, and over as many virtual devices of JAX,
which has a process of its own; torch has one thread.

Times are of the processor, of all threads of a process, medians of turns; the ratio is the median
of our turns to the faster of the neighbouring two of the others. The error is relative to the root
mean square of the result of torch in float64.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from operators_by_library.of_torch import FUNCTIONS
from operators_by_library.rows import ROWS, Row
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

import distir_ext as dx

LEAST = 0.02
"""Seconds of a turn, in which a call is repeated."""

TOLERANCES = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 3e-2, "int8": 0.0}
"""Largest errors by the dtype of a row."""

Timed = Callable[[int], float]
"""From a number of calls to seconds of one."""


class _Model(torch.nn.Module):
    """A function of the input with its weights, for export."""

    def __init__(self, row: Row, weights: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.function, self.count = FUNCTIONS[row.function], len(weights)
        for at, weight in enumerate(weights):
            self.register_buffer(f"w{at}", weight)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Calls the function."""
        return self.function(*inputs, *(getattr(self, f"w{at}") for at in range(self.count)))


def tensors(row: Row) -> list[torch.Tensor]:
    """Input and weights in torch."""
    bits = [each.view("uint16") if row.dtype == "bfloat16" else each for each in row.values()]
    found = [torch.from_numpy(each) for each in bits]
    return [each.view(torch.bfloat16) for each in found] if row.dtype == "bfloat16" else found


def wanted(row: Row) -> np.ndarray[Any, Any]:
    """The result of torch in float64."""
    if row.dtype == "int8":
        x, w = row.values()
        return x.astype("float64") @ w.astype("float64")
    wide = [each.double() if each.is_floating_point() else each for each in tensors(row)]
    return FUNCTIONS[row.function](*wide).double().numpy()


def products_of_int8(row: Row) -> Any:
    """A program of the row that torch's exporter does not write."""
    from tvm import relax

    builder = relax.BlockBuilder()
    x, w = (
        relax.Var(n, relax.TensorType(s, "int8")) for n, s in zip("xw", row.shapes, strict=True)
    )
    with builder.function("main", [x, w]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.matmul(x, w, out_dtype="int32"))
        builder.emit_func_output(result)
    return builder.get()


def ours(row: Row, workers: int) -> tuple[dx.Session, Timed, np.ndarray[Any, Any]]:
    """A session, what runs the row in it, and its result."""
    values = tensors(row)
    if row.dtype == "int8":
        mod, params = products_of_int8(row), {}
    else:
        model = _Model(row, values[row.inputs :]).eval()
        mod, params = dx.interop.torch.import_model(model, tuple(values[: row.inputs]))
    main = mod["main"]
    names = [str(each.name) for each in main.params]
    placed = dict(zip(names, values, strict=False)) | dict(params)
    mod["main"] = main.with_attr("num_input", 0)
    mesh = dx.Mesh(dp=workers)
    dims = ["dp" if at == row.sharded else None for at in range(values[0].ndim)]
    plan = {re.escape(name): tuple(dims) for name in names[: row.inputs]}
    session = dx.Session(mesh)
    call = session.load(dx.build(dx.annotate(mod, mesh, plan)), params=placed)["main"]
    result = call()
    found = torch.from_dlpack(result).double().numpy()

    def timed(calls: int) -> float:
        begin = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - begin) / calls

    return session, timed, found


def of_torch(row: Row) -> Timed:
    """Runs the row in torch."""
    function, values = FUNCTIONS[row.function], tensors(row)

    def timed(calls: int) -> float:
        with torch.inference_mode():
            begin = time.process_time()
            for _ in range(calls):
                function(*values)
            return (time.process_time() - begin) / calls

    return timed


class Jax:
    """The row in a process of JAX."""

    def __init__(self, row: Row, workers: int, size: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "operators_by_library.of_jax", row.name, str(workers)],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.result = np.frombuffer(self.process.stdout.read(8 * size), "float64")

    def timed(self, calls: int) -> float:
        """Seconds of processor time of one call."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{calls}\n".encode())
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self.process.communicate()


def error(found: np.ndarray[Any, Any], right: np.ndarray[Any, Any]) -> float:
    """The root mean square of the difference, relative to that of what is right."""
    scale = np.sqrt(np.mean(right**2)) or 1.0
    return float(np.sqrt(np.mean((found.ravel() - right.ravel()) ** 2)) / scale)


def measure(row: Row, workers: int, repeats: int, with_jax: bool) -> dict[str, float]:
    """Milliseconds of one call of each, the ratio and the error.

    Raises:
        RuntimeError: A result is not that of torch in float64.
    """
    right = wanted(row)
    session, timed, found = ours(row, workers)
    with session:
        runs: dict[str, Timed] = {"distir": timed, "torch": of_torch(row)}
        errors = {"distir": error(found, right)}
        jax = Jax(row, workers, right.size) if with_jax else None
        if jax is not None:
            runs["JAX"] = jax.timed
            errors["JAX"] = error(jax.result, right)
        for name, each in errors.items():
            if not each <= TOLERANCES[row.dtype]:
                raise RuntimeError(f"{row.name}: {name} has an error of {each:.2g}")
        calls = {name: max(1, round(LEAST / max(run(1), 1e-6))) for name, run in runs.items()}
        turns: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(repeats):
            for name, run in runs.items():
                turns[name].append(run(calls[name]))
        if jax is not None:
            jax.close()
    others = [turns[name] for name in turns if name != "distir"]
    ratios = [own / min(each) for own, *each in zip(turns["distir"], *others, strict=True)]
    return {
        **{name: 1e3 * statistics.median(each) for name, each in turns.items()},
        "ratio": statistics.median(ratios),
        "error": errors["distir"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="those in whose name this expression is found")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--no-jax", action="store_true", help="beside torch only")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with_jax = not options.no_jax and importlib.util.find_spec("jax") is not None
    todo = [
        (row, workers)
        for row in ROWS
        for workers in options.workers
        if re.search(options.rows, row.name) and row.fits(workers)
    ]
    columns = ["distir", "torch", *(["JAX"] if with_jax else []), "ratio", "error"]
    table = Table("row", "workers", *columns, box=SIMPLE_HEAD)
    ratios: dict[int, list[float]] = {}
    failures: list[str] = []
    for row, workers in track(todo, "measuring", console=Console(stderr=True), transient=True):
        try:
            figures = measure(row, workers, options.repeats, with_jax)
        except Exception as failure:
            failures.append(f"{row.name}, {workers} workers: {failure}")
            continue
        ratios.setdefault(workers, []).append(figures["ratio"])
        cells = [f"{figures[name]:.3g}" for name in columns]
        table.add_row(row.name, str(workers), *cells)
    console = Console()
    console.print(table)
    console.print("Milliseconds of processor time; ratio to the faster of the others.")
    for workers, each in ratios.items():
        mean = statistics.geometric_mean(each)
        console.print(f"{workers} workers: {len(each)} rows, geometric mean of ratios {mean:.3f}")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
