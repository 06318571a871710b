"""How fast this host is as a worker has it, timed by the programs that ``dx.build`` makes."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext._runtime.pipeline import Pipeline
from distir_ext.annotate import annotate
from distir_ext.building import build_executable
from distir_ext.mesh import Mesh
from distir_ext.session import Session

_REPEATS = 9
# Rows of a square product that BLAS computes at full speed; of a matrix that no cache holds; of
# what takes no time.
_PRODUCT, _STREAM, _TINY = 512, 4096, 4
# Rows of matrices of 256 KiB and 4 MiB, which caches of different sizes hold.
_CACHED = (256, 1024)
# Rows of what is computed by element.
_ELEMENTS = 256
# Columns of what workers add up: a message of a few bytes, and those of 64 KiB to 16 MiB, between
# which caches are left.
_SHORT, _LONG = 8, (1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)


@dataclass(frozen=True)
class DeviceSpeed:
    """What one of several workers has of the host."""

    flops: float
    """Operations per second on float32, of a library's products."""
    loops: float
    """Of kernels that TVM generates."""
    transcendentals: float
    """Per second, of these kernels."""
    bandwidth: float
    """Bytes per second."""
    caches: dict[float, float]
    """Bytes per second of kernels that access at most so many bytes."""
    launch: float
    """Seconds of a kernel that does next to nothing."""
    step: float
    """Seconds of a call that does next to nothing, on all workers."""
    memory: float
    """Bytes, an equal part for each worker."""


def measure_device(num_workers: int, workers: str) -> DeviceSpeed:
    """The speed of each worker while all of them do the same."""

    def per_step(program: _Program, steps: int) -> float:
        return _per_step(num_workers, workers, [program], steps)[0]

    launch = per_step(_products((_TINY, _TINY)), 64)
    product = per_step(_products((_PRODUCT, _PRODUCT)), 4)
    stream = per_step(_products((1, _STREAM)), 4)
    cached = [per_step(_products((1, rows)), 32) for rows in _CACHED]
    # Chains of operators by element become one kernel each, whose values stay in registers.
    arithmetic = per_step(_by_element(lambda x, w: op.add(op.multiply(x, w), w)), 8)
    # Where tanh is written out it has its operand several times, so that long chains explode.
    tanh = per_step(_by_element(lambda x, w: op.tanh(op.add(x, w))), 1)
    bandwidth = 4 * _STREAM**2 / stream
    return DeviceSpeed(
        2 * _PRODUCT**3 / product,
        2 * _ELEMENTS**2 / arithmetic,
        _ELEMENTS**2 / tanh,
        bandwidth,
        {
            4.0 * rows**2: max(4 * rows**2 / seconds, bandwidth)
            for rows, seconds in zip(_CACHED, cached, strict=True)
        },
        launch,
        _seconds_of_step(num_workers, workers),
        psutil.virtual_memory().total / num_workers,
    )


def measure_link(num_workers: int, workers: str) -> tuple[float, dict[float, float]]:
    """Seconds of a small all-reduce, and bytes per second of larger ones by what a worker sends."""
    short = _seconds_of_sum(num_workers, workers, _SHORT, 64)
    rates = {}
    for columns in _LONG:
        long = _seconds_of_sum(num_workers, workers, columns, 8 if columns < _LONG[-1] else 2)
        sent = 2 * (num_workers - 1) / num_workers * 4 * columns
        # Other work on the host may make the small one look as slow.
        rates[sent] = sent / max(long - short, _LEAST * long)
    return short, rates


def _seconds_of_sum(num_workers: int, workers: str, columns: int, steps: int) -> float:
    programs = [_sums(columns, sharded) for sharded in (True, False)]
    with_sum, without = _per_step(num_workers, workers, programs, steps)
    return max(with_sum - without, _LEAST * with_sum)


def _seconds_of_step(num_workers: int, workers: str) -> float:
    mesh = Mesh((num_workers,), ("worker",))
    mod, (x, weight) = _products((_TINY, _TINY))(1, mesh)
    with Session(mesh, workers=workers) as session:
        model = session.load(build_executable(mod), params=[weight])
        pipeline = model["main"].pipeline(1)
        taken = [_seconds_of_run(pipeline, x) for _ in range(4 * _REPEATS)]
    return statistics.median(taken)


