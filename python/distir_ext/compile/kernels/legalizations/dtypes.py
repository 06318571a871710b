"""Legalises operators in dtypes without a TVM kernel, by computing them in another dtype.

Most of these fail when they are built, in TVM's own words. Here operands are converted, the
operator is computed in a type that has a kernel, and the result is converted back; bool has logic
in place of arithmetic. What remains is refused, by the names of operator and dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax import op as relax_op

__all__ = ["constant_array", "is_float", "is_small_float", "legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]

_UNSIGNED = ("uint8", "uint16", "uint32", "uint64")

# Powers of integers beyond overflow but for those of 1, 0 and -1.
_LARGEST_POWER = 64

_FLOAT8 = {"float8_e4m3fn": "float32", "float8_e5m2": "float32"}

_COMPUTED_IN: dict[str, dict[str, str]] = {
    **{
        f"relax.{name}": _FLOAT8
        for name in (
            *("abs", "sign", "negative", "ceil", "floor", "round", "trunc", "square", "clip"),
            *("nn.relu", "nn.leakyrelu", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d"),
        )
    },
    **{
        f"relax.{name}": {"float16": "float32"}
        for name in ("acos", "acosh", "asin", "asinh", "atan", "cosh", "sinh", "atan2")
    },
    **{
        f"relax.{name}": {"bfloat16": "float32", **_FLOAT8}
        for name in (
            *("isnan", "isinf", "isfinite", "nn.layer_norm", "nn.instance_norm"),
            *("power", "log_add_exp", "grad.max_pool2d_backward"),
        )
    },
    **{
        f"relax.{name}": {"float16": "float32", "bfloat16": "float32", **_FLOAT8}
        for name in (
            *("mod", "floor_mod", "floor_divide"),
            *("vision.non_max_suppression", "vision.all_class_non_max_suppression"),
        )
    },
    **{
        f"relax.{name}": {"bool": "int8"}
        for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    },
    **{
        f"relax.{name}": {"bool": "int32"}
        for name in ("scatter_elements", "scatter_nd", "index_put")
    },
    # The sum of a mean is as wide as the type.
    **{
        f"relax.{name}": dict.fromkeys(
            ("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int64"
        )
        for name in (
            *("mean", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d"),
            *(f"nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3)),
        )
    },
    **{
        f"relax.{name}": _FLOAT8
        for name in ("image.grid_sample", "vision.roi_pool", "vision.roi_align")
    },
    "relax.layout_transform": {"bool": "int8", **_FLOAT8},
    "relax.dequantize": dict.fromkeys(_FLOAT8, "float16"),
    "relax.max": {"bool": "int8", **_FLOAT8},
    "relax.min": {"bool": "int8", **_FLOAT8},
}
"""The dtype in which TVM has a kernel, by operator and dtype of its first operand."""

_WIDER_THAN_STATED = ("nn.batch_norm", "image.grid_sample", "grad.avg_pool2d_backward")
"""Operators whose kernels give results of a wider dtype than the call's, in some dtypes."""

_OF_BOOL = {
    "relax.add": relax_op.logical_or,
    "relax.multiply": relax_op.logical_and,
    "relax.maximum": relax_op.logical_or,
    "relax.minimum": relax_op.logical_and,
}


def is_float(dtype: Any) -> bool:
    """Returns whether a dtype is a floating-point type."""
    return "float" in str(dtype)


def is_small_float(dtype: Any) -> bool:
    """Returns whether a dtype is a floating-point type with fewer bits than float32."""
    name = str(dtype)
    return name in ("float16", "bfloat16") or name.startswith("float8")


def constant_array(value: relax.Expr) -> np.ndarray | None:
    """The elements of a constant tensor; None where it is no constant."""
    is_tensor = isinstance(value, tvm.ir.GenericConst) and isinstance(value.ty, relax.TensorType)
    return value.value.numpy() if is_tensor else None


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also operators in dtypes for which TVM has no kernel.

    Args:
        others: Legalisations by operator, of the dtypes that they know.
    """
    made = dict(others)
    for name in (f"relax.{each}" for each in _WIDER_THAN_STATED):
        made[name] = _as_stated(_default(made, name))
    for name, dtypes in _COMPUTED_IN.items():
        made[name] = _converted(_default(made, name), dtypes)
    for name, logic in _OF_BOOL.items():
        made[name] = _of_dtype(("bool",), _logic(logic), _default(made, name))
    made["relax.negative"] = _of_dtype(_UNSIGNED, _negative, _default(made, "relax.negative"))
    made["relax.sign"] = _of_dtype(_UNSIGNED, _sign, _default(made, "relax.sign"))
    made["relax.logical_not"] = _logical_not(_default(made, "relax.logical_not"))
    for name in ("and", "or", "xor"):
        made[f"relax.logical_{name}"] = _of_numbers(_default(made, f"relax.logical_{name}"))
    made["relax.clip"] = _within_type(_default(made, "relax.clip"))
    made["relax.power"] = _power(_default(made, "relax.power"))
    return made


def _default(made: Mapping[str, Legalization], name: str) -> Legalization:
    return made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")


def _dtype(value: relax.Expr) -> str:
    return str(getattr(value.ty, "dtype", ""))


def _of_dtype(dtypes: tuple[str, ...], make: Legalization, other: Legalization) -> Legalization:
    """One legalisation where the first operand has one of the dtypes, and another one elsewhere."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        return (make if _dtype(call.args[0]) in dtypes else other)(builder, call)

    return legalize


