"""Imports ``x[i, :, j]`` and ``x[i, :, j] = y`` of torch as lookups and writes of Relax.

TVM's converters look indices of several dimensions up one after the other, which is another result,
and write to all dimensions only. In torch, as in NumPy, indices broadcast among each other. What
they broadcast to stands in the place of their dimensions, or in front of all others where there is
one between them:

    x of (4, 6, 8), i and j of (3,)
    x[:, i, j]          (4, 3)      dimensions 1 and 2 first, index_tensor, and 0 to the front again
    x[i, :, j]          (3, 6)
    x[:, i] = y                     scatter_elements along dimension 1
    x[i, :, j] = y                  dimensions 0 and 2 first, scatter_nd, and back
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from distir_ext.compile.kernels.legalizations.positions import broadcast_shape, is_one

__all__ = ["looked_up", "written"]


def looked_up(
    data: relax.Expr, indices: Sequence[relax.Expr | None], builder: relax.BlockBuilder
) -> relax.Expr:
    """The elements of a tensor at several indices together.

    Args:
        data: What they are looked up in.
        indices: For each of the first dimensions its integers; None for all of it.
        builder: Binds what is computed on the way.
    """
    axes, tensors = _stated(indices)
    if len(axes) == 1:
        return builder.emit(relax.op.take(data, tensors[0], axes[0]))
    others = [d for d in range(len(data.ty.shape)) if d not in axes]
    found = _permuted(data, [*axes, *others], builder)
    found = builder.emit(relax.op.index_tensor(found, tensors))
    rank = len(broadcast_shape([list(each.ty.shape) for each in tensors]))
    return _permuted(found, _order(axes, rank, len(others)), builder)


def written(
    data: relax.Expr,
    indices: Sequence[relax.Expr | None],
    values: relax.Expr,
    accumulate: bool,
    builder: relax.BlockBuilder,
) -> relax.Expr:
    """The tensor after values are written to several indices together, or added there.

    Args:
        data: What is written to.
        indices: For each of the first dimensions its integers; None for all of it. One tensor of
            booleans is a mask, if one value is written.
        values: What is written; broadcasts to what a lookup gives.
        accumulate: Whether they are added.
        builder: Binds what is computed on the way.

    Raises:
        ValueError: A mask with several values, or among other indices.
    """
    axes, tensors = _stated(indices)
    if any(str(each.ty.dtype) == "bool" for each in tensors):
        return _masked(data, axes, tensors, values, accumulate, builder)
    mode = "add" if accumulate else "update"
    shape = list(data.ty.shape)
    sizes = broadcast_shape([list(each.ty.shape) for each in tensors])
    others = [d for d in range(len(shape)) if d not in axes]
    order = _order(axes, len(sizes), len(others))
    of_lookup = [*sizes, *(shape[d] for d in others)]
    values = _broadcast(values, [of_lookup[d] for d in order], builder)
    if len(axes) == 1 and len(sizes) == 1:
        around = [sizes[0] if d == axes[0] else 1 for d in range(len(shape))]
        places = builder.emit(relax.op.reshape(tensors[0], around))
        places = _broadcast(places, list(values.ty.shape), builder)
        return builder.emit(relax.op.scatter_elements(data, places, values, axes[0], mode))
    back = sorted(range(len(order)), key=order.__getitem__)
    columns = [
        builder.emit(
            relax.op.expand_dims(
                _broadcast(builder.emit(relax.op.astype(each, "int64")), sizes, builder), -1
            )
        )
        for each in tensors
    ]
    places = builder.emit(relax.op.concat(columns, -1)) if len(columns) > 1 else columns[0]
    moved = _permuted(data, [*axes, *others], builder)
    moved = builder.emit(relax.op.scatter_nd(moved, places, _permuted(values, back, builder), mode))
    first = [*axes, *others]
    return _permuted(moved, sorted(range(len(first)), key=first.__getitem__), builder)


def _stated(
    indices: Sequence[relax.Expr | None],
) -> tuple[list[int], list[relax.Expr]]:
    """The dimensions that have an index, and the indices."""
    pairs = [(d, each) for d, each in enumerate(indices) if each is not None]
    return [d for d, _ in pairs], [each for _, each in pairs]


def _order(axes: Sequence[int], rank: int, num_others: int) -> list[int]:
    """For each dimension of torch's result that of (indices.., others..)."""
    in_front = axes[0] if axes[-1] - axes[0] + 1 == len(axes) else 0
    others = range(rank, rank + num_others)
    return [*others[:in_front], *range(rank), *others[in_front:]]


def _masked(
    data: relax.Expr,
    axes: Sequence[int],
    tensors: Sequence[relax.Expr],
    values: relax.Expr,
    accumulate: bool,
    builder: relax.BlockBuilder,
) -> relax.Expr:
    mask, is_one = tensors[0], all(is_one(size) for size in values.ty.shape)
    if len(tensors) > 1 or not is_one:
        raise ValueError(
            "an index of booleans is taken alone, and where one value is written; use torch.where"
        )
    behind = len(data.ty.shape) - axes[0] - len(mask.ty.shape)
    around = [*mask.ty.shape, *([1] * behind)]
    mask = builder.emit(relax.op.reshape(mask, around))
    value = builder.emit(relax.op.reshape(values, []))
    if accumulate:
        value = builder.emit(relax.op.add(data, value))
    return builder.emit(relax.op.where(mask, value, data))


def _broadcast(value: relax.Expr, shape: Sequence[Any], builder: relax.BlockBuilder) -> relax.Expr:
    return builder.emit(relax.op.broadcast_to(value, relax.ShapeExpr(list(shape))))


def _permuted(value: relax.Expr, order: Sequence[int], builder: relax.BlockBuilder) -> relax.Expr:
    if list(order) == list(range(len(order))):
        return value
    return builder.emit(relax.op.permute_dims(value, list(order)))
