"""Compiles kernels once that differ only in where they begin to read.

A program that goes through a tensor step by step has a kernel per step::

    y[i, j] = x[i, 5, j] * 2        ->   y[i, j] = x[i, begin, j] * 2, called with begin = 5
    y[i, j] = x[i, 6, j] * 2                                          and with begin = 6

Constants that are added to integers become parameters of one kernel, where enough kernels are equal
otherwise. Constants that are the same in all of them stay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

FEWEST = 4
"""Fewer kernels are left as they are: those with constants are a little faster."""

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_DTYPES = ("int32", "int64")
_PLACEHOLDER = 1 << 29  # stands for each constant where kernels are compared


@dataclass(frozen=True)
class _Kernel:
    variable: tvm.ir.GlobalVar
    function: tirx.PrimFunc
    constants: tuple[tuple[str, int], ...]
    """Dtypes and values of those that are added to integers, in the order of the kernel."""

    form: tirx.PrimFunc
    """The kernel with placeholders instead of them."""


@dataclass(frozen=True)
class _Merged:
    variable: tvm.ir.GlobalVar
    """The kernel that is called instead."""

    arguments: tuple[tirx.IntImm, ...]
    """Of the parameters that it has more."""


def merge_kernels() -> tvm.transform.Pass:
    """The pass, for modules whose operators are kernels."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        replaced: dict[tvm.ir.GlobalVar, _Merged] = {}
        functions: dict[tvm.ir.GlobalVar, Any] = {}
        groups = _groups(mod)
        inputs = _inputs(mod) if groups else {}
        for alike in groups:
            group = [each for each in alike if each.variable in inputs]
            if len(group) < FEWEST:
                continue
            merged, rows = _merge(group, inputs[group[0].variable])
            variable = tvm.ir.GlobalVar(group[0].variable.name_hint)
            relax.expr._update_type(variable, merged.ty)
            functions[variable] = merged
            for kernel, row in zip(group, rows, strict=True):
                replaced[kernel.variable] = _Merged(variable, row)
        if not replaced:
            return mod
        for variable, function in mod.functions_items():
            if isinstance(function, relax.Function):
                functions[variable] = _with_calls(function, replaced)
            elif variable not in replaced:
                functions[variable] = function
        return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)

    return tvm.transform.module_pass(apply, opt_level=0, name="MergeKernels")


def _groups(mod: tvm.IRModule) -> list[list[_Kernel]]:
    """The kernels that are equal but for their constants, in order."""
    found: dict[int, list[list[_Kernel]]] = defaultdict(list)
    for variable, function in mod.functions_items():
        if not isinstance(function, tirx.PrimFunc) or not _may_change(function):
            continue
        kernel = _kernel(variable, function)
        if not kernel.constants:
            continue
        alike = found[tvm_ffi.structural_hash(kernel.form, map_free_vars=True)]
        for group in alike:
            if tvm_ffi.structural_equal(group[0].form, kernel.form, map_free_vars=True):
                group.append(kernel)
                break
        else:
            alike.append([kernel])
    return [group for alike in found.values() for group in alike if len(group) >= FEWEST]


def _may_change(function: tirx.PrimFunc) -> bool:
    """Returns whether a kernel is private and has known sizes, which have no constants in them."""
    if function.attrs is not None and "global_symbol" in function.attrs:
        return False
    shapes = [getattr(each.ty, "shape", None) for each in function.params]
    return all(
        shape is not None and all(isinstance(size, tirx.IntImm) for size in shape)
        for shape in shapes
    )


def _inputs(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, int]:
    """Numbers of inputs of the kernels that only ``R.call_tir`` refers to."""
    inputs: dict[tvm.ir.GlobalVar, int] = {}
    calls: dict[tvm.ir.GlobalVar, int] = defaultdict(int)
    uses: dict[tvm.ir.GlobalVar, int] = defaultdict(int)

    def use(variable: tvm.ir.GlobalVar) -> None:
        uses[variable] += 1

    def call(value: relax.Call) -> None:
        if value.op == _CALL_TIR and isinstance(value.args[1], relax.Tuple):
            calls[value.args[0]] += 1
            inputs[value.args[0]] = len(value.args[1].fields)

    for _, function in mod.functions_items():
        tvm_ffi.structural_walk(function, [(tvm.ir.GlobalVar, use), (tvm.ir.Call, call)])
    return {
        variable: inputs[variable] for variable, count in calls.items() if uses[variable] == count
    }


def _kernel(variable: tvm.ir.GlobalVar, function: tirx.PrimFunc) -> _Kernel:
    constants: list[tuple[str, int]] = []

    def replaced(constant: tirx.IntImm) -> tirx.IntImm:
        constants.append((str(constant.ty.dtype), int(constant.value)))
        return tirx.IntImm(constant.ty.dtype, _PLACEHOLDER)

    form = _with_constants(function, replaced)
    return _Kernel(variable, function, tuple(constants), form)


def _with_constants(
    function: tirx.PrimFunc, replaced: Callable[[tirx.IntImm], tirx.Expr]
) -> tirx.PrimFunc:
    """The kernel with other expressions for constants that are added to integers."""

    def add(value: tirx.Add) -> tirx.Add:
        constant = value.b
        if isinstance(constant, tirx.IntImm) and str(constant.ty.dtype) in _DTYPES:
            return tirx.Add(value.a, replaced(constant))
        return value

    return tvm_ffi.structural_map(function, (tirx.Add, add))


def _merge(
    group: Sequence[_Kernel], inputs: int
) -> tuple[tirx.PrimFunc, list[tuple[tirx.IntImm, ...]]]:
    """One kernel for all of a group, and the arguments that it takes for each of them.

    Args:
        group: The kernels.
        inputs: Number of their parameters before the results.
    """
    columns = list(zip(*(kernel.constants for kernel in group), strict=True))
    different = list(dict.fromkeys(each for each in columns if len(set(each)) > 1))
    parameters: dict[tuple[tuple[str, int], ...], tirx.Var] = {}
    at = iter(columns)

    def replaced(constant: tirx.IntImm) -> tirx.Expr:
        column = next(at)
        if column not in different:
            return constant
        if column not in parameters:
            name = f"begin{len(parameters)}"
            parameters[column] = tirx.Var(name, constant.ty.dtype)
        return parameters[column]

    function = _with_constants(group[0].function, replaced)
    more = [parameters[each] for each in different]
    merged = tirx.PrimFunc(
        [*function.params[:inputs], *more, *function.params[inputs:]],
        function.body,
        function.ret_type,
        function.attrs,
    )
    rows = [tuple(tirx.IntImm(*column[row]) for column in different) for row in range(len(group))]
    return merged, rows


def _with_calls(
    function: relax.Function, replaced: dict[tvm.ir.GlobalVar, _Merged]
) -> relax.Function:
    def call(value: relax.Call) -> relax.Call:
        if value.op != _CALL_TIR or value.args[0] not in replaced:
            return value
        merged = replaced[value.args[0]]
        inputs = [*value.args[1].fields, *merged.arguments]
        made = relax.op.call_tir(merged.variable, relax.Tuple(inputs), list(value.ty_args))
        relax.expr._update_type(made, value.ty)
        return made

    return tvm_ffi.structural_map(function, (tvm.ir.Call, call))