def _cast(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A kernel of its own, for FuseOps to join."""
    return builder.call_te(topi.cast, value, dtype, primfunc_name_hint="cast")


def _converted(other: Legalization, dtypes: Mapping[str, str]) -> Legalization:
    """The operator on operands of another dtype, with the result that the call has."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        dtype = _dtype(call.args[0])
        if dtype not in dtypes:
            return other(builder, call)
        args = [
            arg
            if _dtype(arg) != dtype
            else builder.emit(_cast(builder, arg, dtypes[dtype]))
            if isinstance(arg.ty, relax.TensorType)
            else arg.astype(dtypes[dtype])  # a number
            for arg in call.args
        ]
        return _of_arguments(builder, call, args, other)

    return legalize


def _as_stated(other: Legalization) -> Legalization:
    """The results of a kernel in the dtypes of the call."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        value = builder.emit(other(builder, call))
        fields = call.ty.fields if isinstance(call.ty, relax.TupleType) else [call.ty]
        made = value.ty.fields if isinstance(call.ty, relax.TupleType) else [value.ty]
        is_same = all(str(a.dtype) == str(b.dtype) for a, b in zip(fields, made, strict=True))
        return value if is_same else _in_type(builder, value, call.ty)

    return legalize


def _of_arguments(
    builder: relax.BlockBuilder, call: relax.Call, args: list[Any], other: Legalization
) -> Any:
    """The kernel of a call with other arguments, its result in the dtype of the call."""
    changed = builder.normalize(relax.Call(call.op, args, call.attrs))
    return _in_type(builder, builder.emit(other(builder, changed)), call.ty)


def _in_type(builder: relax.BlockBuilder, value: relax.Expr, type_: Any) -> relax.Expr:
    """A value, or the fields of a tuple, in the dtypes of a type."""
    if isinstance(type_, relax.TupleType):
        fields = [builder.emit(relax.TupleGetItem(value, i)) for i in range(len(type_.fields))]
        pairs = zip(fields, type_.fields, strict=True)
        return relax.Tuple([builder.emit(_in_type(builder, *pair)) for pair in pairs])
    wanted = str(type_.dtype)
    return value if _dtype(value) == wanted else _cast(builder, value, wanted)


def _within_type(other: Legalization) -> Legalization:
    """Clips unsigned integers to bounds that their type has: no number of it is below 0."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        dtype = _dtype(call.args[0])
        bounds = call.args[1:]
        if dtype not in _UNSIGNED or not any(_is_below_zero(each) for each in bounds):
            return other(builder, call)
        bounds = [
            relax.prim_value(tirx.const(0, each.ty)) if _is_below_zero(each) else each
            for each in bounds
        ]
        return other(builder, relax.Call(call.op, [call.args[0], *bounds], call.attrs))

    return legalize


def _is_below_zero(value: Any) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value < 0


def _of_numbers(other: Legalization) -> Legalization:
    """Logic of numbers: those that are not zero are true."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if _dtype(call.args[0]) in ("", "bool"):
            return other(builder, call)

        def is_true(x: te.Tensor) -> te.Tensor:
            zero = tirx.const(0, x.dtype)
            return te.compute(x.shape, lambda *i: tirx.NE(x(*i), zero), name="is_true")

        args = [
            builder.emit(builder.call_te(is_true, arg, primfunc_name_hint="is_true"))
            for arg in call.args
        ]
        return _of_arguments(builder, call, args, other)

    return legalize


def _logic(function: Callable[..., relax.Expr]) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        made = builder.normalize(function(*call.args))
        return _default({}, made.op.name)(builder, made)

    return legalize


def _negative(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    def make(x: te.Tensor) -> te.Tensor:
        one = tirx.const(1, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.bitwise_not(x(*i)) + one, name="compute")

    return builder.call_te(make, call.args[0], primfunc_name_hint="negative")


def _sign(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    def make(x: te.Tensor) -> te.Tensor:
        one = tirx.const(1, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Min(x(*i), one), name="compute")

    return builder.call_te(make, call.args[0], primfunc_name_hint="sign")


def _logical_not(other: Legalization) -> Legalization:
    """Legalizes logical_not of numbers: compares them with zero, in the dtype of the call."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        dtype, wanted = _dtype(call.args[0]), _dtype(call)
        if dtype == "bool":
            return other(builder, call)

        def make(x: te.Tensor) -> te.Tensor:
            zero = tirx.const(0, dtype)
            return te.compute(x.shape, lambda *i: (x(*i) == zero).astype(wanted), name="compute")

        return builder.call_te(make, call.args[0], primfunc_name_hint="logical_not")

    return legalize


def _power(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        dtype = _dtype(call.args[0])
        if not dtype or is_float(dtype):
            return other(builder, call)
        exponent = constant_array(call.args[1])
        if isinstance(call.args[1], tirx.IntImm):
            exponent = np.asarray(int(call.args[1].value))
        if exponent is not None and exponent.shape == () and 0 <= int(exponent) <= _LARGEST_POWER:
            make = functools.partial(_multiplied, exponent=int(exponent))
            return builder.call_te(make, call.args[0], primfunc_name_hint="power")
        raise ValueError(
            f"R.power of {dtype} has a kernel for constant exponents from 0 to {_LARGEST_POWER}; "
            "cast both operands to float64"
        )

    return legalize


def _multiplied(x: te.Tensor, exponent: int) -> te.Tensor:
    """A power by repeated squares."""
    result = topi.full_like(x, tirx.const(1, x.dtype))
    while exponent:
        result = topi.multiply(result, x) if exponent % 2 else result
        exponent //= 2
        x = topi.multiply(x, x) if exponent else x
    return result
