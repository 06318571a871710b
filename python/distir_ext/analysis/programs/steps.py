"""Reads the steps of a program (kernels, collectives, calls, branches) from the native library.

Each step has its work, its operands and the memory that is held while it runs. Input is a module
after TVM's memory planning; see ``src/analysis/program_steps.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi

from distir_ext.communication.collectives import CollectiveCall
from distir_ext.text.printable import shown


@dataclass(frozen=True)
class Step:
    """One call of a function."""

    kind: str
    """``"kernel"``, ``"packed"``, ``"collective"``, ``"call"`` or ``"branch"``."""
    name: str
    callee: str
    flops: Mapping[str, float]
    transcendentals: float
    bytes_read: float
    bytes_written: float
    unknown: str
    reads: tuple[str, ...]
    shapes: tuple[str, ...]
    groups: str
    plan: str
    collective: CollectiveCall | None
    """What the lowered module says of a collective; None in modules without notes."""
    place: int
    """Of a step that equal functions share, the place of what is said among their notes; or -1."""
    given_bytes: float
    """Bytes of a collective's argument."""
    made_bytes: float
    """Bytes of a collective's result."""
    seconds: float
    live_bytes: float
    after: tuple[int, ...] = ()
    """Earlier steps of the same body that give what it reads; -1 where that comes from outside."""
    branches: tuple[Body, ...] = ()


@dataclass(frozen=True)
class Body:
    """The steps of a function, or of one side of a branch, and its memory in bytes."""

    steps: tuple[Step, ...]
    result_after: tuple[int, ...]
    """The steps that give the result, as :attr:`Step.after`."""
    peak_bytes: float
    peak_step: int
    alive: tuple[tuple[str, float], ...]
    constant_bytes: float
    allocations: tuple[float, ...]

    def flat(self) -> Iterator[Step]:
        """All steps in program order, those of branches behind the branch."""
        for step in self.steps:
            yield step
            for branch in step.branches:
                yield from branch.flat()


@dataclass(frozen=True)
class FunctionSteps:
    """A Relax function."""

    name: str
    operator: str
    """The operator that it stands for, or empty."""
    params: tuple[tuple[str, float], ...]
    body: Body


_MOST_STEPS = 4_000_000
"""With calls expanded: analyses list as many."""


def check_size(functions: Mapping[str, FunctionSteps]) -> None:
    """Raises an error if a function has too many steps, those of its calls included.

    Functions that call another one twice, level by level, have twice as many steps at each level.

    Args:
        functions: Functions by name, callees included.

    Raises:
        ValueError: There are more than analyses can list; names the function.
    """
    sizes: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in sizes:
            called = (step.callee for step in functions[name].body.flat() if step.kind == "call")
            sizes[name] = sum(1 for _ in functions[name].body.flat()) + sum(map(size, called))
        return sizes[name]

    largest = max(functions, key=size, default="")
    if largest and sizes[largest] > _MOST_STEPS:
        raise ValueError(
            f"`{shown(largest)}` has {sizes[largest]:,} kernels, collectives and calls, those of "
            f"the functions that it calls included; at most {_MOST_STEPS:,} are analysed"
        )


def read_steps(mod: tvm.IRModule, cluster: Mapping[str, Any]) -> dict[str, FunctionSteps]:
    """The steps of every Relax function, callees before callers.

    Raises:
        ValueError: Functions call each other in a circle.
    """
    return _functions(tvm_ffi.get_global_func("distir.analysis.Steps")(cluster, mod))


class StepReader:
    """Reads the steps of modules one after the other; collectives take no time."""

    def __init__(self) -> None:
        self._read = tvm_ffi.get_global_func("distir.analysis.StepReader")()

    def __call__(self, mod: tvm.IRModule) -> dict[str, FunctionSteps]:
        """As :func:`read_steps`, without functions whose names one had that was read before."""
        return _functions(self._read(mod))


def _functions(rows: Any) -> dict[str, FunctionSteps]:
    return {
        str(row["name"]): FunctionSteps(
            str(row["name"]), str(row["operator"]), _pairs(row["params"]), _body(row)
        )
        for row in rows
    }


def _body(data: Any) -> Body:
    return Body(
        tuple(_step(row) for row in data["steps"]),
        tuple(map(int, data["result_after"])),
        float(data["peak_bytes"]),
        int(data["peak_step"]),
        _pairs(data["alive"]),
        float(data["constant_bytes"]),
        tuple(map(float, data["allocations"])),
    )


def _step(row: Sequence[Any]) -> Step:
    kind, name, callee, flops, transcendentals, read, written, unknown, reads, shapes = row[:10]
    groups, plan, note, given, made, seconds, live, after = row[10:18]
    return Step(
        str(kind),
        str(name),
        str(callee),
        {str(dtype): float(count) for dtype, count in flops.items()},
        float(transcendentals),
        float(read),
        float(written),
        str(unknown),
        tuple(map(str, reads)),
        tuple(map(str, shapes)),
        str(groups),
        str(plan),
        None if note is None or isinstance(note, int) else CollectiveCall.of(note),
        note if isinstance(note, int) else -1,
        float(given),
        float(made),
        float(seconds),
        float(live),
        tuple(map(int, after)),
        tuple(_body(branch) for branch in row[18:]),
    )


def _pairs(rows: Any) -> tuple[tuple[str, float], ...]:
    return tuple((str(name), float(size)) for name, size in rows)
