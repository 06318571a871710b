"""Measures the speed of this host as a worker sees it, with programs of ``dx.build``."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import psutil
import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.analysis.measured.collective_times import Times, group_sizes, measure_collectives
from distir_ext.annotate.patterns import annotate
from distir_ext.compile.building import build_executable
from distir_ext.mesh.cluster import Cluster, Link
from distir_ext.mesh.device import Device
from distir_ext.mesh.mesh import Mesh
from distir_ext.native.collective_records import names
from distir_ext.session.model import Model
from distir_ext.session.pipeline import Pipeline
from distir_ext.session.session import Session
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.progress import counting_bar

_REPEATS = 9
# Rows of a square product that BLAS computes at full speed; of a matrix that no cache holds; of
# what takes no time.
_PRODUCT, _STREAM, _TINY = 512, 4096, 4
# Microbatches behind the first one.
_QUEUED = 15
# Layers of small products, and their rows and columns.
_LAYERS, _ROWS, _NARROW = 64, 16, 64
# Rows of matrices of 256 KiB and 4 MiB, which caches of different sizes hold.
_CACHED = (256, 1024)
# Rows of what is computed by element.
_ELEMENTS = 256


@dataclass(frozen=True)
class DeviceSpeed:
    """Speed of the host that one of several workers gets."""

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
    """Seconds that a kernel costs besides its own: memory, shapes, the interpreter."""
    step: float
    """Seconds of a call that does next to nothing, on all workers."""
    queued_step: float
    """Of a later one of several microbatches."""
    memory: float
    """Bytes, an equal part for each worker."""


@dataclass(frozen=True)
class HostSpeed:
    """Speed of the host for one of several workers, and times of their collectives."""

    device: DeviceSpeed
    times: Times


def measure_host(num_workers: int, workers: str) -> HostSpeed:
    """The speed of each worker while all of them do the same, and of collectives among them.

    Raises:
        ValueError: There are no such workers.
    """
    total = _DEVICE_PROGRAMS + len(group_sizes(num_workers))
    with (
        Session(num_workers, workers=workers) as session,
        counting_bar("measuring this host", total) as advance,
    ):
        device = _measure_device(_Bench(session, num_workers, advance))
        return HostSpeed(device, measure_collectives(session, num_workers, advance))


@dataclass(frozen=True)
class _Bench:
    session: Session
    num_workers: int
    advance: Callable[[], None]

    def per_step(self, program: _Program, steps: int) -> float:
        """Returns the seconds of a step: the extra time of twice as many steps."""
        once, twice = (self._run(program, count) for count in (steps, 2 * steps))
        rounds = [(once(), twice()) for _ in range(_REPEATS + 1)][1:]
        self.advance()
        shorter = min(seconds for seconds, _ in rounds)
        longer = min(seconds for _, seconds in rounds)
        return max(longer - shorter, _LEAST * shorter) / steps

    def launch(self) -> float:
        """Seconds that TVM's virtual machine takes for itself for each kernel of a program."""
        mod, values = _layers(Mesh((self.num_workers,), ("worker",)))
        model = self.session.load(build_executable(mod), params=values[1:])
        profile = model["main"].profile(values[0], repeat=_REPEATS, warmup=2)
        own = {(step.repetition, step.device): step.duration for step in profile.steps}
        for event in profile.events:
            own[event.repetition, event.device] -= event.duration
        self.advance()
        # Other work on the host shows in some calls only.
        return max(statistics.quantiles(own.values())[0] / _LAYERS, 1e-9)

    def seconds_of_steps(self) -> tuple[float, float]:
        """Times a call that computes next to nothing, and a further microbatch of it."""
        model, x = self._load(_products((_TINY, _TINY)), 1)
        alone = partial(_seconds_of_run, model["main"].pipeline(1), x)
        many = partial(_seconds_of_run, model["main"].pipeline(_QUEUED + 1), _repeated(x))
        rounds = [(alone(), many()) for _ in range(4 * _REPEATS)]
        self.advance()
        first, all_of_them = (statistics.median(taken) for taken in zip(*rounds, strict=True))
        return first, max(all_of_them - first, 0.0) / _QUEUED

    def _run(self, program: _Program, steps: int) -> Callable[[], float]:
        model, x = self._load(program, steps)
        return partial(_seconds_of_run, model["main"].pipeline(1), x)

    def _load(self, program: _Program, steps: int) -> tuple[Model, np.ndarray]:
        mod, values = program(steps, Mesh((self.num_workers,), ("worker",)))
        return self.session.load(build_executable(mod), params=values[1:]), values[0]


