"""Translates ``sdy.manual_computation``, which ``jax.shard_map`` writes, and its collectives.

On a mesh of dp=2 and tp=2,

    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"tp", ?}, {?}]>]
        out_shardings=[<@mesh, [{?}, {?}]>] manual_axes={"tp"} (%part: tensor<4x8xf32>) {
      %1 = "stablehlo.all_reduce"(%part) <{replica_groups = dense<[[0, 1], [2, 3]]> ...}> ...
      sdy.return %1 : tensor<4x8xf32>
    } : (tensor<8x8xf32>) -> tensor<4x8xf32>

is a manual region:

    lv = R.dist.enter_manual(x, device_mesh="mesh[0]", placement="R, S[0]", manual_axes=[1])
    lv1 = R.dist.manual_all_reduce(lv, device_mesh="mesh[0]", axes=[1], reduction="sum")
    lv2 = R.dist.leave_manual(lv1, device_mesh="mesh[0]", placement="R, R", manual_axes=[1])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax import op as relax_op

from distir_ext.annotate.open_regions import Region, listed
from distir_ext.annotate.regions import collective_call
from distir_ext.interop.jax.known import Known, Stretched, constant_of, scalar_of, sizes_of
from distir_ext.interop.jax.operations.reduction import reducer_of
from distir_ext.interop.jax.operations.shapes import permuted, reshaped, sliced
from distir_ext.interop.jax.shardings import manual_axes, per_value
from distir_ext.interop.jax.sizes import Size, Sizes
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    dtype_of,
    integer,
    only_block,
    rows_of,
    shape_of,
)
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer
from distir_ext.mesh.groups import axes_of_groups, axes_of_pairs
from distir_ext.native.collective_records import names
from distir_ext.text.errors.spelling import counted


@translates("sdy.manual_computation")
def _manual_computation(writer: Writer, op: Operation) -> list[Known]:
    block = only_block(op)
    given = [writer.values[each] for each in op.operands]
    ins, outs = per_value(op, "in_shardings"), per_value(op, "out_shardings")
    axes = manual_axes(op)
    shardings = writer.program.shardings
    region = shardings.region(writer.region, [*ins, *outs], axes) if axes else None
    if region is None:  # without manual axes: only the shardings are stated
        results = writer.block(block, _constrained(writer, given, ins, "argument"))
        return _constrained(writer, results, outs, "result")
    with writer.inside(region):
        entered = [
            _entered(writer, region, known, sharding, f"argument {index} of a manual computation")
            for index, (known, sharding) in enumerate(zip(given, ins, strict=True))
        ]
        results = writer.block(block, entered)
        parts = [
            writer.part(_placed(writer, region, known, sharding, f"result {index}"))
            for index, (known, sharding) in enumerate(zip(results, outs, strict=True))
        ]
    return [
        _left(writer, region, part, shardings.cuts(sharding, region), index)
        for index, (part, sharding) in enumerate(zip(parts, outs, strict=True))
    ]


def _constrained(
    writer: Writer, values: Sequence[Known], shardings: Sequence[Any], kind: str
) -> list[Known]:
    return [
        known
        if isinstance(known, Sizes)
        else writer.annotated(known, sharding, f"{kind} {index} of a manual computation")
        for index, (known, sharding) in enumerate(zip(values, shardings, strict=True))
    ]


def _entered(writer: Writer, region: Region, known: Known, sharding: Any, entity: str) -> Known:
    """The part of a value that a device has; what is known of a value stays known."""
    dims = writer.program.shardings.cuts(sharding, region)
    sizes = dict(zip(region.mesh.axis_names, region.mesh.shape, strict=True))
    parts = [math.prod(sizes[axis] for axis in cut) for cut in dims]
    if isinstance(known, Sizes):
        return known
    if isinstance(known, tvm.ir.GenericConst) and all(each == 1 for each in parts):
        return known
    if isinstance(known, Stretched) and scalar_of(known.base) is not None:
        shape = zip(known.shape, parts, strict=True)
        return Stretched(known.base, tuple(_divided(writer, *each) for each in shape))
    expr = writer.enter(writer.write_out(known), region.base, dims, region.entered, entity)
    return _placed(writer, region, expr, sharding, entity)


def _divided(writer: Writer, size: Size, parts: int) -> Size:
    if isinstance(size, int):
        return size // parts
    return writer.program.algebra.simplified(tirx.floordiv(size, parts))


def _placed(writer: Writer, region: Region, known: Known, sharding: Any, entity: str) -> Known:
    """A value of a region, sharded along automatic axes as what enters or leaves is stated."""
    if not writer.shape(known):
        return known
    return writer.annotated(known, writer.program.shardings.behind(sharding, region), entity)


def _left(
    writer: Writer, region: Region, part: relax.Expr, dims: Sequence[Sequence[str]], index: int
) -> relax.Expr:
    sizes = dict(zip(region.mesh.axis_names, region.mesh.shape, strict=True))
    shape = [
        writer.program.algebra.simplified(size * math.prod(sizes[axis] for axis in cut))
        for size, cut in zip(sizes_of(part), dims, strict=True)
    ]
    return writer.leave(part, region, dims, shape, f"result {index} of a manual computation")


# ---- collectives

_REDUCTIONS = {
    "stablehlo.add": "sum",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.multiply": "prod",
}
_OF_BOOLEANS = {"stablehlo.or": "max", "stablehlo.and": "min"}


def _communicates(
    name: str, attrs: Callable[[Writer, Operation], dict[str, Any]], kind: str, *, ids: bool = True
) -> None:
    """Enters a collective over groups.

    Args:
        name: Of the operation.
        attrs: Further attributes of the operator.
        kind: Of the operator.
        ids: Whether the operation says that groups are of devices by an attribute of its own.
    """

    @translates(name)
    def _(writer: Writer, op: Operation) -> list[Known]:
        axes = _axes(writer, op, ids)
        if not axes:
            return [writer.known(each) for each in op.operands]
        options = attrs(writer, op)
        return [
            _collective(writer, kind, writer.full(each), axes, **options) for each in op.operands
        ]


def _collective(
    writer: Writer, kind: str, x: relax.Expr, axes: Sequence[str], **attrs: Any
) -> relax.Expr:
    """A collective over axes of the region."""
    assert writer.region is not None
    x = writer.part(x)
    if kind == names.all_to_all and attrs["split_dim"] == attrs["concat_dim"]:
        return _along_one_dim(writer, x, axes, attrs["split_dim"])
    call = collective_call(writer.program.meshes, kind, x, writer.region.mesh, axes, **attrs)
    return writer.emit(call)


def _along_one_dim(writer: Writer, x: relax.Expr, axes: Sequence[str], dim: int) -> relax.Expr:
    """An all-to-all that joins the parts along the dimension that it splits."""
    assert writer.region is not None
    sizes = dict(zip(writer.region.mesh.axis_names, writer.region.mesh.shape, strict=True))
    count = math.prod(sizes[axis] for axis in axes)
    shape = sizes_of(x)
    split = [*shape[:dim], count, _divided(writer, shape[dim], count), *shape[dim + 1 :]]
    parts = reshaped(writer, x, [1, *split])
    parts = _collective(writer, names.all_to_all, parts, axes, split_dim=dim + 1, concat_dim=0)
    order = [*range(1, dim + 1), 0, *range(dim + 1, len(split) + 1)]
    return reshaped(writer, permuted(writer, parts, order), shape)


def _reduction(op: Operation) -> dict[str, Any]:
    name, is_bool = reducer_of(op), dtype_of(op.operands[0]) == "bool"
    found = _REDUCTIONS.get(name) or (_OF_BOOLEANS.get(name) if is_bool else None)
    if found is None:
        raise UnsupportedError(f"by {name}; there are {', '.join(sorted(_REDUCTIONS))}")
    return {"reduction": found}


_communicates("stablehlo.all_reduce", lambda _, op: _reduction(op), names.all_reduce)
_communicates(
    "stablehlo.reduce_scatter",
    lambda _, op: {"dim": integer(op, "scatter_dimension"), **_reduction(op)},
    names.reduce_scatter,
)
_communicates(
    "stablehlo.all_gather", lambda _, op: {"dim": integer(op, "all_gather_dim")}, names.all_gather
)
_communicates(
    "stablehlo.all_to_all",
    lambda _, op: {
        "split_dim": integer(op, "split_dimension"),
        "concat_dim": integer(op, "concat_dimension"),
    },
    names.all_to_all,
    ids=False,
)


@translates("stablehlo.collective_permute")
def _collective_permute(writer: Writer, op: Operation) -> Known:
    region = _region(writer, op, ids=False)
    pairs = rows_of(op, "source_target_pairs")
    if not pairs:
        dtype = dtype_of(op.results[0])
        return constant_of(0, dtype, shape_of(op.results[0]))
    found = axes_of_pairs(region.mesh, pairs, region.manual)
    if found is None:
        raise UnsupportedError(
            f"from devices to devices {_shortened(pairs)}, which are not the same for all along "
            f"axes that stay automatic; the manual axes are {listed(region.manual)}"
        )
    axes, numbers = found
    if not axes:
        return writer.known(op.operands[0])
    listed_pairs = [list(pair) for pair in numbers]
    return _collective(writer, names.permute, writer.full(op.operands[0]), axes, pairs=listed_pairs)


@translates("stablehlo.collective_broadcast")
def _collective_broadcast(writer: Writer, op: Operation) -> Known:
    """Each group has what its first device has, which is at the same place of all groups."""
    groups = rows_of(op, "replica_groups")
    axes = _axes(writer, op, ids=False)
    if not axes:
        return writer.known(op.operands[0])
    mesh = _region(writer, op, ids=False).mesh
    place = {device: number for number, device in enumerate(mesh.device_ids)}
    sources = {sorted(group, key=place.__getitem__).index(group[0]) for group in groups}
    if len(sources) != 1:
        raise UnsupportedError(f"from different places of the groups {_shortened(groups)}")
    x = writer.full(op.operands[0])
    parts = reshaped(writer, x, [1, *sizes_of(x)])
    parts = _collective(writer, names.all_gather, parts, axes, dim=0)
    (source,) = sources
    starts = [source, *[0] * len(sizes_of(x))]
    part = sliced(writer, parts, starts, [source + 1, *sizes_of(x)])
    return reshaped(writer, part, sizes_of(x))


@translates("stablehlo.partition_id")
def _partition_id(writer: Writer, op: Operation) -> Known:
    """The number of a device: of a row of all of them, each has its own."""
    region = writer.region
    if region is None:
        raise UnsupportedError("is outside of a manual computation")
    if region.inner is not None and region.inner.size > 1:
        raise UnsupportedError(
            f"depends on axes that stay automatic; the manual axes are {listed(region.manual)}"
        )
    dtype = dtype_of(op.results[0])
    numbers = relax.const(np.array(region.mesh.device_ids, dtype), dtype)
    own = writer.enter(numbers, region.mesh, (region.manual,), region.manual, "partition_id")
    return writer.emit(relax_op.reshape(own, []))


# ---- who communicates with whom


def _region(writer: Writer, op: Operation, ids: bool) -> Region:
    """The region of a collective.

    Raises:
        UnsupportedError: There is none, or replicas of the program communicate.
    """
    is_over_devices = "channel_handle" in op.attributes
    if ids:
        is_over_devices = is_over_devices and "use_global_device_ids" in op.attributes
    if writer.region is None or not is_over_devices:
        raise UnsupportedError(
            "is between replicas of a program, of which there is one here; within a manual "
            "computation, jax.shard_map in JAX, it is between devices of its mesh"
        )
    return writer.region


# In which the order of a group does not matter, or only which device is first.
_OF_SETS = ("stablehlo.all_reduce", "stablehlo.collective_broadcast")


def _axes(writer: Writer, op: Operation, ids: bool) -> tuple[str, ...]:
    """The axes that the groups of a collective lie along, major to minor; none if each is alone.

    Raises:
        UnsupportedError: They lie along none, or not along manual ones.
    """
    groups = rows_of(op, "replica_groups")
    if groups and all(len(group) == 1 for group in groups):
        return ()
    region = _region(writer, op, ids)
    mesh = region.mesh
    groups = groups or [list(range(mesh.size))]
    if op.name in _OF_SETS:
        place = {device: number for number, device in enumerate(mesh.device_ids)}
        groups = [sorted(group, key=lambda device: place.get(device, -1)) for group in groups]
    axes = axes_of_groups(mesh, groups)
    if axes is None:
        raise UnsupportedError(
            f"in the groups {_shortened(groups)}, which are not those along any axes of {mesh!r}"
        )
    automatic = [axis for axis in axes if axis not in region.manual]
    if automatic:
        raise UnsupportedError(
            f"along {listed(automatic)}, which stays automatic here; the manual axes are "
            f"{listed(region.manual)}"
        )
    return axes


def _shortened(rows: Sequence[Sequence[int]]) -> str:
    shown = ", ".join(str(list(row)) for row in rows[:4])
    return f"[{shown}]" if len(rows) <= 4 else f"[{shown}, ..] ({counted(len(rows), 'row')})"
