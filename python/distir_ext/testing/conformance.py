"""Checks a communication backend on programs that use all of it.

For authors of backends, and for whoever sets one up on a new machine::

    python -m distir_ext.conformance mine --workers processes

Programs are compiled and run on a session of the backend, and compared with NumPy: every
redistribution between placements of a matrix on two meshes, of sizes that shards divide and of
others; every reduction of several dtypes; halo exchanges; transfers between disjoint meshes. A
worker that fails has to end the call.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from rich.progress import track
from tvm import relax

from distir_ext.annotate.patterns import annotate
from distir_ext.compile.entry import build
from distir_ext.explain.user_rules import register_rule, unregister_rule
from distir_ext.mesh.mesh import Mesh
from distir_ext.session.session import Hosts, Session, WorkerError
from distir_ext.workers.backends import find_backend

_SHAPES = ((8, 12), (7, 10))
_DTYPES = ("float32", "float16", "int32", "int8")
_REDUCTIONS = ("sum", "max", "min", "prod", "mean")
_MODULE = "distir_ext.conformance"  # __name__ is "__main__" where this is run as a command
_FAIL = "distir.conformance.fail"
_FAILS_WITHIN = 30.0

Dims = tuple[Any, ...]
# Relative, of float16: it has 11 bits, and is summed in another order.
_TOLERANCE = {"float32": 1e-5, "float16": 4e-3}


@dataclass(frozen=True)
class _Case:
    """Function of one array, the shardings of array and result, and the expected result."""

    text: str
    array: np.ndarray[Any, Any]
    apply: Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]
    expected: np.ndarray[Any, Any]
    source: tuple[Mesh, Dims]
    target: tuple[Mesh, Dims] | None = None


class ConformanceError(AssertionError):
    """Error about a backend whose results are wrong; the message lists the failures."""


def check_backend(
    ccl: str,
    *,
    workers: str | Hosts = "threads",
    num_workers: int = 4,
    target: Any = "llvm",
    device: str | None = None,
    imports: str | Sequence[str] = (),
    progress: bool = False,
) -> int:
    """Runs the checks of a backend.

    Args:
        ccl: The name of the backend.
        workers: As for :class:`distir_ext.Session`.
        num_workers: Number of workers, even and at least 4.
        target: Target of the programs, as for :func:`distir_ext.build`.
        device: As for :class:`distir_ext.Session`.
        imports: Modules that worker processes import, to register the backend.
        progress: Whether to show a bar on the standard error stream.

    Returns:
        How many programs were checked.

    Raises:
        ConformanceError: At least one result is wrong, or a failing worker did not end its call.
        ValueError: There is no such backend, or the number of workers is odd or less than 4.
    """
    if num_workers < 4 or num_workers % 2:
        raise ValueError(f"num_workers is {num_workers}; it must be even and at least 4")
    modules = [imports] if isinstance(imports, str) else list(imports)
    modules.append(_MODULE)
    cases = list(_cases(num_workers))
    wrong = []
    open_session = functools.partial(
        Session, num_workers, ccl=ccl, workers=workers, imports=modules, device=device
    )
    with open_session() as session:
        batches = [cases[i : i + 16] for i in range(0, len(cases), 16)]
        for batch in track(batches, "Checking", disable=not progress):
            model = session.load(build(_module(batch), target))
            for i, case in enumerate(batch):
                result = model[f"case{i}"](case.array).numpy()
                if not _equals(result, case.expected):
                    wrong.append(f"{case.text}: got\n{result}\ninstead of\n{case.expected}")
    wrong += _failure(open_session, num_workers, target)
    if wrong:
        shown = "\n".join(wrong[:5])
        raise ConformanceError(f"{len(wrong)} of {len(cases) + 1} checks of {ccl} fail:\n{shown}")
    return len(cases) + 1


def _module(cases: Sequence[_Case]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    for i, case in enumerate(cases):
        x = relax.Var("x", relax.TensorType(case.array.shape, str(case.array.dtype)))
        with builder.function(f"case{i}", [x]):
            with builder.dataflow():
                y = builder.emit_output(case.apply(builder, x), "y")
            builder.emit_func_output(y)
    mod = builder.get()
    for i, case in enumerate(cases):
        mesh, dims = case.source
        mod = annotate(mod, mesh, {"x": dims}, f"case{i}")
        if case.target is not None:
            mod = annotate(mod, case.target[0], {"return": case.target[1]}, f"case{i}")
    return mod


def _cases(count: int) -> Iterator[_Case]:
    line, grid = Mesh((count,), ("x",)), Mesh((count // 2, 2), ("x", "y"))
    rng = np.random.default_rng(0)
    dtypes = itertools.cycle(_DTYPES)
    for mesh, shape in itertools.product((line, grid), _SHAPES):
        for source, target in itertools.product(_placements(mesh), repeat=2):
            if source != target:
                dtype = next(dtypes)
                array = rng.integers(-100, 100, shape).astype(dtype)
                text = f"redistribution of {dtype}{shape} from {source} to {target} on {mesh}"
                yield _Case(text, array, _same, array, (mesh, source), (mesh, target))
    for dtype, name in itertools.product(_DTYPES, _REDUCTIONS):
        if dtype.startswith("int") and name == "mean":
            continue
        array = _numbers(rng, (8, 12), dtype)
        for mesh, dims in ((line, ("x", None)), (grid, (("y", "x"), None)), (grid, ("y", "x"))):
            text = f"{name} of {dtype} along dimension 0 of {dims} on {mesh}"
            yield _Case(text, array, _reduction(name), _reduced(array, name), (mesh, dims))
    array = rng.standard_normal((24, 3)).astype("float32")
    for begin in (1, 5):
        text = f"slice from {begin} of a dimension in {count} shards"
        yield _Case(text, array, _slice(begin), array[begin:], (line, ("x", None)))
    halves = [
        Mesh((count // 2,), ("x",), device_ids=range(first, first + count // 2))
        for first in (0, count // 2)
    ]
    for source, target in itertools.product(_placements(halves[0]), repeat=2):
        text = f"transfer from {source} on {halves[0]} to {target} on {halves[1]}"
        array = rng.standard_normal((8, 12)).astype("float32")
        yield _Case(text, array, _same, array, (halves[0], source), (halves[1], target))


def _placements(mesh: Mesh) -> list[Dims]:
    """All shardings of a matrix along axes, without sub-axes."""
    found: list[Dims] = []
    for dims in itertools.product((None, 0, 1), repeat=len(mesh.axis_names)):
        axes = [
            tuple(name for name, dim in zip(mesh.axis_names, dims, strict=True) if dim == d)
            for d in (0, 1)
        ]
        found.append(tuple(names or None for names in axes))
    return found


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    if dtype.startswith("float"):
        return (rng.random(shape) + 0.5).astype(dtype)
    # Products of eight of them are numbers of eight bits.
    ones = np.where(rng.random(shape) < 0.5, -1, 1)
    ones[3] *= 2
    return ones.astype(dtype)


def _same(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    del builder
    return relax.op.negative(relax.op.negative(x))


def _reduction(name: str) -> Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]:
    return lambda builder, x: getattr(relax.op, name)(x, axis=[0])


def _reduced(array: np.ndarray[Any, Any], name: str) -> Any:
    wide = array.astype("float64") if array.dtype.kind == "f" else array
    return getattr(np, name)(wide, axis=0).astype(array.dtype)


def _slice(begin: int) -> Callable[[relax.BlockBuilder, relax.Expr], relax.Expr]:
    def apply(builder: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
        del builder
        return relax.op.strided_slice(x, [0], [begin], [int(x.ty.shape[0])])

    return apply


def _equals(result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return False
    tolerance = _TOLERANCE.get(str(expected.dtype), 0)
    return bool(np.allclose(result, expected, rtol=tolerance, atol=0))


@tvm_ffi.register_global_func(_FAIL, override=True)
def _fail_on_one(x: Any) -> Any:
    """Fails on the worker whose shard begins with 1."""
    if float(x.numpy().flat[0]) == 1:
        raise RuntimeError("a worker of the conformance checks fails, as it should")
    return x


def _failure(open_session: Callable[..., Session], num_workers: int, target: Any) -> list[str]:
    """Checks a call in which one worker fails before a collective of all; returns the problems."""
    mesh = Mesh((num_workers,), ("x",))
    builder = relax.BlockBuilder()
    type_ = relax.TensorType((num_workers, 2), "float32")
    x = relax.Var("x", type_)
    with builder.function("main", [x]):
        y = builder.emit(relax.op.call_pure_packed(_FAIL, x, ty_args=[type_]))
        builder.emit_func_output(builder.emit(relax.op.sum(relax.op.add(y, y))))
    mod = builder.get()
    array = np.zeros((num_workers, 2), "float32")
    array[num_workers // 2] = 1
    register_rule(_FAIL, "a b -> a b")
    try:
        executable = build(annotate(mod, mesh, {"x": ("x", None)}), target)
    finally:
        unregister_rule(_FAIL)
    with open_session(timeout=60) as session:
        main = session.load(executable)["main"]
        begin = time.monotonic()
        try:
            main(array)
        except WorkerError as error:
            seconds = time.monotonic() - begin
            if seconds > _FAILS_WITHIN:
                return [f"a failing worker ended its call after {seconds:.0f} s"]
            return [] if "as it should" in str(error) else [f"a failing worker gives {error}"]
    return ["a failing worker did not end its call"]


def command_parser() -> argparse.ArgumentParser:
    """The parser of the command ``python -m distir_ext.conformance``."""
    parser = argparse.ArgumentParser(
        prog="python -m distir_ext.conformance",
        description=__doc__.split("\n\n")[0],
        epilog="The exit status is 0 if all checks passed, 1 if not, and 2 for arguments that the "
        "command does not take.",
    )
    parser.add_argument(
        "ccl", help="name of the backend: cpu, mpi, nccl, or one that --imports registers"
    )
    parser.add_argument(
        "--workers",
        choices=("threads", "processes", "auto"),
        default="threads",
        help="what the workers are (default: threads); auto: of the copies of this command that a "
        "launcher has started",
    )
    parser.add_argument("--num-workers", type=int, default=4, help="an even number (default 4)")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default=None, help="cuda: mpi between GPUs"
    )
    parser.add_argument("--target", default=None, help="llvm, or cuda on GPUs, unless stated")
    parser.add_argument("--imports", nargs="*", default=[], help="modules that workers import")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command ``python -m distir_ext.conformance``; gives its exit status."""
    options = command_parser().parse_args(arguments)
    for module in options.imports:
        __import__(module)
    try:
        on_gpus = "cuda" in (options.device, find_backend(options.ccl).device)
        target = options.target or ("cuda" if on_gpus else "llvm")
        count = check_backend(
            options.ccl,
            workers=options.workers,
            num_workers=options.num_workers,
            target=target,
            device=options.device,
            imports=options.imports,
            progress=True,
        )
    except (ConformanceError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{options.ccl} with {options.workers}: {count} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
