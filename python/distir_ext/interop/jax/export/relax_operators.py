"""Implements Relax's operators by functions of jax.numpy and jax.lax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = Any
Operator = Callable[..., Any]
"""From the attributes and the arguments of a call to its value."""


def _ints(value: Any) -> tuple[int, ...]:
    return tuple(int(each) for each in value)


def _axes(attrs: Any, name: str = "axis") -> Any:
    """An axis, several, or None for all."""
    value = getattr(attrs, name)
    return None if value is None else int(value) if isinstance(value, int) else _ints(value)


def _plain(function: Operator) -> Operator:
    return lambda _attrs, *args: function(*args)


_SAME_NAME = """
abs add ceil cos cosh equal exp floor greater greater_equal isfinite isinf
isnan left_shift less less_equal log logical_and logical_not logical_or logical_xor
maximum minimum multiply negative not_equal power right_shift sign sin sinh sqrt square
subtract tan tanh trunc where bitwise_and bitwise_not bitwise_or bitwise_xor
"""


def _division(of_floats: Operator, of_integers: Operator) -> Operator:
    """A quotient or a remainder, which is 0 for integers divided by 0; JAX has -1 and others."""

    def divide(x: Array, y: Array) -> Array:
        if x.dtype.kind not in "iu":
            return of_floats(x, y)
        x, y = jnp.broadcast_arrays(x, y)
        is_zero = y == 0
        return jnp.where(is_zero, 0, of_integers(x, jnp.where(is_zero, 1, y)))

    return divide


_ELEMENTWISE: dict[str, Operator] = {
    **{name: getattr(jnp, name) for name in _SAME_NAME.split()},
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atan2": jnp.arctan2,
    "atanh": jnp.arctanh,
    "clip": jnp.clip,
    "erf": jax.lax.erf,
    "divide": _division(jnp.divide, lax.div),  # of integers it truncates
    "floor_divide": _division(jnp.floor_divide, jnp.floor_divide),
    "floor_mod": _division(jnp.mod, jnp.mod),
    "log_add_exp": jnp.logaddexp,
    "mod": _division(jnp.fmod, jnp.fmod),
    "nn.gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "nn.gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "nn.relu": jax.nn.relu,
    "nn.silu": jax.nn.silu,
    "round": jnp.round,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
}


def _reduction(function: Operator) -> Operator:
    def reduce(attrs: Any, x: Array) -> Array:
        return function(x, axis=_axes(attrs), keepdims=bool(attrs.keepdims))

    return reduce


def _matmul(attrs: Any, x: Array, y: Array) -> Array:
    dtype = str(attrs.out_dtype or "") or None
    return jnp.matmul(x, y, preferred_element_type=None if dtype in (None, "void") else dtype)


def _strided_slice(
    _attrs: Any, x: Array, axes: Any, begin: Any, end: Any, strides: Any = None
) -> Array:
    # Bounds behind the ends are moved to them, as in Python.
    slices = [slice(None)] * x.ndim
    for index, axis in enumerate(axes):
        step = int(strides[index]) if strides is not None else 1
        first, last = int(begin[index]), int(end[index])
        # Below the beginning, Python's slices have only None.
        slices[axis] = slice(first, None if step < 0 and last < -x.shape[axis] else last, step)
    return x[tuple(slices)]


def _take(attrs: Any, x: Array, indices: Array) -> Array:
    mode = {"clip": "clip", "wrap": "wrap"}.get(str(attrs.mode), "clip")
    return jnp.take(x, indices, axis=_axes(attrs), mode=mode)


def _scatter_elements(attrs: Any, x: Array, indices: Array, updates: Array) -> Array:
    axis = int(attrs.axis) % x.ndim
    grid = list(jnp.meshgrid(*(jnp.arange(n) for n in indices.shape), indexing="ij"))
    grid[axis] = jnp.where(indices < 0, indices + x.shape[axis], indices)
    places = x.at[tuple(grid)]
    reduction = str(attrs.reduction)
    if reduction == "update":
        return places.set(updates)
    if reduction == "mean":
        raise ValueError("R.scatter_elements with reduction 'mean' has no counterpart in JAX")
    return {"add": places.add, "mul": places.multiply, "max": places.max, "min": places.min}[
        reduction
    ](updates)


def _cumulative(function: Operator) -> Operator:
    def scan(attrs: Any, x: Array) -> Array:
        axis = _axes(attrs)
        x = x.reshape(-1) if axis is None else x
        made = function(x, axis=axis or 0)
        if not attrs.exclusive:
            return made
        start = 0 if function is jnp.cumsum else 1
        first = jnp.full_like(lax.slice_in_dim(made, 0, 1, axis=axis or 0), start)
        rest = lax.slice_in_dim(made, 0, made.shape[axis or 0] - 1, axis=axis or 0)
        return jnp.concatenate([first, rest], axis or 0)

    return scan


def _sort(attrs: Any, x: Array) -> Array:
    return jnp.sort(x, axis=int(attrs.axis), descending=bool(attrs.descending))


def _argsort(attrs: Any, x: Array) -> Array:
    return jnp.argsort(x, axis=int(attrs.axis), descending=bool(attrs.descending))


def _topk(attrs: Any, x: Array) -> Any:
    order = jnp.argsort(x, axis=int(attrs.axis), descending=bool(attrs.largest))
    size = x.shape[int(attrs.axis)]
    k = int(attrs.k) if int(attrs.k) > 0 else size
    places = lax.slice_in_dim(order, 0, k, axis=int(attrs.axis))
    values = jnp.take_along_axis(x, places, axis=int(attrs.axis))
    return {"both": (values, places), "values": values, "indices": places}[str(attrs.ret_type)]


def _split(attrs: Any, x: Array) -> Any:
    stated = attrs.indices_or_sections
    points = int(stated) if isinstance(stated, int) else list(_ints(stated))
    return tuple(jnp.split(x, points, axis=int(attrs.axis)))


def _pad(attrs: Any, x: Array) -> Array:
    widths = np.array(_ints(attrs.pad_width)).reshape(-1, 2)
    mode = str(attrs.pad_mode)
    if mode != "constant":
        raise ValueError(f"R.nn.pad with mode {mode!r} has no counterpart here")
    return jnp.pad(
        x, widths, constant_values=np.asarray(attrs.pad_value, np.float64).astype(x.dtype)
    )


def _softmax(function: Operator) -> Operator:
    return lambda attrs, x: function(x, axis=int(attrs.axis))


def _rms_norm(attrs: Any, x: Array, weight: Array) -> Array:
    wide = x.astype(jnp.float32)
    square = (wide * wide).mean(_ints(attrs.axes), keepdims=True)
    return wide * lax.rsqrt(square + float(attrs.epsilon)) * weight.astype(jnp.float32)


def _layer_norm(attrs: Any, x: Array, scale: Array, bias: Array) -> Array:
    axes, wide = _ints(attrs.axes), x.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    variance = ((wide - mean) ** 2).mean(axes, keepdims=True)
    made = (wide - mean) * lax.rsqrt(variance + float(attrs.epsilon))
    made = made * scale if attrs.scale else made
    return made + bias if attrs.center else made


def _one_hot(attrs: Any, indices: Array, on: Any, off: Any) -> Array:
    made = jax.nn.one_hot(indices, int(attrs.depth), axis=int(attrs.axis)) > 0
    return jnp.where(made, on, off)


def _edges(padding: Sequence[int], spatial: int) -> list[tuple[int, int]]:
    """TVM's padding: one number, one per dimension, or all lows and then all highs."""
    sizes = list(padding)
    if len(sizes) == 1:
        sizes = sizes * spatial
    if len(sizes) == spatial:
        sizes = sizes * 2
    return list(zip(sizes[:spatial], sizes[spatial:], strict=True))


