"""Legalises tanh, softmax, GELU and the like for CPUs, to kernels that LLVM vectorises.

TVM's kernels call the C library for each element (``float_functions``). float16 is computed in
float32 and rounded once.

A mean is a sum and a division as kernels of their own: FuseOps puts what leads to a sum into its
kernel (the squares of a norm), but nothing into a kernel of two loop nests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    rank = len(x.shape)
    axis %= rank
    kept = [size for d, size in enumerate(x.shape) if d != axis]

    def reduced(reduce: Callable[..., Any], tensor: te.Tensor, name: str) -> te.Tensor:
        step = te.reduce_axis((0, tensor.shape[axis]), name="k")
        return te.compute(
            kept,
            lambda *i: reduce(tensor(*i[:axis], step, *i[axis:]), axis=step),
            name=name,
        )

    largest = reduced(te.max, x, "largest")
    powers = te.compute(
        x.shape, lambda *i: exp(x(*i) - largest(*i[:axis], *i[axis + 1 :])), name="powers"
    )
    total = reduced(te.sum, powers, "total")
    return te.compute(
        x.shape, lambda *i: powers(*i) / total(*i[:axis], *i[axis + 1 :]), name="softmax"
    )


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
        dtypes = _FLOATS if name in _FUNCTIONS else ("float32",)
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
} | {name: _elementwise(name.rpartition(".")[2], function) for name, function in _FUNCTIONS.items()}


def legalizations() -> dict[str, Any]:
    """For ``relax.transform.LegalizeOps``: operators that have kernels of their own here."""
    return {name: _legalize(name, make) for name, make in LEGALIZATIONS.items()}
