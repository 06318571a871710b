"""Collectives of manual regions, by the names of mesh axes.

They belong in a function that :func:`distir_ext.manual` calls, and are named as in ``jax.lax``. An
axis is a name, or a tuple of names from major to minor; all of them are manual in the region.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from distir_ext.annotate.emitting import emitted, is_nn, known_type, like
from distir_ext.annotate.open_regions import Region, check_axis, current, listed
from distir_ext.annotate.regions import collective, crossing
from distir_ext.native.collective_records import names
from distir_ext.text.errors.tracebacks import short_tracebacks

Axis = str | Sequence[str]
"""The name of a mesh axis, or several from major to minor."""

__all__ = [
    "all_gather",
    "all_to_all",
    "axis_index",
    "axis_size",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "psum",
    "psum_scatter",
]


@short_tracebacks
def psum(x: Any, axis: Axis) -> Any:
    """The sum of the values that the devices along an axis have.

    Args:
        x: A value of the region.
        axis: Manual axes.

    Returns:
        A value of the same shape, equal on these devices.

    Raises:
        ValueError: An axis does not exist or is not manual here, or nothing is: this is outside of
            a manual region.
        TypeError: ``x`` is no tensor.
    """
    return _reduced(x, axis, "sum", "psum")


@short_tracebacks
def pmax(x: Any, axis: Axis) -> Any:
    """The maximum of the values that the devices along an axis have; see :func:`psum`.

    Args:
        x: A value of the region.
        axis: Manual axes.

    Raises:
        ValueError, TypeError: As :func:`psum`.
    """
    return _reduced(x, axis, "max", "pmax")


@short_tracebacks
def pmin(x: Any, axis: Axis) -> Any:
    """The minimum of the values that the devices along an axis have; see :func:`psum`.

    Args:
        x: A value of the region.
        axis: Manual axes.

    Raises:
        ValueError, TypeError: As :func:`psum`.
    """
    return _reduced(x, axis, "min", "pmin")


@short_tracebacks
def pmean(x: Any, axis: Axis) -> Any:
    """The mean of the values that the devices along an axis have; see :func:`psum`.

    Args:
        x: A value of the region, of floating-point numbers.
        axis: Manual axes.

    Raises:
        ValueError: As :func:`psum`.
        TypeError: ``x`` is no tensor, or its elements are integers.
    """
    total = _expression(_reduced(x, axis, "sum", "pmean"), "pmean")
    dtype = str(total.ty.dtype) if known_type(total) is not None else "float32"
    if "float" not in dtype:
        raise TypeError(f"pmean takes floating-point numbers, not {dtype}")
    number = relax.const(axis_size(axis), dtype)
    return like(x, emitted(relax.op.divide(total, number)))


@short_tracebacks
def all_gather(x: Any, axis: Axis, dim: int = 0) -> Any:
    """The values that the devices along an axis have, joined along a dimension.

    Args:
        x: A value of the region.
        axis: Manual axes.
        dim: The dimension, which is so many times longer then (``tiled=True`` in JAX).

    Raises:
        ValueError: See :func:`psum`; or there is no such dimension.
    """
    axes = _manual(axis, names.all_gather)
    value = _expression(x, names.all_gather)
    return _called(x, names.all_gather, value, axes, dim=_dim(value, dim, names.all_gather))


@short_tracebacks
def psum_scatter(x: Any, axis: Axis, dim: int = 0) -> Any:
    """The sum along an axis, of which each device keeps its part of a dimension.

    Args:
        x: A value of the region.
        axis: Manual axes.
        dim: The dimension, which divides into so many parts (``tiled=True`` in JAX).

    Raises:
        ValueError: See :func:`psum`; or there is no such dimension, or it does not divide.
    """
    axes = _manual(axis, "psum_scatter")
    value = _expression(x, "psum_scatter")
    number = _dim(value, dim, "psum_scatter")
    return _called(x, names.reduce_scatter, value, axes, dim=number, reduction="sum")


@short_tracebacks
def all_to_all(x: Any, axis: Axis, split_dim: int, concat_dim: int) -> Any:
    """Each device along an axis gets its part of the value of each of them, joined.

    Args:
        x: A value of the region.
        axis: Manual axes.
        split_dim: The dimension that is cut into parts, one for each device.
        concat_dim: Another dimension, along which the parts are joined (``tiled=True`` in JAX).

    Raises:
        ValueError: See :func:`psum`; or there is no such dimension, both are the same, or
            ``split_dim`` does not divide.
    """
    axes = _manual(axis, names.all_to_all)
    value = _expression(x, names.all_to_all)
    dims = {
        "split_dim": _dim(value, split_dim, "all_to_all: split_dim"),
        "concat_dim": _dim(value, concat_dim, "all_to_all: concat_dim"),
    }
    if dims["split_dim"] == dims["concat_dim"]:
        raise ValueError(f"all_to_all: split_dim and concat_dim are both {split_dim}")
    return _called(x, names.all_to_all, value, axes, **dims)


@short_tracebacks
def ppermute(x: Any, axis: Axis, perm: Sequence[tuple[int, int]]) -> Any:
    """Sends whole values from device to device along an axis.

    Args:
        x: A value of the region.
        axis: Manual axes.
        perm: Pairs (source, target) of numbers along the axis. Each sends and receives at most
            once; what receives nothing has zeros.

    Raises:
        ValueError: See :func:`psum`; or a number is none of a device, or occurs twice.
    """
    axes = _manual(axis, "ppermute")
    size = axis_size(axis)
    pairs = [[int(source), int(target)] for source, target in perm]
    for place, what in ((0, "sends"), (1, "receives")):
        numbers = [pair[place] for pair in pairs]
        for number in numbers:
            if not 0 <= number < size:
                raise ValueError(
                    f"ppermute: there is no device {number} along {axis!r}, which has {size}"
                )
            if numbers.count(number) > 1:
                raise ValueError(f"ppermute: device {number} along {axis!r} {what} twice")
    return _called(x, names.permute, _expression(x, "ppermute"), axes, pairs=pairs)


@short_tracebacks
def axis_index(axis: Axis, dtype: str = "int64") -> relax.Expr:
    """The number of a device along an axis, a scalar.

    Args:
        axis: Manual axes.
        dtype: Of integers.

    Raises:
        ValueError: See :func:`psum`.
    """
    axes = _manual(axis, "axis_index")
    region = _region("axis_index")
    numbers = emitted(relax.op.arange(axis_size(axis), dtype=dtype))
    entry = axes[0] if len(axes) == 1 else axes
    own = crossing("enter_manual", numbers, region.mesh, (entry,), region.manual, "axis_index")
    return emitted(relax.op.reshape(own, relax.ShapeExpr([])))


@short_tracebacks
def axis_size(axis: Axis) -> int:
    """The number of devices along an axis.

    Args:
        axis: Manual axes.

    Returns:
        The product of their sizes.

    Raises:
        ValueError: See :func:`psum`.
    """
    mesh = _region("axis_size").mesh
    axes = _manual(axis, "axis_size")
    return math.prod(mesh.shape[mesh.axis_names.index(name)] for name in axes)


def _region(what: str) -> Region:
    region = current()
    if region is None:
        raise ValueError(f"{what} is outside of a manual region: dx.manual calls what may use it")
    return region


def _manual(axis: Axis, what: str) -> tuple[str, ...]:
    """Axes, which are manual in the region."""
    region = _region(what)
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    if not axes:
        raise ValueError(f"{what} needs an axis")
    for number, name in enumerate(axes):
        check_axis(what, name, region.mesh)
        if name in axes[:number]:
            raise ValueError(f"{what}: axis {name!r} is named twice")
        if name not in region.manual:
            raise ValueError(
                f"{what}: axis {name!r} stays automatic in this region; its manual axes are "
                f"{listed(region.manual)}"
            )
    return axes


def _reduced(x: Any, axis: Axis, reduction: str, what: str) -> Any:
    axes = _manual(axis, what)
    return _called(x, names.all_reduce, _expression(x, what), axes, reduction=reduction)


def _called(x: Any, kind: str, value: relax.Expr, axes: tuple[str, ...], **attrs: Any) -> Any:
    return like(x, collective(kind, value, _region(kind).mesh, axes, **attrs))


def _expression(x: Any, what: str) -> relax.Expr:
    if is_nn(x):
        expr: relax.Expr = x._expr
        return expr
    if not isinstance(x, relax.Expr):
        raise TypeError(f"{what} takes a Relax expression or a Tensor of nn, not {x!r}")
    return emitted(x)


def _dim(x: relax.Expr, dim: int, what: str) -> int:
    type_ = known_type(x)
    ndim = getattr(type_, "ndim", -1)
    if type_ is None or ndim < 0:
        return dim
    if not -ndim <= dim < ndim:
        raise ValueError(f"{what}: {dim} is no dimension of a tensor of {ndim}")
    return dim % ndim
