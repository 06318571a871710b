"""Compiles the kernels of a program apart from it, and times each on this host's cores.

``kernel_times`` calls it with a program after TVM's memory planning. Times of kernels with equal
code and shapes are averaged.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.analysis import post_order_visit

from distir_ext.analysis.programs.steps import Step
from distir_ext.compile.kernel_values import tir_pipeline
from distir_ext.compile.kernels.cpu.cpu_kernels import schedule_kernels
from distir_ext.native.machine import cpu_target
from distir_ext.native.machine.cores import CONFIGURE_CORES, allowed_cores, share_of_cores

# Packed functions that compute on tensors, and need nothing else of a worker, by what steps say.
_TIMED = {name: f"distir.runtime.{name}" for name in ("einsum", "convolution")}
# Seconds for which all kernels of a program are run, in rounds.
_SECONDS = 0.25
# How often one kernel is called in a round at most: further layers are like those before.
_MOST_CALLS = 32
# By something else than a number, in TVMScript, which has numbers such as 8 and T.int64(8).
_DIVISION = re.compile(r"(?://|%) (?!\d|T\.u?int\d+\(\d)|\bT\.(?:truncdiv|truncmod|Div)\(")
# Bytes that weights may take together: more than caches hold.
_MOST_BYTES = 1 << 28


class KernelNames:
    """Keys of kernels that do not depend on a module's names: hash of the code, and shapes.

    Args:
        mod: The planned program that the kernels are of.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {name.name_hint: each for name, each in mod.functions_items()}
        self._known: dict[str, str] = {}

    def of_step(self, step: Step) -> str:
        """Returns the key of the kernel that a step runs."""
        return self.of(step.callee, step.shapes)

    def of(self, callee: str, shapes: Sequence[str]) -> str:
        """Returns the key of a kernel or packed function on tensors of these shapes."""
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
    """Seconds by key of :class:`KernelNames`, and by callee the reasons for kernels not timed."""

    seconds: dict[str, float] = field(default_factory=dict)
    callees: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Operand:
    shape: tuple[int, ...]
    dtype: str
    memory: Hashable
    """Equal for operands that lie in the same memory."""

    is_weight: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def text(self) -> str:
        """As :attr:`Step.shapes` has it."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class _Call:
    name: str
    callee: str
    arguments: tuple[Any, ...]
    """Operands, and what else the function takes."""

    @property
    def operands(self) -> list[_Operand]:
        return [each for each in self.arguments if isinstance(each, _Operand)]


def time_calls(mod: tvm.IRModule, steps: Sequence[Step], num_workers: int) -> TimedKernels:
    """Times what the steps of a planned program run.

    As many threads as there are workers, at most one per core, run the kernels at the same time, in
    the order of the program, so that each finds in caches what it would find there.

    Args:
        mod: The planned program, for this host's CPU.
        steps: Steps that are timed.
        num_workers: Workers that share the host.
    """
    found = TimedKernels()
    calls = _calls(mod, steps, found.skipped)
    if not calls:
        return found
    library = _compiled(mod, {call.callee for call in calls})
    functions = [_function(library, call.callee) for call in calls]
    num_threads = min(num_workers, len(allowed_cores()))
    barrier = threading.Barrier(num_threads)
    taken: list[Sequence[float]] = [()] * num_threads
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            tvm_ffi.get_global_func(CONFIGURE_CORES)(*share_of_cores(rank, num_workers))
            arguments = _arguments(calls)
            barrier.wait()
            time = tvm_ffi.get_global_func("distir.runtime.time_calls")
            taken[rank] = [float(each) for each in time(functions, arguments, _SECONDS)]
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
    of_name: dict[str, list[float]] = {}
    for call, seconds in zip(calls, map(max, zip(*taken, strict=True)), strict=True):
        of_name.setdefault(call.name, []).append(seconds)
        found.callees[call.name] = call.callee
    found.seconds.update((name, statistics.mean(seconds)) for name, seconds in of_name.items())
    return found


def _calls(mod: tvm.IRModule, steps: Sequence[Step], skipped: dict[str, str]) -> list[_Call]:
    """The calls of kernels in program order; what cannot be timed by itself is noted."""
    names = KernelNames(mod)
    wanted = {}
    for step in steps:
        if step.kind == "kernel" and _divides(mod[step.callee]):
            skipped[step.callee] = "it divides by integers, which may be 0"
        elif step.kind == "kernel" or step.callee in _TIMED:
            wanted[names.of_step(step)] = step.callee
        elif step.kind == "packed" and step.flops:
            skipped[step.callee] = "it runs on workers only"
    left = dict.fromkeys(wanted, _MOST_CALLS)
    found = []
    for call in _CallReader(mod, names).calls():
        if left.get(call.name, 0) > 0:
            left[call.name] -= 1
            found.append(call)
    for name, count in left.items():
        if count == _MOST_CALLS:
            skipped[wanted[name]] = "its sizes are not known"
    return found


class _CallReader:
    """Reads the calls of kernels of all programs of a module, those of functions multiplied out."""

    def __init__(self, mod: tvm.IRModule, names: KernelNames) -> None:
        self._functions = {
            name: function
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function)
        }
        self._names = names
        self._found: list[_Call] = []

    def calls(self) -> list[_Call]:
        """In program order, one program behind the other."""
        called: set[str] = set()
        for function in self._functions.values():
            post_order_visit(function.body, lambda expr: called.update(self._callee_of(expr)))
        for name, function in self._functions.items():
            if name.name_hint not in called:
                self._read(function, {param: ("weight", param) for param in function.params})
        return self._found

    def _callee_of(self, expr: relax.Expr) -> list[str]:
        is_call = isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.GlobalVar)
        return [expr.op.name_hint] if is_call and expr.op in self._functions else []

    def _read(self, function: relax.Function, memory: dict[relax.Var, Hashable]) -> None:
        """Adds the calls of a function.

        Args:
            function: The function.
            memory: Memory of its parameters; that of its bindings is added.
        """

        def visit(block: relax.BindingBlock) -> None:
            for binding in block.bindings:
                value = binding.value
                if isinstance(value, relax.If):
                    for side in (value.true_branch, value.false_branch):
                        walk(side)
                elif isinstance(value, relax.Var):
                    memory[binding.var] = memory.get(value, value)
                elif isinstance(value, relax.Call):
                    storage = _storage(value, memory)
                    if storage is not None:
                        memory[binding.var] = storage
                    for _ in self._callee_of(value):
                        callee = self._functions[value.op]
                        given = [memory.get(each, each) for each in value.args]
                        self._read(callee, dict(zip(callee.params, given, strict=True)))
                    self._add(value, memory)

        def walk(expr: relax.Expr) -> None:
            if isinstance(expr, relax.SeqExpr):
                for block in expr.blocks:
                    visit(block)

        walk(function.body)

    def _add(self, call: relax.Call, memory: Mapping[relax.Var, Hashable]) -> None:
        if isinstance(call.op, tvm.ir.GlobalVar) and call.op not in self._functions:
            callee = call.op.name_hint
        elif isinstance(call.op, relax.ExternFunc):
            callee = str(call.op.global_symbol).rpartition(".")[2]
        else:
            return
        with contextlib.suppress(TypeError):
            read = tuple(_argument(each, memory) for each in call.args)
            shapes = [each.text for each in read if isinstance(each, _Operand)]
            self._found.append(_Call(self._names.of(callee, shapes), callee, read))


def _storage(call: relax.Call, memory: Mapping[relax.Var, Hashable]) -> Hashable:
    """Returns the storage that an allocated tensor lies in; None for other calls."""
    if isinstance(call.op, tvm.ir.Op) and call.op.name == "relax.memory.alloc_tensor":
        storage = call.args[0]
        return ("storage", memory.get(storage, storage))
    return None


def _divides(kernel: tirx.PrimFunc) -> bool:
    """Returns whether a kernel divides integers by its input: a zero there ends the process."""
    return _DIVISION.search(kernel.script()) is not None


def _argument(expr: relax.Expr, memory: Mapping[relax.Var, Hashable]) -> Any:
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
    place = memory.get(expr, expr) if isinstance(expr, relax.Var) else expr
    is_weight = not isinstance(expr, relax.Var) or (
        isinstance(place, tuple) and place[0] == "weight"
    )
    return _Operand(tuple(int(dim) for dim in ty.shape.values), str(ty.dtype), place, is_weight)


def _compiled(mod: tvm.IRModule, callees: set[str]) -> Any:
    """The kernels among some functions, scheduled as ``dx.build`` does."""
    kernels = {
        name: function.with_attr("global_symbol", name.name_hint)
        for name, function in mod.functions_items()
        if isinstance(function, tirx.PrimFunc) and name.name_hint in callees
    }
    if not kernels:
        return None
    target = cpu_target.host_target()
    with target:
        scheduled = schedule_kernels(tvm.IRModule(kernels))
        return tvm.compile(scheduled, target, tir_pipeline=tir_pipeline(for_cpu=True))


def _arguments(calls: Sequence[_Call]) -> list[list[Any]]:
    """Builds the arguments of each call; operands in the same memory are one tensor."""
    weights: dict[Hashable, _Operand] = {}
    for call in calls:
        weights.update((each.memory, each) for each in call.operands if each.is_weight)
    part = min(1.0, _MOST_BYTES / max(1, sum(each.bytes for each in weights.values())))
    numbers: dict[Hashable, int] = {}
    of_text: dict[str, int] = {}
    for memory, each in weights.items():
        numbers[memory] = of_text[each.text] = of_text.get(each.text, -1) + 1
    tensors: dict[Hashable, Any] = {}

    def value(argument: Any) -> Any:
        if not isinstance(argument, _Operand):
            return argument
        key: Hashable = (argument.memory, argument.text)
        if argument.is_weight:
            # Where all weights are too many, some lie in the memory of others.
            count = max(1, int(part * (of_text[argument.text] + 1)))
            key = (numbers[argument.memory] % count, argument.text)
        if key not in tensors:
            tensors[key] = _value(argument)
        return tensors[key]

    return [[value(each) for each in call.arguments] for call in calls]


def _value(operand: _Operand) -> Any:
    """Numbers that stay numbers, and positions that every tensor has."""
    is_float = "float" in operand.dtype
    return tvm.runtime.tensor(np.full(operand.shape, 0.5 if is_float else 0, operand.dtype))


def _function(library: Any, callee: str) -> Any:
    return tvm_ffi.get_global_func(_TIMED[callee]) if callee in _TIMED else library[callee]