_DEVICE_PROGRAMS = 6 + len(_CACHED)


def _measure_device(bench: _Bench) -> DeviceSpeed:
    launch = bench.launch()
    product = bench.per_step(_products((_PRODUCT, _PRODUCT)), 4)
    stream = bench.per_step(_products((1, _STREAM)), 4)
    cached = [bench.per_step(_products((1, rows)), 32) for rows in _CACHED]
    # Chains of operators by element become one kernel each, whose values stay in registers.
    arithmetic = bench.per_step(_by_element(lambda x, w: op.add(op.multiply(x, w), w)), 8)
    # TVM writes tanh out, and repeats its operand, so that long chains explode.
    tanh = bench.per_step(_by_element(lambda x, w: op.tanh(op.add(x, w))), 1)
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
        *bench.seconds_of_steps(),
        psutil.virtual_memory().total / bench.num_workers,
    )


# Part of a time that a difference of times is taken to be at least, where noise hides it.
_LEAST = 0.1

_Program = Callable[[int, Mesh], tuple[tvm.IRModule, list[np.ndarray]]]


def _layers(mesh: Mesh) -> tuple[tvm.IRModule, list[np.ndarray]]:
    """A chain of products with a small matrix each, which together leave a cache."""
    shapes = [(_NARROW, _NARROW)] * _LAYERS
    number = itertools.count()
    mod = _chain((_ROWS, _NARROW), shapes, _LAYERS, lambda x, *w: op.matmul(x, w[next(number)]))
    plan = {"x": (None, None)} | {f"w{i}": (None, None) for i in range(_LAYERS)}
    values = [_values((_ROWS, _NARROW)), *(_values(each) / _NARROW for each in shapes)]
    return annotate(mod, mesh, plan), values


def _products(shape: Sequence[int]) -> _Program:
    """A chain of products of x with one square matrix, in which all is replicated."""

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


def _seconds_of_run(pipeline: Pipeline, x: np.ndarray) -> float:
    """Returns the seconds from the first worker's begin to the last one's end."""
    pipeline(x)
    return pipeline.timeline.seconds


def _repeated(x: np.ndarray) -> np.ndarray:
    """Repeats an input for all microbatches."""
    return np.tile(x, (_QUEUED + 1, 1))


def _values(shape: Sequence[int]) -> np.ndarray:
    return np.ones(shape, "float32")


@short_tracebacks
def measure_cluster(num_workers: int = 2, workers: str = "threads") -> Cluster:
    """This host's CPU, as each of several workers has it that run at the same time.

    Small programs are built and timed on workers, which takes some seconds and shows a
    progress bar: products of float32 matrices and sums of products by element for the
    operations, tanh for the transcendentals, products with vectors for the bandwidth of memory
    and of caches, what the virtual machine takes beside many small kernels for the launch of
    one, a tiny program for a step, and a queue of it for later ones, and every kind of
    collective, of 1 KiB to 16 MiB, among all workers and in equal groups of them at once.
    Smaller floats and float64 are taken to be computed at the same rate as float32, and at half
    of it.

    Args:
        num_workers: Workers that share the host, at least 2.
        workers: Their kind, ``"threads"`` or ``"processes"``.

    Raises:
        ValueError: There are fewer, or no such workers.
    """
    if num_workers < 2:
        raise ValueError(f"links are measured between at least 2 workers, not {num_workers}")
    host = measure_host(num_workers, workers)
    speed = host.device
    device = Device(
        "CPU",
        {"float64": speed.flops / 2, "float32": speed.flops},
        memory=speed.memory,
        bandwidth=speed.bandwidth,
        launch=speed.launch,
        caches=speed.caches,
        target="llvm",
        loops=speed.loops,
        transcendentals=speed.transcendentals,
        step=speed.step,
        queued_step=speed.queued_step,
    )
    # Plans take one launch and bandwidth: those of sums over all workers.
    sums = sorted(host.times[names.all_reduce][num_workers].items())
    launch = sums[0][1]
    share = 2 * (num_workers - 1) / num_workers
    bandwidth = statistics.geometric_mean(share * size / seconds for size, seconds in sums[2:])
    # The time of a small collective is not divided into its launch and its messages.
    link = Link(latency=0.0, bandwidth=bandwidth)
    return Cluster.uniform(link, launch=launch, device=device, times=host.times)


Cluster.measure = staticmethod(measure_cluster)