def _convolution(attrs: Any, x: Array, kernel: Array) -> Array:
    layouts = str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)
    spatial = x.ndim - 2
    return lax.conv_general_dilated(
        x,
        kernel,
        _ints(attrs.strides),
        _edges(_ints(attrs.padding), spatial),
        rhs_dilation=_ints(attrs.dilation),
        dimension_numbers=(layouts[0], layouts[1], layouts[2] or layouts[0]),
        feature_group_count=int(attrs.groups),
    )


def _pool(kind: str) -> Operator:
    def pool(attrs: Any, x: Array) -> Array:
        layout = str(attrs.layout)
        spatial = [dim for dim, letter in enumerate(layout) if letter in "DHW"]
        rows: dict[str, list[Any]] = {
            "window": [1] * x.ndim,
            "strides": [1] * x.ndim,
            "dilation": [1] * x.ndim,
        }
        edges: list[tuple[int, int]] = [(0, 0)] * x.ndim
        stated = _edges(_ints(attrs.padding), len(spatial))
        for index, dim in enumerate(spatial):
            rows["window"][dim] = int(attrs.pool_size[index])
            rows["strides"][dim] = int(attrs.strides[index])
            rows["dilation"][dim] = int(attrs.dilation[index])
            edges[dim] = stated[index]
        if attrs.ceil_mode:
            raise ValueError("pooling with ceil_mode has no counterpart here")

        def over(values: Array, start: Any, combine: Operator) -> Array:
            return lax.reduce_window(
                values,
                start,
                combine,
                tuple(rows["window"]),
                tuple(rows["strides"]),
                edges,
                window_dilation=tuple(rows["dilation"]),
            )

        if kind == "max":
            return over(x, np.asarray(-np.inf, x.dtype), lax.max)
        total = over(x, np.asarray(0, x.dtype), lax.add)
        if attrs.count_include_pad:
            return total / math.prod(rows["window"])
        return total / over(jnp.ones_like(x), np.asarray(0, x.dtype), lax.add)

    return pool


