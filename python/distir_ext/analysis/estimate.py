"""What a distributed program costs: operations, bytes, time, communication, memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from distir_ext import transform
from distir_ext._analysis.layers import layer_of_weight, layers_of_steps
from distir_ext._analysis.planned_program import plan, resolve_target
from distir_ext._analysis.steps import Body, FunctionSteps, Step, read_steps
from distir_ext._compile.steps import phase
from distir_ext._modules import check_module
from distir_ext._signature_attr import has_signature, read_signature
from distir_ext._spelling import did_you_mean
from distir_ext._tracebacks import short_tracebacks
from distir_ext.analysis.costs import (
    CollectiveCost,
    Cost,
    Estimate,
    KernelCost,
    Memory,
    OperatorCost,
    ProgramEstimate,
)
from distir_ext.cluster import Cluster, Device
from distir_ext.communication.collectives import CollectiveCall, collective_calls
from distir_ext.compile import lower_for


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
        mod: A module in any phase before LowerCCL. Redistributions that are not planned yet are
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
        >>> from distir_ext import Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> mod = annotate(builder.get(), Mesh(tp=2), {"w": (None, "tp")})
        >>> estimate(mod, Cluster.preset("H100")).flops  # (8, 8) times (8, 4): 2 * 8 * 8 * 4
        512.0
    """
    check_module(mod)
    if not isinstance(cluster, Cluster):
        raise TypeError(f"a cluster is a distir_ext.Cluster, not a {type(cluster).__name__}")
    device = cluster.device
    if device is None:
        raise ValueError(
            "the cluster says nothing of its devices; state device=, as in "
            "Cluster.uniform(device='H100'), or take Cluster.preset('H100')"
        )
    if phase(mod) == "runtime":
        raise ValueError(
            "the module has runtime calls instead of collectives; pass what "
            "distir_ext.transform.LowerDistIR gave, or an earlier one"
        )
    mod = _with_sizes(mod, sizes or {})
    target = resolve_target(device.target)
    lowered = lower_for(mod, None if has_signature(mod) else cluster, target)
    planned = plan(transform.LowerCCL()(lowered), target)
    data = cluster.as_data()
    reader = _Reader(
        device,
        read_steps(planned.kernels, data),
        read_steps(planned.operators, data),
        collective_calls(lowered),
    )
    signature = read_signature(lowered)
    programs = tuple(
        reader.program(name, function, program)
        for name, function in signature["functions"].items()
        for program in function["programs"]
    )
    return Estimate(cluster, programs, tuple(_notes(programs)))


def _notes(programs: Iterable[ProgramEstimate]) -> Iterator[str]:
    reasons = dict.fromkeys(
        f"{each.kernel}: {each.unknown}"
        for program in programs
        for each in program.kernels
        if each.unknown
    )
    if reasons:
        yield f"not counted exactly: {'; '.join(reasons)}"


def _with_sizes(mod: tvm.IRModule, sizes: Mapping[str, int]) -> tvm.IRModule:
    """The module with numbers for its symbolic sizes."""
    found: dict[str, None] = {}
    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            for param in function.params:
                found.update(dict.fromkeys(_symbolic(param.ty)))
    for name, value in sizes.items():
        if name not in found:
            known = f"they are {', '.join(found)}" if found else "it has none"
            raise ValueError(
                f"the module has no symbolic size {name!r}{did_you_mean(name, found)}; {known}"
            )
        if not (isinstance(value, int) and value > 0):
            raise ValueError(f"size {name!r} is a positive integer, not {value!r}")
    lacking = [name for name in found if name not in sizes]
    if lacking:
        stated = ", ".join(f"{name!r}: ..." for name in lacking)
        raise ValueError(f"symbolic sizes need values: sizes={{{stated}}}")
    if not sizes:
        return mod
    bind = tvm.transform.Sequential(
        [
            relax.transform.BindSymbolicVars(_of_function(function, sizes), name.name_hint)
            for name, function in mod.functions_items()
            if isinstance(function, relax.Function) and _of_function(function, sizes)
        ]
    )
    return bind(mod)


def _of_function(function: relax.Function, sizes: Mapping[str, int]) -> dict[str, int]:
    names = {name for param in function.params for name in _symbolic(param.ty)}
    return {name: value for name, value in sizes.items() if name in names}


