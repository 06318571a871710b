"""Rewrites sort, argsort, topk, argmax and the like to work on integer keys.

TVM's kernels for sort, argsort and topk read bfloat16 as another type, know no int8, int16, bool or
unsigned integers, and compare floats by ``<``, which is no order where some are NaN. Here they get
int32 or int64 keys. The key of a float has its bits, those of negative ones turned around, so that
integers are ordered as the floats are. As in NumPy, JAX and torch, NaN is above all numbers, and
the two zeros are equal where positions are wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.relax import op as relax_op
from tvm.relax.expr_functor import PyExprMutator, mutator

from distir_ext.compile.kernels.legalizations.dtypes import is_float, is_small_float

__all__ = ["order_by_keys"]

_NAN_BITS = {"int32": 0x7FC00000, "int64": 0x7FF8000000000000}

_SMALL_INTEGERS = ("bool", "int8", "uint8", "int16", "uint16")


def order_by_keys() -> tvm.transform.Pass:
    """Operators that order elements get keys instead, where TVM's kernels do not order these.

    To be run before ``relax.backend.DispatchSortScan``.
    """
    calls = tvm_ffi.get_global_func("distir.rules.CallsOperator")

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        names = list(_REWRITES)
        found = [
            (variable, function)
            for variable, function in mod.functions_items()
            if isinstance(function, relax.Function) and calls(function, names)
        ]
        if not found:
            return mod
        rewriter = _ByKeys(mod)
        for variable, function in found:
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
        return rewriter.builder_.finalize()

    return tvm.transform.module_pass(apply, opt_level=0, name="OrderByKeys")


@mutator
class _ByKeys(PyExprMutator):
    """Rewrites calls of the operators in ``_REWRITES``."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        rewrite = _REWRITES.get(getattr(call.op, "name", ""))
        if rewrite is None or not isinstance(call.args[0].ty, relax.TensorType):
            return call
        return rewrite(self.builder_, call)


# ---- keys


def key_dtype(dtype: str) -> str:
    """The type of the keys of a dtype, which is the same one where TVM orders it itself."""
    if dtype in _SMALL_INTEGERS or (is_float(dtype) and dtype != "float64"):
        return "int32"
    return "int64" if dtype in ("float64", "uint32", "uint64") else dtype


def _needs_keys(dtype: str) -> bool:
    return key_dtype(dtype) != dtype


def _key(value: Any, dtype: str, *, equal_zeros: bool, nan_is_first: bool = False) -> Any:
    """The key of an element."""
    wanted = key_dtype(dtype)
    if dtype == "uint64":
        return tirx.bitwise_xor(value.astype(wanted), tirx.min_value(wanted))
    if not is_float(dtype):
        return value.astype(wanted)
    value = value.astype("float32") if is_small_float(dtype) else value
    key = _turn(tirx.reinterpret(wanted, value), wanted)
    if equal_zeros:
        key = tirx.Select(value == tirx.const(0, value.ty), tirx.const(0, wanted), key)
    nan = tirx.min_value(wanted) if nan_is_first else tirx.const(_NAN_BITS[wanted], wanted)
    return tirx.Select(tirx.isnan(value), nan, key)


def _element(key: Any, dtype: str) -> Any:
    """The element of a key; the zeros have been kept apart."""
    wanted = key_dtype(dtype)
    if dtype == "uint64":
        return tirx.bitwise_xor(key, tirx.min_value(wanted)).astype(dtype)
    if not is_float(dtype):
        return key.astype(dtype)
    wide = dtype if dtype == "float64" else "float32"
    return tirx.reinterpret(wide, _turn(key, wanted)).astype(dtype)


def _turn(bits: Any, dtype: str) -> Any:
    """Bits of a float as an integer of the same order, or back: those behind the sign turn."""
    last = tirx.const(int(dtype.removeprefix("int")) - 1, dtype)
    return tirx.bitwise_xor(bits, tirx.bitwise_and(bits >> last, tirx.max_value(dtype)))


def _keys(builder: relax.BlockBuilder, x: relax.Expr, **options: bool) -> relax.Expr:
    dtype = str(x.ty.dtype)
    if not _needs_keys(dtype):
        return x
    make = _map(functools.partial(_key, dtype=dtype, **options))
    return builder.emit(builder.call_te(make, x, primfunc_name_hint="sort_keys"))


