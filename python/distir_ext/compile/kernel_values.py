"""Rewrites kernels, users' ones included, whose values TVM's own lowering would get wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, s_tir, tirx
from tvm.tirx import compilation_pipeline

from distir_ext.compile import integer_division, small_floats
from distir_ext.compile.kernels import opaque
from distir_ext.compile.kernels.legalizations import not_a_number

__all__ = ["fold_constants", "tir_pipeline"]

Rewrite = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def fold_constants() -> tvm.transform.Pass:
    """``relax.transform.FoldConstant``, which runs kernels on constants and lowers them itself."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        kernels = {
            variable: function
            for variable, function in mod.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        exact = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
        for variable, function in kernels.items():
            for rewrite in (*_before(for_cpu=True), _behind):
                function = rewrite(function)
            exact.update_func(variable, function)
        folded = relax.transform.FoldConstant()(exact)
        for variable, function in kernels.items():
            folded.update_func(variable, function)
        return folded

    return tvm.transform.module_pass(apply, opt_level=0, name="FoldConstant")


def tir_pipeline(*, for_cpu: bool) -> str:
    """The name of TVM's default pipeline for kernels, with rewrites before its passes and behind.

    Args:
        for_cpu: Whether kernels are compiled by LLVM, and not for a device with floats of 8 bits.
    """
    name = "distir_cpu" if for_cpu else "distir"
    if name not in compilation_pipeline.PIPELINE_MAP:

        def make() -> tuple[Any, ...]:
            lower, *finalize = tvm.tirx.get_tir_pipeline("default")
            before = [_map_kernels("KeepValues", each) for each in _before(for_cpu=for_cpu)]
            lower = tvm.transform.Sequential([*before, lower])
            return lower, *map(_with_values, finalize)

        compilation_pipeline.register_tir_pipeline(name, make)
    return name


def _before(*, for_cpu: bool) -> list[Rewrite]:
    of_cpus = [small_floats.REWRITES, small_floats.LAST] if for_cpu else []
    floats = map(_mapped, (*of_cpus, not_a_number.FOLDED))
    buffers = [small_floats.bits_in_buffers] if for_cpu else []
    return [_with_own_variables, integer_division.guard_divisions, *buffers, *floats]


def _with_own_variables(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel in which no two expressions define one variable, as expressions inlined twice do.

    The rewrites behind change one of the two, and TVM wants all values of a variable to be equal.
    """
    seen: set[tirx.Var] = set()
    is_repeated = False

    def see(node: Any) -> None:
        nonlocal is_repeated
        is_repeated = is_repeated or node.var in seen
        seen.add(node.var)

    tvm_ffi.structural_walk(function.body, (tirx.Let, see))
    if not is_repeated:
        return function
    return s_tir.transform.ConvertSSA()(tvm.IRModule({"main": function}))["main"]


def _with_values(finalize: Callable[[], tvm.transform.Pass]) -> Callable[[], tvm.transform.Pass]:
    """TVM's last passes, with the expressions of opaque functions behind all that simplifies."""

    def passes() -> tvm.transform.Pass:
        expand = _map_kernels("ExpandFunctions", _behind)
        return tvm.transform.Sequential([finalize(), expand, tirx.transform.LowerIntrin()])

    return passes


def _behind(function: tirx.PrimFunc) -> tirx.PrimFunc:
    target = function.attrs["target"] if function.attrs and "target" in function.attrs else None
    with target or contextlib.nullcontext():
        return opaque.expanded(function, not_a_number.EXTREMES_OF_TWO)


def _mapped(rewrites: Any) -> Rewrite:
    return lambda function: tvm_ffi.structural_map(function, rewrites)


def _map_kernels(name: str, rewrite: Rewrite) -> tvm.transform.Pass:
    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        for variable, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc):
                kept = rewrite(function)
                if not kept.same_as(function):
                    mod.update_func(variable, kept)
        return mod

    return tvm.transform.module_pass(apply, opt_level=0, name=name)
