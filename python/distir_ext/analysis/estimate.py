"""Estimates the cost of a distributed program: operations, bytes, time, communication, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm

from distir_ext.analysis.costs import (
    CollectiveCost,
    Estimate,
    KernelCost,
    Memory,
    OperatorCost,
    ProgramEstimate,
)
from distir_ext.analysis.layers import layer_of_weight, layers_of_steps
from distir_ext.analysis.programs.planned import PlannedPrograms, planned_programs
from distir_ext.analysis.programs.steps import Body, FunctionSteps, Step
from distir_ext.analysis.roofline import Roofline, not_exact
from distir_ext.mesh.cluster import Cluster
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def estimate(
    mod: tvm.IRModule,
    cluster: Cluster,
    *,
    sizes: Mapping[str, int] | None = None,
) -> Estimate:
    """Estimates what each device computes, moves, sends and holds in one call of each function.

    The figures are those of the program that ``dx.build`` would compile for the cluster's device: a
    copy of the module is lowered, legalised and fused, and its memory is planned by TVM; no kernel
    is compiled. Operations and bytes are counted from the loops of the kernels. Times are bounds:
    of a kernel the roofline's (Williams and others, "Roofline: an insightful visual performance
    model", 2009), of a collective that of the model that redistributions are planned with.

    Args:
        mod: A module in any phase. Redistributions that are not planned yet are
            planned for the cluster.
        cluster: The devices, with a :class:`distir_ext.Device`.
        sizes: Values for symbolic sizes, by name.

    Returns:
        What operators, kernels and collectives cost on each device, and its memory.

    Raises:
        ValueError: The module has nothing distributed in it, or cannot be lowered; the cluster says
            nothing of its devices; a symbolic size has no value, or there is no such size.
        TypeError: It is no module, or no cluster.

    Example:
        >>> from tvm import relax
        >>> from distir_ext import Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> mod = annotate(builder.get(), Mesh(tp=2), {"w": (None, "tp")})
        >>> estimate(mod, Cluster.preset("H100")).flops  # (8, 8) times (8, 4): 2 * 8 * 8 * 4
        512.0
    """
    return estimate_of(planned_programs(mod, cluster, sizes))


def estimate_of(programs: PlannedPrograms) -> Estimate:
    """The estimate of programs that are planned already."""
    reader = _Reader(Roofline(programs.device), programs.kernels, programs.operators)
    costs = tuple(
        reader.program(name, function, program)
        for name, function in programs.signature["functions"].items()
        for program in function["programs"]
    )
    reasons = (
        f"{each.kernel}: {each.unknown}"
        for program in costs
        for each in program.kernels
        if each.unknown
    )
    return Estimate(programs.cluster, costs, tuple(not_exact(reasons)))


def peak_memory_of(
    cluster: Cluster, stated: Mapping[str, Any], kernels: Mapping[str, FunctionSteps]
) -> float:
    """:attr:`Estimate.peak_memory` of one function, without counting anything else.

    Args:
        cluster: The devices.
        stated: Signature of the function.
        kernels: The steps that run, by program.
    """
    costs = []
    for program in stated["programs"]:
        name, devices = str(program["name"]), tuple(map(int, program["device_ids"]))
        memory = _memory(kernels[name], _weights(kernels[name], stated, program))
        costs.append(ProgramEstimate(name, "", devices, (), (), (), memory))
    return Estimate(cluster, tuple(costs)).peak_memory


@dataclass(frozen=True)
class _Times:
    """A step, the layer it belongs to, and the number of times it runs."""

    step: Step
    function: str
    count: int
    layer: str


class _Reader:
    def __init__(
        self,
        roofline: Roofline,
        kernels: Mapping[str, FunctionSteps],
        operators: Mapping[str, FunctionSteps],
    ) -> None:
        self._roofline = roofline
        self._kernels = kernels
        self._operators = operators

    def program(
        self, function: str, stated: Mapping[str, Any], program: Mapping[str, Any]
    ) -> ProgramEstimate:
        name = str(program["name"])
        steps = self._kernels[name]
        weights = _weights(steps, stated, program)
        layers = {
            param: layer_of_weight(param) if param in weights else "" for param, _ in steps.params
        }
        run = list(self._run(self._kernels, name, 1, layers, weights, ""))
        held = tuple(self._held(each) for each in run if each.count and _holds(each.step))
        return ProgramEstimate(
            name,
            function,
            tuple(map(int, program["device_ids"])),
            tuple(
                self._operator(each)
                for each in self._run(self._operators, name, 1, layers, weights, "")
                if each.step.kind in ("kernel", "packed", "call")
            ),
            tuple(
                self._kernel(each)
                for each in run
                if each.step.kind in ("kernel", "packed") or each.step.flops
            ),
            tuple(self._collectives(run)),
            _memory(steps, weights, held),
        )

    def _run(
        self,
        functions: Mapping[str, FunctionSteps],
        name: str,
        count: int,
        layers: Mapping[str, str],
        weights: set[str],
        outer: str,
    ) -> Iterator[_Times]:
        """The steps of a function and of those that it calls, for so many calls of it."""
        function = functions[name]
        flat = list(function.body.flat())
        of_step = layers_of_steps(flat, layers, weights)
        counts = dict(self._counts(functions, function.body, count))
        for step, layer in zip(flat, of_step, strict=True):
            times = counts[id(step)]
            here = layer or outer
            callee = functions.get(step.callee) if step.kind == "call" else None
            if callee is None or callee.operator:
                yield _Times(step, name, times, here)
                continue
            read = [layers.get(each, "") for each in step.reads]
            inner = {param: "" for param, _ in callee.params}
            inner |= {
                param: of_argument
                for (param, _), of_argument in zip(callee.params, read, strict=False)
            }
            yield from self._run(functions, step.callee, times, inner, set(), here)

    def _counts(
        self, functions: Mapping[str, FunctionSteps], body: Body, count: int
    ) -> Iterator[tuple[int, int]]:
        """Yields how often each step runs, by id; only the costlier side of branches runs."""
        for step in body.steps:
            yield id(step), count
            if not step.branches:
                continue
            taken = self._roofline.side_taken(functions, step)
            for branch in step.branches:
                yield from self._counts(functions, branch, count if branch is taken else 0)

    def _held(self, each: _Times) -> tuple[float, float]:
        """The seconds of a step, and the bytes that are held meanwhile."""
        step = each.step
        is_collective = step.kind == "collective"
        seconds = step.seconds if is_collective else self._roofline.step_cost(step)[0].seconds
        return each.count * seconds, step.live_bytes

    def _operator(self, each: _Times) -> OperatorCost:
        step = each.step
        if step.kind == "call":
            callee = self._operators[step.callee]
            cost, bound, unknown = self._roofline.cost(callee.body.flat())
            name = callee.operator
        else:
            cost, bound, unknown = self._roofline.step_cost(step)
            name = step.callee
        return OperatorCost(
            each.function,
            step.name,
            name,
            step.shapes,
            cost,
            bound,
            each.count,
            each.layer,
            unknown,
        )

    def _kernel(self, each: _Times) -> KernelCost:
        step = each.step
        cost, bound, unknown = self._roofline.step_cost(step)
        return KernelCost(
            each.function,
            step.name,
            step.callee,
            step.shapes,
            cost,
            bound,
            each.count,
            each.layer,
            step.live_bytes,
            unknown,
        )

    def _collectives(self, run: Iterable[_Times]) -> Iterator[CollectiveCost]:
        """The collectives that send something."""
        for each in run:
            step = each.step
            if step.kind != "collective":
                continue
            call = step.collective
            if call is None:
                raise ValueError(
                    f"the collective {step.callee} that gives {step.name} is not in the lowered "
                    "program"
                )
            if call.key is not None:
                yield CollectiveCost(
                    each.function,
                    call.kind,
                    call.key.axes,
                    call.tensors,
                    call.operators,
                    call.key.group_size,
                    float(math.ceil(call.key.bytes)),
                    step.seconds,
                    each.count,
                    each.layer,
                    step.name,
                )


def _weights(
    steps: FunctionSteps, stated: Mapping[str, Any], program: Mapping[str, Any]
) -> set[str]:
    """The parameters of a program that are weights."""
    num_input = stated["num_input"]
    is_weight = [index >= num_input for index in program["params"]]
    is_weight += [False] * (len(steps.params) - len(is_weight))
    return {param for (param, _), held in zip(steps.params, is_weight, strict=False) if held}


def _holds(step: Step) -> bool:
    return step.kind in ("kernel", "packed", "collective") or bool(step.flops)


def _memory(
    function: FunctionSteps, weights: set[str], held: tuple[tuple[float, float], ...] = ()
) -> Memory:
    body = function.body
    alive = sorted(body.alive, key=lambda each: -each[1])
    at = body.steps[body.peak_step].name if 0 <= body.peak_step < len(body.steps) else ""
    return Memory(
        weights=sum(size for name, size in function.params if name in weights),
        inputs=sum(size for name, size in function.params if name not in weights),
        constants=body.constant_bytes,
        activations=body.peak_bytes,
        alive=tuple(alive),
        at=at,
        held=held,
    )
