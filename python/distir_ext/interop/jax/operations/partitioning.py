"""Translates GSPMD's custom calls that state shardings, and enter and leave manual regions.

On a mesh of two devices, which JAX writes for ``shard_map`` where Shardy is switched off:

    %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"}
        : (tensor<8x8xf32>) -> tensor<4x8xf32>
    %2 = stablehlo.add %1, %1 : tensor<4x8xf32>
    %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {mhlo.sharding = "{devices=[2,1]<=[2]}"}
        : (tensor<4x8xf32>) -> tensor<8x8xf32>

is a manual region, where %0 states "{devices=[2,1]<=[2]}", too:

    lv = R.dist.enter_manual(x, device_mesh="mesh[0]", placement="S[0]", manual_axes=[0])
    lv1 = R.add(lv, lv)
    lv2 = R.dist.leave_manual(lv1, device_mesh="mesh[0]", placement="S[0]", manual_axes=[0])
"""

from __future__ import annotations

import math

from distir_ext.annotate.open_regions import Region
from distir_ext.interop.jax.hlo_shardings import (
    HLO_SHARDING,
    OF_RESULT,
    SHARDING,
    TO_FULL,
    TO_SHARD,
    HloStated,
    stated_by,
)
from distir_ext.interop.jax.known import Known, sizes_of
from distir_ext.interop.jax.shardings import sharding_of
from distir_ext.interop.jax.stablehlo import Operation, UnsupportedError
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer

_FULL = "what enters a manual region"
_PART = "what leaves a manual region"


@translates(f"@{SHARDING}")
def _sharding(writer: Writer, op: Operation) -> Known:
    """The value as it is: what is stated of results is read for all operations."""
    known = writer.known(op.operands[0])
    stated = stated_by(op)
    region = None if stated is None else _region(writer, _stated(op))
    if region is None or writer.region is not None:
        return known
    with writer.entering(region):  # a constant, which has entered by no call
        return writer.part(known)


@translates(f"@{OF_RESULT}")
def _of_result(writer: Writer, op: Operation) -> Known:
    """Translates the call by which Shardy states the sharding of a function's result for HLO."""
    return writer.known(op.operands[0])


@translates(f"@{TO_SHARD}")
def _to_shard(writer: Writer, op: Operation) -> Known:
    region = _region(writer, _stated(op))
    if region is None:
        raise UnsupportedError(f"is to no manual axes: it states {_stated(op).text}")
    given = sharding_of(op.operands[0])
    full = writer.part(writer.full(op.operands[0]))
    if given is None and op.operands[0].type != op.results[0].type:
        raise UnsupportedError(
            f"is given a value that states no sharding, of the type {op.operands[0].type}, and "
            f"gives {op.results[0].type}: along which axes it is cut stands nowhere"
        )
    dims = None if given is None else writer.program.shardings.cuts(given, region)
    with writer.entering(region):
        return writer.enter(full, region.base, dims, region.entered, _FULL)


@translates(f"@{TO_FULL}")
def _to_full(writer: Writer, op: Operation) -> Known:
    part = writer.part(writer.full(op.operands[0]))
    with writer.leaving() as region:
        dims = writer.program.shardings.cuts(_stated(op), region)
        extents = dict(zip(region.mesh.axis_names, region.mesh.shape, strict=True))
        shape = [
            writer.program.algebra.simplified(size * math.prod(extents[axis] for axis in cut))
            for size, cut in zip(sizes_of(part), dims, strict=True)
        ]
        return writer.leave(part, region, dims, shape, _PART)


def _stated(op: Operation) -> HloStated:
    stated = stated_by(op)
    if stated is None or len(stated) != 1:
        raise UnsupportedError(f"states no {HLO_SHARDING} of its one result")
    return stated[0]


def _region(writer: Writer, stated: HloStated) -> Region | None:
    """The region of a value, in the one around; None if it is in none besides."""
    return writer.program.shardings.region_of(stated, writer.region)
