"""How fast this host is as a worker has it, timed by the programs that ``dx.build`` makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import psutil
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.annotate import annotate
from distir_ext.compile import build
from distir_ext.mesh import Mesh
from distir_ext.session import Session

_REPEATS = 5
# Rows of a square product that BLAS computes at full speed; of a matrix that no cache holds; of
# what takes no time.
_PRODUCT, _STREAM, _TINY = 512, 4096, 4
# Columns of what workers add up: a message of a few bytes, and one of many.
_SHORT, _LONG = 8, 1 << 20


@dataclass(frozen=True)
class DeviceSpeed:
    """What one of several workers has of the host."""

    flops: float
    """Operations per second on float32."""
    bandwidth: float
    """Bytes per second."""
    launch: float
    """Seconds of a kernel that does next to nothing."""
    memory: float
    """Bytes, an equal part for each worker."""


def measure_device(num_workers: int) -> DeviceSpeed:
    """The speed of each worker while all of them do the same."""
    launch = _per_step(num_workers, _products((_TINY, _TINY)), 64)
    product = _per_step(num_workers, _products((_PRODUCT, _PRODUCT)), 4)
    stream = _per_step(num_workers, _products((1, _STREAM)), 4)
    return DeviceSpeed(
        2 * _PRODUCT**3 / product,
        4 * _STREAM**2 / stream,
        launch,
        psutil.virtual_memory().total / num_workers,
    )


def measure_link(num_workers: int) -> tuple[float, float]:
    """Seconds of a small all-reduce, and bytes per second that a worker sends in a large one."""
    found = []
    for columns in (_SHORT, _LONG):
        both = (_sums(columns, sharded) for sharded in (True, False))
        with_sum, without = (_per_step(num_workers, each, 4) for each in both)
        found.append(max(with_sum - without, 1e-7))
    short, long = found
    sent = 2 * (num_workers - 1) / num_workers * 4 * _LONG
    return short, sent / max(long - short, 1e-7)


_Program = Callable[[int, Mesh], tuple[tvm.IRModule, list[np.ndarray]]]


def _products(shape: Sequence[int]) -> _Program:
    """A chain of products of x with one square matrix, which every worker computes as a whole."""

    def write(steps: int, mesh: Mesh) -> tuple[tvm.IRModule, list[np.ndarray]]:
        size = shape[1]
        mod = _chain(shape, [(size, size)], steps, lambda x, w: op.matmul(x, w))
        plan = {"x": (None, None), "w0": (None, None)}
        return annotate(mod, mesh, plan), [_values(shape), _values((size, size)) / size]

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


def _per_step(num_workers: int, program: _Program, steps: int) -> float:
    """Seconds of a step: what a program of twice as many takes more."""
    mesh = Mesh((num_workers,), ("worker",))
    taken = []
    for count in (steps, 2 * steps):
        mod, values = program(count, mesh)
        with Session(mesh) as session:
            model = session.load(build(mod), params=values[1:])
            run = model["main"]
            run(values[0])
            times = []
            for _ in range(_REPEATS):
                begin = time.perf_counter()
                run(values[0])
                times.append(time.perf_counter() - begin)
            taken.append(min(times))
    return max(taken[1] - taken[0], 1e-9) / steps


def _values(shape: Sequence[int]) -> np.ndarray:
    return np.ones(shape, "float32")
