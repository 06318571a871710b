"""Legalises norms of float64, which TVM's kernels do not take, and norms without scale or offset.

TVM's kernel of rms_norm rounds float64 to float32. The others multiply by scales and add offsets
that a call says to ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

__all__ = ["legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: norms by channels or axes.

    Args:
        others: Legalisations by operator, of the dtypes that they know.
    """
    made = dict(others)
    for name, own in (
        ("relax.nn.layer_norm", _layer_norm),
        ("relax.nn.group_norm", _group_norm),
        ("relax.nn.instance_norm", _instance_norm),
        ("relax.nn.rms_norm", _rms_norm),
    ):
        other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
        made[name] = _chosen(own, other)
    return made


def _chosen(own: Callable[..., te.Tensor], other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        is_complete = own is _rms_norm or (call.attrs.scale and call.attrs.center)
        if str(call.args[0].ty.dtype) != "float64" and is_complete:
            return other(builder, call)

        def make(*args: te.Tensor) -> te.Tensor:
            return own(*args, call.attrs)

        hint = call.op.name.removeprefix("relax.nn.")
        return builder.call_te(make, *call.args, primfunc_name_hint=hint)

    return legalize


def _layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, attrs: Any) -> te.Tensor:
    axes = _positive(attrs.axes, x)
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    return _scaled(_normalized(x, axes, attrs.epsilon), gamma, beta, shape, attrs)


def _instance_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, attrs: Any) -> te.Tensor:
    (channel,) = _positive([attrs.channel_axis], x)
    shape = [size if axis == channel else 1 for axis, size in enumerate(x.shape)]
    return _scaled(
        _normalized(x, _positive(attrs.axes, x), attrs.epsilon), gamma, beta, shape, attrs
    )


def _group_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, attrs: Any) -> te.Tensor:
    (channel,) = _positive([attrs.channel_axis], x)
    groups = int(attrs.num_groups)
    apart = [groups, tirx.floordiv(x.shape[channel], groups)]
    grouped = topi.reshape(x, [*x.shape[:channel], *apart, *x.shape[channel + 1 :]])
    axes = [axis + (axis > channel) for axis in _positive(attrs.axes, x)]
    normalized = _normalized(grouped, [*axes, channel + 1], attrs.epsilon)
    shape = [size if axis == channel else 1 for axis, size in enumerate(x.shape)]
    return _scaled(topi.reshape(normalized, x.shape), gamma, beta, shape, attrs)


def _rms_norm(x: te.Tensor, weight: te.Tensor, attrs: Any) -> te.Tensor:
    axes = _positive(attrs.axes, x)
    shape = [size if axis in axes else 1 for axis, size in enumerate(x.shape)]
    return topi.multiply(_scaled_to_one(x, axes, attrs.epsilon), topi.reshape(weight, shape))


def _positive(axes: Any, x: te.Tensor) -> list[int]:
    return [int(axis) % len(x.shape) for axis in axes]


def _normalized(x: te.Tensor, axes: list[int], epsilon: float) -> te.Tensor:
    """Has mean 0 and variance 1 along axes; sums of small floats are of float32."""
    dtype = str(x.dtype)
    x = x if dtype == "float64" else topi.cast(x, "float32")
    centred = topi.subtract(x, _mean(x, axes))
    return topi.cast(_scaled_to_one(centred, axes, epsilon), dtype)


def _scaled_to_one(x: te.Tensor, axes: list[int], epsilon: float) -> te.Tensor:
    square = _mean(topi.multiply(x, x), axes)
    root = topi.sqrt(topi.add(square, tirx.const(float(epsilon), x.dtype)))
    return topi.divide(x, root)


def _mean(x: te.Tensor, axes: list[int]) -> te.Tensor:
    count = tirx.const(1, x.dtype)
    for axis in axes:
        count = count * x.shape[axis].astype(x.dtype)
    return topi.divide(topi.sum(x, axes, True), count)


def _scaled(
    x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, shape: list[Any], attrs: Any
) -> te.Tensor:
    x = topi.multiply(x, topi.reshape(gamma, shape)) if attrs.scale else x
    return topi.add(x, topi.reshape(beta, shape)) if attrs.center else x
