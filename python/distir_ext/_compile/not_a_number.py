"""NaN goes through maxima, minima and comparisons, as in NumPy, JAX and torch.

TVM takes x != y for x < y or y < x, and max(x, y) for y unless x > y, so that NaN is lost; its
simplifier takes x == x for true, and y <= x for not (x < y), which NaN is an exception to; x * 0 is
0 to it. Here

- comparisons of floats are written so that the simplifier sees nothing to fold
  (:func:`keep_comparisons`, behind ``LegalizeOps``);
- maxima and minima of all kernels become selections once all else is lowered
  (:func:`tir_pipeline`), so that schedules see what they know, and while kernels run on constants
  (:func:`fold_constants`);
- those of tensors and windows begin at an infinity, and not at the least finite number
  (:func:`legalizations`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx, topi
from tvm.tirx import compilation_pipeline

from distir_ext._compile.dtypes import constant_array, is_float
from distir_ext._compile.expressions import bind, is_nan
from distir_ext._compile.kernel_builder import KernelBuilder

__all__ = ["fold_constants", "keep_comparisons", "legalizations", "tir_pipeline"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_TIR_PIPELINE = "distir"

_EXTREMES = (
    *("relax.max", "relax.min"),
    *(f"relax.nn.max_pool{rank}d" for rank in (1, 2, 3)),
)

_FILLED = ("relax.zeros", "relax.zeros_like", "relax.full", "relax.full_like")

# TVM folds these where one operand is a constant of these values, whatever the other one is.
_FOLDED: dict[str, tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    "relax.multiply": (topi.multiply, lambda value: value == 0),
    "relax.divide": (topi.divide, lambda value: value == 0),
    "relax.maximum": (topi.maximum, math.isinf),
    "relax.minimum": (topi.minimum, math.isinf),
}


# ---- operators


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also operators whose kernels would lose NaN.

    Args:
        others: Legalisations by operator, which are used within these.
    """
    made = dict(others)
    for name in _EXTREMES:
        made[name] = _from_infinity(_default(made, name))
    for name, (function, folds) in _FOLDED.items():
        made[name] = _unfolded(_default(made, name), function, folds)
    for name in _FILLED:
        made[name] = _with_unknown_zero(_default(made, name))
    made["relax.sign"] = _sign(_default(made, "relax.sign"))
    return made


def _default(made: Mapping[str, Legalization], name: str) -> Legalization:
    return made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")


def _from_infinity(other: Legalization) -> Legalization:
    """An extreme that begins at an infinity: that of infinities is one."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        return other(KernelBuilder(builder, edit=_begin_at_infinity), call)

    return legalize


def _begin_at_infinity(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel of an extreme: it has no constants but that at which it begins."""

    def infinite(value: tirx.FloatImm) -> Any:
        dtype = str(value.ty.dtype)
        if not is_float(dtype) or abs(value.value) != tirx.max_value(dtype).value:
            return value
        return tirx.FloatImm(dtype, math.copysign(math.inf, value.value))

    return tvm_ffi.structural_map(function, (tirx.FloatImm, infinite))


def _with_unknown_zero(other: Legalization) -> Legalization:
    """Tensors of zeros: products with these are 0 to TVM once both are in one kernel."""

    def unknown(value: tirx.FloatImm) -> Any:
        if value.value != 0:
            return value
        # TVM takes no expression of zero bits for a number.
        negative = tirx.reinterpret("float32", tirx.min_value("int32"))
        return tirx.abs(negative).astype(value.ty.dtype)

    def edit(function: tirx.PrimFunc) -> tirx.PrimFunc:
        return tvm_ffi.structural_map(function, (tirx.FloatImm, unknown))

    return lambda builder, call: other(KernelBuilder(builder, edit=edit), call)


def _unfolded(
    other: Legalization, function: Callable[..., Any], folds: Callable[[Any], bool]
) -> Legalization:
    """The constant is read from memory, as any other operand."""

    def is_folded(value: relax.Expr) -> bool:
        known = constant_array(value)
        return known is not None and known.shape == () and is_float(known.dtype) and folds(known)

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not any(map(is_folded, call.args)):
            return other(builder, call)
        return builder.call_te(function, *call.args)

    return legalize


