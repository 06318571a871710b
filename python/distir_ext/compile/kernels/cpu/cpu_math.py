"""Legalises tanh, softmax, GELU and the like for CPUs, to kernels that LLVM vectorises.

TVM's kernels call the C library for each element (``float_functions``). float16 is computed in
float32 and rounded once.

A mean is a sum and a division as kernels of their own: FuseOps puts what leads to a sum into its
kernel (the squares of a norm), but nothing into a kernel of two loop nests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from distir_ext.compile.kernels.cpu.float_functions import erf, exp, log, tanh
from distir_ext.compile.kernels.expressions import bind

# TVM's passes for bfloat16 leave out the values of variables, of which these functions are made.
_FLOATS = ("float32", "float16")


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _map(function: Callable[[Any], Any]) -> Callable[[te.Tensor], te.Tensor]:
    """The function of each element, computed in float32."""

    def compute(x: te.Tensor) -> te.Tensor:
        def of_element(*i: Any) -> Any:
            if str(x.dtype) == "float32":
                return function(x(*i))
            return function(x(*i).astype("float32")).astype(x.dtype)

        return te.compute(x.shape, of_element, name="compute")

    return compute


def _sigmoid(x: Any) -> Any:
    return _float(1) / (_float(1) + exp(-x))


def _gelu(x: Any) -> Any:
    return x * (_float(0.5) + erf(x * _float(math.sqrt(0.5))) * _float(0.5))


def _gelu_tanh(x: Any) -> Any:
    inner = x * _float(math.sqrt(2 / math.pi)) * (_float(1) + _float(0.044715) * x * x)
    return _float(0.5) * x * (_float(1) + tanh(inner))


def _softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """The largest element is subtracted first, so that nothing overflows; so it is below."""
    largest = _reduced(te.max, x, axis, "largest")
    powers = te.compute(
        x.shape, lambda *i: exp(_wide(x(*i)) - largest(*_without(i, axis))), name="powers"
    )
    total = _reduced(te.sum, powers, axis, "total")
    return te.compute(
        x.shape,
        lambda *i: (powers(*i) / total(*_without(i, axis))).astype(x.dtype),
        name="softmax",
    )


def _log_softmax(x: te.Tensor, axis: int) -> te.Tensor:
    largest = _reduced(te.max, x, axis, "largest")
    shifted = te.compute(
        x.shape, lambda *i: _wide(x(*i)) - largest(*_without(i, axis)), name="shifted"
    )
    total = _reduced(te.sum, _map(lambda each: bind(each, exp))(shifted), axis, "total")
    logarithm = _map(lambda each: bind(each, log))(total)
    return te.compute(
        x.shape,
        lambda *i: (shifted(*i) - logarithm(*_without(i, axis))).astype(x.dtype),
        name="log_softmax",
    )


def _reduced(reduce: Callable[..., Any], x: te.Tensor, axis: int, name: str) -> te.Tensor:
    """A reduction along an axis, in float32."""
    step = te.reduce_axis((0, x.shape[axis]), name="k")
    kept = _without(x.shape, axis)
    axis %= len(x.shape)
    return te.compute(
        kept,
        lambda *i: reduce(_wide(x(*i[:axis], step, *i[axis:])), axis=step),
        name=name,
    )


def _wide(value: Any) -> Any:
    return value if str(value.ty.dtype) == "float32" else value.astype("float32")


def _without(items: Sequence[Any], axis: int) -> list[Any]:
    axis %= len(items)
    return [each for d, each in enumerate(items) if d != axis]


def _mean(builder: relax.BlockBuilder, call: relax.Call) -> Any:
    x, attrs = call.args[0], call.attrs
    shape = x.ty.shape
    sizes = [_static(size) for size in shape.values] if isinstance(shape, relax.ShapeExpr) else [0]
    axes = None if attrs.axis is None else [int(axis) for axis in attrs.axis]
    count = math.prod(sizes if axes is None else (sizes[axis] for axis in axes))
    if count == 0:
        return None
    total = builder.emit(
        builder.call_te(topi.sum, x, axes, bool(attrs.keepdims), primfunc_name_hint="sum")
    )
    divide = _map(lambda value: value / _float(count))
    return builder.call_te(divide, total, primfunc_name_hint="mean")


def _static(size: Any) -> int:
    """A size; 0 where it is symbolic."""
    return int(size) if isinstance(size, tirx.IntImm) else 0


def _legalize(
    name: str, make: Callable[[relax.BlockBuilder, relax.Call], Any]
) -> Callable[[relax.BlockBuilder, relax.Call], Any]:
    default = tvm.ir.Op.get(name).get_attr("FLegalize")

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        type_ = call.args[0].ty
        is_known = isinstance(type_, relax.TensorType) and type_.shape is not None
        dtypes = ("float32",) if name == "relax.mean" else _FLOATS
        if is_known and type_.dtype in dtypes:
            made = make(builder, call)
            if made is not None:
                return made
        return default(builder, call)

    return legalize


def _elementwise(
    name: str, function: Callable[[Any], Any]
) -> Callable[[relax.BlockBuilder, relax.Call], Any]:
    return lambda builder, call: builder.call_te(
        _map(lambda x: bind(x, function)), call.args[0], primfunc_name_hint=name
    )


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relax.erf": erf,
    "relax.exp": exp,
    "relax.log": log,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.silu": lambda x: x * _sigmoid(x),
    "relax.sigmoid": _sigmoid,
    "relax.tanh": tanh,
}

LEGALIZATIONS = {
    "relax.mean": _mean,
    "relax.nn.softmax": lambda builder, call: builder.call_te(
        _softmax, call.args[0], int(call.attrs.axis), primfunc_name_hint="softmax"
    ),
    "relax.nn.log_softmax": lambda builder, call: builder.call_te(
        _log_softmax, call.args[0], int(call.attrs.axis), primfunc_name_hint="log_softmax"
    ),
} | {name: _elementwise(name.rpartition(".")[2], function) for name, function in _FUNCTIONS.items()}


def legalizations() -> dict[str, Any]:
    """For ``relax.transform.LegalizeOps``: operators that have kernels of their own here."""
    return {name: _legalize(name, make) for name, make in LEGALIZATIONS.items()}
