"""Kernels of planned programs, compiled and timed by themselves on the cores that workers have."""

from __future__ import annotations

import contextlib
import math
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.analysis import post_order_visit

from distir_ext._analysis.steps import Step
from distir_ext._compile import cpu
from distir_ext._compile.cpu_kernels import schedule_kernels
from distir_ext._workers.cores import CONFIGURE_CORES, allowed_cores, share_of_cores

# Packed functions that compute on tensors, and need nothing else of a worker, by what steps say.
_TIMED = {"einsum": "distir.runtime.einsum"}
# Seconds for which each kernel is run.
_SECONDS = 0.02
# By something else than a number, in TVMScript.
_DIVISION = re.compile(r"(?://|%) (?!\d)|\bT\.(?:truncdiv|truncmod|Div)\(")
# Bytes that copies of a kernel's operands may take together.
_MOST_BYTES = 1 << 28


class KernelNames:
    """What a kernel is called whatever its module calls it: by what it computes on which shapes.

    Args:
        mod: The planned program that the kernels are of.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {name.name_hint: each for name, each in mod.functions_items()}
        self._known: dict[str, str] = {}

    def of_step(self, step: Step) -> str:
        """Of what a step runs."""
        return self.of(step.callee, step.shapes)

    def of(self, callee: str, shapes: Sequence[str]) -> str:
        """Of a kernel or packed function, with the shapes that it reads and writes."""
        if callee not in self._known:
            function = self._functions.get(callee)
            is_kernel = isinstance(function, tirx.PrimFunc)
            self._known[callee] = f"{_hash(function):016x}" if is_kernel else callee
        return " ".join((self._known[callee], *shapes))


def _hash(function: tirx.PrimFunc) -> int:
    nameless = function.without_attr("global_symbol")
    return tvm_ffi.structural_hash(nameless, map_free_vars=True) % 2**64


@dataclass
class TimedKernels:
    """Seconds by what :class:`KernelNames` says, and why some were not timed, by callee."""

    seconds: dict[str, float] = field(default_factory=dict)
    callees: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operand:
    shape: tuple[int, ...]
    dtype: str
    is_weight: bool

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Call:
    name: str
    callee: str
    arguments: tuple[Any, ...]
    """Operands, and what else the function takes."""


def time_calls(mod: tvm.IRModule, steps: Sequence[Step], num_workers: int) -> TimedKernels:
    """Times what the steps of a planned program run, each kernel once.

    As many threads as there are workers, at most one per core, run the same kernel at the same
    time.

    Args:
        mod: The planned program, for this host's CPU.
        steps: What of it is timed.
        num_workers: Workers that share the host.
    """
    found = TimedKernels()
    calls = list(_calls(mod, steps, found.skipped))
    if not calls:
        return found
    library = _compiled(mod, {call.callee for call in calls})
    # Weights are used once per call of the program: a kernel finds them where so many bytes fit.
    reused = max(
        (_bytes_of_params(f) for f in mod.functions.values() if isinstance(f, relax.Function)),
        default=0,
    )
    num_threads = min(num_workers, len(allowed_cores()))
    barrier = threading.Barrier(num_threads)
    taken: list[list[float]] = [[] for _ in range(num_threads)]
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            tvm_ffi.get_global_func(CONFIGURE_CORES)(*share_of_cores(rank, num_workers))
            for call in calls:
                arguments = _copies(call, reused)
                barrier.wait()
                taken[rank].append(_seconds_of_call(library, call, arguments))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    for call, times in zip(calls, zip(*taken, strict=True), strict=True):
        found.seconds[call.name] = max(times)
        found.callees[call.name] = call.callee
    return found


def _calls(mod: tvm.IRModule, steps: Sequence[Step], skipped: dict[str, str]) -> Iterator[_Call]:
    """One call of each kernel; what cannot be timed by itself is noted."""
    names = KernelNames(mod)
    wanted = {}
    for step in steps:
        if step.kind == "kernel" and _divides(mod[step.callee]):
            skipped[step.callee] = "it divides by integers, which may be 0"
        elif step.kind == "kernel" or step.callee in _TIMED:
            wanted[names.of_step(step)] = step.callee
        elif step.kind == "packed" and step.flops:
            skipped[step.callee] = "it runs on workers only"
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for call in _calls_in(function, names):
                if wanted.pop(call.name, None) is not None:
                    yield call
    skipped.update((callee, "its sizes are not known") for callee in wanted.values())


def _divides(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel divides integers by what it reads: a process does not survive a zero."""
    return _DIVISION.search(kernel.script()) is not None