# Part of a time that a difference of times is taken to be at least, where noise hides it.
_LEAST = 0.1

_Program = Callable[[int, Mesh], tuple[tvm.IRModule, list[np.ndarray]]]


def _products(shape: Sequence[int]) -> _Program:
    """A chain of products of x with one square matrix, which every worker computes as a whole."""

    def write(steps: int, mesh: Mesh) -> tuple[tvm.IRModule, list[np.ndarray]]:
        size = shape[1]
        mod = _chain(shape, [(size, size)], steps, lambda x, w: op.matmul(x, w))
        plan = {"x": (None, None), "w0": (None, None)}
        return annotate(mod, mesh, plan), [_values(shape), _values((size, size)) / size]

    return write


def _by_element(step: Callable[..., relax.Expr]) -> _Program:
    """A chain of steps on x and a matrix of its shape."""

    def write(steps: int, mesh: Mesh) -> tuple[tvm.IRModule, list[np.ndarray]]:
        shape = (_ELEMENTS, _ELEMENTS)
        plan = {"x": (None, None), "w0": (None, None)}
        values = _values(shape) / _ELEMENTS
        return annotate(_chain(shape, [shape], steps, step), mesh, plan), [values, values]

    return write


def _sums(columns: int, sharded: bool) -> _Program:
    """A chain of two thin products, whose result the workers add up where weights are sharded."""

    def write(steps: int, mesh: Mesh) -> tuple[tvm.IRModule, list[np.ndarray]]:
        inner = len(mesh.device_ids) if sharded else 1
        shapes = [(columns, inner), (inner, columns)]
        mod = _chain((1, columns), shapes, steps, lambda x, v, w: op.matmul(op.matmul(x, v), w))
        axis = mesh.axis_names[0] if sharded else None
        plan = {"x": (None, None), "w0": (None, axis), "w1": (axis, None)}
        values = [_values(shape) / columns for shape in shapes]
        return annotate(mod, mesh, plan), [_values((1, columns)), *values]

    return write


def _chain(
    shape: Sequence[int],
    weights: Sequence[Sequence[int]],
    steps: int,
    step: Callable[..., relax.Expr],
) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x, *others = (
        relax.Var(name, relax.TensorType(size, "float32"))
        for name, size in [("x", shape), *((f"w{i}", size) for i, size in enumerate(weights))]
    )
    with builder.function("main", [x, *others], {"num_input": 1}):
        value = x
        for _ in range(steps):
            value = builder.emit(builder.normalize(step(value, *others)))
        builder.emit_func_output(value)
    return builder.get()


def _per_step(
    num_workers: int, workers: str, programs: Sequence[_Program], steps: int
) -> list[float]:
    """Seconds of a step of each program: what twice as many steps take more.

    Programs run in turns, so that all of them meet the same other work on the host.
    """
    mesh = Mesh((num_workers,), ("worker",))
    with contextlib.ExitStack() as sessions:
        runs: list[Callable[[], float]] = []
        for program in programs:
            for count in (steps, 2 * steps):
                mod, values = program(count, mesh)
                session = sessions.enter_context(Session(mesh, workers=workers))
                model = session.load(build_executable(mod), params=values[1:])
                runs.append(partial(_seconds_of_run, model["main"].pipeline(1), values[0]))
        rounds = [[run() for run in runs] for _ in range(_REPEATS + 1)][1:]
    best = [min(times) for times in zip(*rounds, strict=True)]
    return [
        max(twice - once, _LEAST * once) / steps
        for once, twice in zip(best[::2], best[1::2], strict=True)
    ]


def _seconds_of_run(pipeline: Pipeline, x: np.ndarray) -> float:
    """From the first worker's begin to the last one's end."""
    pipeline(x)
    return pipeline.timeline.seconds


def _values(shape: Sequence[int]) -> np.ndarray:
    return np.ones(shape, "float32")