def _map(function: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    return lambda x: te.compute(x.shape, lambda *i: function(x(*i)), name="compute")


# ---- operators


def _sort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, attrs = call.args[0], call.attrs
    dtype = str(x.ty.dtype)
    if not _needs_keys(dtype):
        return call
    keys = _keys(builder, x, equal_zeros=False)
    ordered = builder.emit(relax_op.sort(keys, attrs.axis, attrs.descending))
    elements = _map(functools.partial(_element, dtype=dtype))
    return builder.call_te(elements, ordered, primfunc_name_hint="sorted")


def _argsort(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return relax.Call(call.op, [_keys(builder, call.args[0], equal_zeros=True)], call.attrs)


def _topk(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, attrs = call.args[0], call.attrs
    if not _needs_keys(str(x.ty.dtype)):
        return call
    keys = _keys(builder, x, equal_zeros=True)
    positions = builder.emit(
        relax_op.topk(keys, attrs.k, attrs.axis, "indices", attrs.largest, attrs.dtype)
    )
    if attrs.ret_type == "indices":
        return positions
    values = relax_op.gather_elements(x, positions, attrs.axis)
    return values if attrs.ret_type == "values" else relax.Tuple([builder.emit(values), positions])


def _arg_reduce(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's position is -1 where no element is above the lowest of its type: it is the first."""
    x, attrs = call.args[0], call.attrs
    make = getattr(relax_op, call.op.name.removeprefix("relax."))
    is_minimum = make is relax_op.argmin
    keys = _keys(builder, x, equal_zeros=True, nan_is_first=is_minimum)
    position = make(keys, attrs.axis, attrs.keepdims)
    if is_float(str(x.ty.dtype)):
        return position
    position = builder.emit(position)
    return relax_op.maximum(position, relax.const(0, str(position.ty.dtype)))


def _median(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The lower one of two, NaN where an element is; its position, too, of a single axis."""
    x, attrs = call.args[0], call.attrs
    rank = len(x.ty.shape)
    axes = [int(axis) % rank for axis in (attrs.axis if attrs.axis is not None else range(rank))]
    axis = axes[0] if len(axes) == 1 and attrs.axis is not None else rank - len(axes)
    if len(axes) != 1 or attrs.axis is None:
        kept = [d for d in range(rank) if d not in axes]
        x = builder.emit(relax_op.permute_dims(x, [*kept, *axes]))
        x = builder.emit(relax_op.reshape(x, [*(x.ty.shape[d] for d in range(len(kept))), -1]))
    order = _argsort(builder, builder.normalize(relax_op.argsort(x, axis, False, "int64")))
    order = builder.emit(order)
    size = x.ty.shape[axis]

    def at(index: Any) -> relax.Expr:
        begin, end = [index], [index + 1]
        return builder.emit(relax_op.strided_slice(order, [axis], begin, end, assume_inbound=True))

    def element(position: relax.Expr) -> relax.Expr:
        return builder.emit(relax_op.gather_elements(x, position, axis))

    position = at((size - 1) // 2)
    if is_float(str(x.ty.dtype)):
        last = at(size - 1)
        is_nan = builder.emit(relax_op.isnan(element(last)))
        position = builder.emit(relax_op.where(is_nan, last, position))
    results = [element(position), position]
    if not isinstance(call.ty, relax.TupleType):
        return relax_op.reshape(results[0], call.ty.shape)
    shapes = [field.shape for field in call.ty.fields]
    return relax.Tuple(
        [builder.emit(relax_op.reshape(*each)) for each in zip(results, shapes, strict=True)]
    )


def _bucketize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, boundaries = call.args
    if not is_float(str(x.ty.dtype)) or x.ty.dtype != boundaries.ty.dtype:
        return call
    keys = [_keys(builder, each, equal_zeros=True) for each in (x, boundaries)]
    return relax.Call(call.op, keys, call.attrs)


_REWRITES: dict[str, Callable[[relax.BlockBuilder, relax.Call], relax.Expr]] = {
    "relax.argmax": _arg_reduce,
    "relax.argmin": _arg_reduce,
    "relax.argsort": _argsort,
    "relax.bucketize": _bucketize,
    "relax.median": _median,
    "relax.sort": _sort,
    "relax.topk": _topk,
}