def _calls_in(function: relax.Function, names: KernelNames) -> list[_Call]:
    params = set(function.params)
    calls: list[_Call] = []

    def visit(expr: relax.Expr) -> None:
        if not isinstance(expr, relax.Call):
            return
        arguments = list(expr.args)
        if isinstance(expr.op, tvm.ir.GlobalVar):
            callee = expr.op.name_hint
        elif isinstance(expr.op, relax.ExternFunc):
            callee = str(expr.op.global_symbol).rpartition(".")[2]
        else:
            return
        with contextlib.suppress(TypeError):
            read = tuple(_argument(each, params) for each in arguments)
            shapes = [_text(each) for each in read if isinstance(each, _Operand)]
            calls.append(_Call(names.of(callee, shapes), callee, read))

    post_order_visit(function.body, visit)
    return calls


def _argument(expr: relax.Expr, params: set[relax.Var]) -> Any:
    """An operand or a plain value.

    Raises:
        TypeError: It is something else, of a size that is not known, or of a type without arrays.
    """
    if isinstance(expr, tvm.ir.StringImm):
        return str(expr.value)
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise TypeError(str(expr))
    np.dtype(str(ty.dtype))
    is_weight = isinstance(expr, tvm.ir.GenericConst) or expr in params
    return _Operand(tuple(int(dim) for dim in ty.shape.values), str(ty.dtype), is_weight)


def _text(operand: _Operand) -> str:
    """As :attr:`Step.shapes` has it."""
    return f"{operand.dtype}[{', '.join(map(str, operand.shape))}]"


def _bytes_of_params(function: relax.Function) -> int:
    found = 0
    for param in function.params:
        with contextlib.suppress(TypeError):
            found += _argument(param, set()).bytes
    return found


def _compiled(mod: tvm.IRModule, callees: set[str]) -> Any:
    """The kernels among some functions, scheduled as ``dx.build`` does."""
    kernels = {
        name: function.with_attr("global_symbol", name.name_hint)
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and name.name_hint in callees
    }
    if not kernels:
        return None
    target = cpu.host_target()
    with target:
        return tvm.compile(schedule_kernels(tvm.IRModule(kernels)), target)


def _copies(call: _Call, reused: int) -> list[list[Any]]:
    """Lists of arguments: with as many copies of a weight as there are others between its uses."""
    operands = [each for each in call.arguments if isinstance(each, _Operand)]
    params = sum(each.bytes for each in operands if each.is_weight)
    count = max(1, min(reused, _MOST_BYTES) // params) if params else 1
    shared = [_value(each) for each in call.arguments]
    return [
        [
            _value(each) if copy and isinstance(each, _Operand) and each.is_weight else value
            for each, value in zip(call.arguments, shared, strict=True)
        ]
        for copy in range(count)
    ]


def _value(argument: Any) -> Any:
    """Numbers that stay numbers, and positions that every tensor has."""
    if not isinstance(argument, _Operand):
        return argument
    is_float = "float" in argument.dtype
    return tvm.runtime.tensor(np.full(argument.shape, 0.5 if is_float else 0, argument.dtype))


def _seconds_of_call(library: Any, call: _Call, arguments: list[list[Any]]) -> float:
    is_packed = call.callee in _TIMED
    function = tvm_ffi.get_global_func(_TIMED[call.callee]) if is_packed else library[call.callee]
    return float(
        tvm_ffi.get_global_func("distir.runtime.time_calls")(function, arguments, _SECONDS)
    )