def _symbolic(type_: Any) -> Iterator[str]:
    """The names of symbolic sizes in a type."""
    if isinstance(type_, relax.TupleType):
        for field in type_.fields:
            yield from _symbolic(field)
        return
    tensor = getattr(type_, "tensor_ty", type_)
    shape = getattr(tensor, "shape", None)
    values = getattr(shape if shape is not None else type_, "values", None) or ()
    for size in values:
        for var in tvm.tirx.analysis.undefined_vars(size):
            yield str(var.name)


@dataclass(frozen=True)
class _Times:
    """How often, and for which layer, a step runs."""

    step: Step
    function: str
    count: int
    layer: str
    collective: CollectiveCall | None


class _Reader:
    def __init__(
        self,
        device: Device,
        kernels: Mapping[str, FunctionSteps],
        operators: Mapping[str, FunctionSteps],
        collectives: Mapping[str, list[CollectiveCall]],
    ) -> None:
        self._device = device
        self._kernels = kernels
        self._operators = operators
        self._collectives = collectives
        self._seconds: dict[tuple[int, str], float] = {}

    def program(
        self, function: str, stated: Mapping[str, Any], program: Mapping[str, Any]
    ) -> ProgramEstimate:
        name = str(program["name"])
        steps = self._kernels[name]
        num_input = stated.get("num_input", 0)
        is_weight = [index >= num_input for index in program["params"]]
        is_weight += [False] * (len(steps.params) - len(is_weight))
        weights = {param for (param, _), held in zip(steps.params, is_weight, strict=False) if held}
        layers = {
            param: layer_of_weight(param) if param in weights else "" for param, _ in steps.params
        }
        run = list(self._run(self._kernels, name, 1, layers, weights, ""))
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
            tuple(
                self._collective(each)
                for each in run
                if each.step.kind == "collective"
                and each.collective is not None
                and each.collective.key is not None
            ),
            _memory(steps, weights),
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
        listed = iter(self._collectives.get(name, ()))
        counts = dict(self._counts(functions, function.body, count))
        for step, layer in zip(flat, of_step, strict=True):
            times = counts[id(step)]
            collective = next(listed, None) if step.kind == "collective" else None
            here = layer or outer
            callee = functions.get(step.callee) if step.kind == "call" else None
            if callee is None or callee.operator:
                yield _Times(step, name, times, here, collective)
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
        """How often each step runs, by id: of branches, the more expensive side."""
        for step in body.steps:
            yield id(step), count
            if not step.branches:
                continue
            costs = [self._seconds_of(functions, branch) for branch in step.branches]
            taken = costs.index(max(costs))
            for index, branch in enumerate(step.branches):
                yield from self._counts(functions, branch, count if index == taken else 0)

    def _seconds_of(self, functions: Mapping[str, FunctionSteps], body: Body) -> float:
        total = 0.0
        for step in body.steps:
            if step.branches:
                total += max(self._seconds_of(functions, branch) for branch in step.branches)
            elif step.kind == "call":
                key = (id(functions), step.callee)
                if key not in self._seconds:
                    callee = functions[step.callee].body
                    self._seconds[key] = self._seconds_of(functions, callee)
                total += self._seconds[key]
            elif step.kind == "collective":
                total += step.seconds
            else:
                total += self._cost((step,))[0].seconds
        return total

    def _operator(self, each: _Times) -> OperatorCost:
        step = each.step
        if step.kind == "call":
            callee = self._operators[step.callee]
            cost, bound, unknown = self._cost(callee.body.flat())
            name = callee.operator
        else:
            cost, bound, unknown = self._cost((step,))
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
        cost, bound, unknown = self._cost((step,))
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

    def _collective(self, each: _Times) -> CollectiveCost:
        step, call = each.step, each.collective
        assert call is not None
        assert call.key is not None
        return CollectiveCost(
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
        )

    def _cost(self, steps: Iterable[Step]) -> tuple[Cost, str, str]:
        """The cost of kernels one after the other, what bounds the longest, and what is unknown."""
        total, bound, longest, unknown = Cost(), "launch", -1.0, ""
        for step in steps:
            computing = sum(count / self._device.rate(dtype) for dtype, count in step.flops.items())
            moving = (step.bytes_read + step.bytes_written) / self._device.bandwidth
            times = {"compute": computing, "memory": moving, "launch": self._device.launch}
            slowest = max(times, key=lambda name: times[name])
            seconds = times[slowest]
            total += Cost(
                sum(step.flops.values()),
                step.transcendentals,
                step.bytes_read,
                step.bytes_written,
                seconds,
            )
            if seconds > longest:
                bound, longest = slowest, seconds
            unknown = unknown or step.unknown
        return total, bound, unknown


def _memory(function: FunctionSteps, weights: set[str]) -> Memory:
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
    )