def _sign(other: Legalization) -> Legalization:
    def make(x: te.Tensor) -> te.Tensor:
        def sign(value: Any) -> Any:
            zero, one = tirx.const(0, value.ty), tirx.const(1, value.ty)
            below = tirx.Select(value < zero, -one, value)  # 0, or NaN
            return tirx.Select(value > zero, one, below)

        return te.compute(x.shape, lambda *i: sign(x(*i)), name="compute")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if not is_float(getattr(call.args[0].ty, "dtype", "")):
            return other(builder, call)
        return builder.call_te(make, call.args[0], primfunc_name_hint="sign")

    return legalize


# ---- comparisons


def keep_comparisons(legalize: tvm.transform.Pass) -> tvm.transform.Pass:
    """The pass, and then comparisons of floats in kernels that it has made are kept as they are.

    A comparison becomes a selection of true or false by it, which LLVM takes for the comparison.
    """

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        known = {variable.name_hint for variable, _ in mod.functions_items()}
        made = legalize(mod)
        for variable, function in made.functions_items():
            if isinstance(function, tirx.PrimFunc) and variable.name_hint not in known:
                kept = tvm_ffi.structural_map(function, _COMPARISONS)
                if not kept.same_as(function):
                    made.update_func(variable, kept)
        return made

    return tvm.transform.module_pass(apply, opt_level=0, name=legalize.info.name)


def _of_floats(rewrite: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda node: rewrite(node) if is_float(node.a.ty.dtype) else node


def _bool(value: bool) -> Any:
    return tirx.const(value, "bool")


# Equal values that are written in the same way may be folded to true, and then are no NaN.
_COMPARISONS = (
    (
        (tirx.LT, tirx.LE, tirx.GT, tirx.GE),
        _of_floats(lambda node: tirx.Select(node, _bool(True), _bool(False))),
    ),
    (tirx.EQ, _of_floats(lambda node: tirx.Select(node, tirx.Not(is_nan(node.a)), _bool(False)))),
    (
        tirx.NE,
        _of_floats(lambda node: tirx.Select(tirx.EQ(node.a, node.b), is_nan(node.a), _bool(True))),
    ),
)


# ---- maxima and minima


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
            exact.update_func(variable, tvm_ffi.structural_map(function, _EXTREMES_OF_TWO))
        folded = relax.transform.FoldConstant()(exact)
        for variable, function in kernels.items():
            folded.update_func(variable, function)
        return folded

    return tvm.transform.module_pass(apply, opt_level=0, name="FoldConstant")


def tir_pipeline() -> str:
    """The name of TVM's default pipeline for kernels, behind which maxima and minima keep NaN."""
    if _TIR_PIPELINE not in compilation_pipeline.PIPELINE_MAP:
        compilation_pipeline.register_tir_pipeline(_TIR_PIPELINE, _make_pipeline)
    return _TIR_PIPELINE


def _make_pipeline() -> tuple[Any, ...]:
    lower, *finalize = tvm.tirx.get_tir_pipeline("default")
    return tvm.transform.Sequential([lower, _keep_nan()]), *finalize


def _keep_nan() -> tvm.transform.Pass:
    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        for variable, function in mod.functions_items():
            if isinstance(function, tirx.PrimFunc):
                kept = tvm_ffi.structural_map(function, _EXTREMES_OF_TWO)
                if not kept.same_as(function):
                    mod.update_func(variable, kept)
        return mod

    return tvm.transform.module_pass(apply, opt_level=0, name="KeepNaN")


def _select(compare: Callable[..., Any]) -> Callable[[Any], Any]:
    def rewrite(node: Any) -> Any:
        """One of two by a comparison, which is false for NaN: then it is the second one."""
        a, b = node.a, node.b
        if _is_number(b):
            a, b = b, a
        if _is_number(a):
            return bind(b, lambda b: tirx.Select(compare(a, b), a, b))
        return bind(
            a,
            lambda a: bind(b, lambda b: tirx.Select(tirx.Or(compare(a, b), is_nan(a)), a, b)),
        )

    return rewrite


def _is_number(value: Any) -> bool:
    value = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(value, tirx.FloatImm) and not math.isnan(value.value)


_EXTREMES_OF_TWO = (
    (tirx.Max, _of_floats(_select(tirx.GT))),
    (tirx.Min, _of_floats(_select(tirx.LT))),
    (tirx.NE, _of_floats(lambda node: tirx.Not(tirx.EQ(node.a, node.b)))),
)