def _arange(_attrs: Any, start: Any, end: Any, step: Any) -> Array:
    return jnp.arange(start, end, step)


OPERATORS: dict[str, Operator] = {
    **{name: _plain(function) for name, function in _ELEMENTWISE.items()},
    "arange": _arange,
    "argmax": lambda attrs, x: jnp.argmax(x, _axes(attrs), keepdims=bool(attrs.keepdims)),
    "argmin": lambda attrs, x: jnp.argmin(x, _axes(attrs), keepdims=bool(attrs.keepdims)),
    "argsort": _argsort,
    "astype": lambda _attrs, x: x,  # every value gets the dtype of its type
    "broadcast_to": lambda _attrs, x, shape: jnp.broadcast_to(x, shape),
    "concat": lambda attrs, parts: jnp.concatenate(parts, axis=int(attrs.axis or 0)),
    "cumprod": _cumulative(jnp.cumprod),
    "cumsum": _cumulative(jnp.cumsum),
    "einsum": lambda attrs, operands: jnp.einsum(str(attrs.subscripts), *operands),
    "expand_dims": lambda attrs, x: jnp.expand_dims(x, _ints(attrs.axis)),
    "flatten": lambda _attrs, x: x.reshape(-1),
    "flip": lambda attrs, x: jnp.flip(x, int(attrs.axis)),
    "full": lambda _attrs, shape, value: jnp.full(shape, value),
    "full_like": lambda _attrs, x, value: jnp.full(x.shape, value),
    "gather_elements": lambda attrs, x, i: jnp.take_along_axis(x, i, int(attrs.axis)),
    "matmul": _matmul,
    "max": _reduction(jnp.max),
    "mean": _reduction(jnp.mean),
    "min": _reduction(jnp.min),
    "nn.avg_pool1d": _pool("avg"),
    "nn.avg_pool2d": _pool("avg"),
    "nn.avg_pool3d": _pool("avg"),
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv3d": _convolution,
    "nn.layer_norm": _layer_norm,
    "nn.log_softmax": _softmax(jax.nn.log_softmax),
    "nn.max_pool1d": _pool("max"),
    "nn.max_pool2d": _pool("max"),
    "nn.max_pool3d": _pool("max"),
    "nn.pad": _pad,
    "nn.rms_norm": _rms_norm,
    "nn.softmax": _softmax(jax.nn.softmax),
    "one_hot": _one_hot,
    "ones": lambda _attrs, shape: jnp.ones(shape),
    "ones_like": lambda _attrs, x: jnp.ones(x.shape),
    "permute_dims": lambda attrs, x: jnp.transpose(x, _axes(attrs, "axes")),
    "prod": _reduction(jnp.prod),
    "repeat": lambda attrs, x: jnp.repeat(x, int(attrs.repeats), axis=_axes(attrs)),
    "reshape": lambda _attrs, x, shape: jnp.reshape(x, shape),
    "scatter_elements": _scatter_elements,
    "sort": _sort,
    "split": _split,
    "squeeze": lambda attrs, x: jnp.squeeze(x, _axes(attrs)),
    "stack": lambda attrs, parts: jnp.stack(parts, axis=int(attrs.axis or 0)),
    "std": _reduction(jnp.std),
    "strided_slice": _strided_slice,
    "sum": _reduction(jnp.sum),
    "take": _take,
    "tile": lambda attrs, x: jnp.tile(x, _ints(attrs.repeats)),
    "topk": _topk,
    "tril": lambda _attrs, x, k: jnp.tril(x, k),
    "triu": lambda _attrs, x, k: jnp.triu(x, k),
    "variance": _reduction(jnp.var),
    "zeros": lambda _attrs, shape: jnp.zeros(shape),
    "zeros_like": lambda _attrs, x: jnp.zeros(x.shape),
}
"""By the operator's name behind ``relax.``; the value is converted to the dtype of the call."""
