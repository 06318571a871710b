"""The tables that a demonstration prints: where its tensors are, and what is communicated."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from rich.box import SIMPLE_HEAD
from rich.table import Table
from tvm.relax.distributed import DeviceMesh, DTensorType

from distir_ext._blocks import blocks_of, shard_shape
from distir_ext.analysis import Collective
from distir_ext.demo.case import Case
from distir_ext.notation import Notation


@dataclass(frozen=True)
class PlacementRow:
    """Parameters that have the same place and, but for numbers in it, the same name."""

    name: str
    """The name; where several share the row, numbers in which they differ are ``*``."""

    shape: tuple[int, ...]
    """The global shape."""

    dtype: str
    """The element type."""

    devices: str
    """The devices of the mesh, such as "2x4: 0-7"."""

    sharding: str
    """The mesh axes of each dimension, as a plan states them: "('dp', None)"."""

    local_shape: tuple[int, ...]
    """The shape on each device."""


def placement_rows(case: Case, propagated: tvm.IRModule) -> list[tuple[PlacementRow, int]]:
    """Where a case's parameters are after propagation.

    Args:
        case: The case, for the names of mesh axes.
        propagated: Its module after PropagateSharding.

    Returns:
        Distinct rows in the order of the parameters, each with the number of parameters in it.
    """
    notation = Notation(propagated)
    found = [_row(notation, param) for param in propagated[case.function].params]
    patterns = [replace(row, name=re.sub(r"\d+", "*", row.name)) for row in found]
    counts = Counter(patterns)
    rows = {}
    for row, pattern in zip(found, patterns, strict=True):
        rows[pattern if counts[pattern] > 1 else row] = counts[pattern]
    return list(rows.items())


def placement_table(rows: Iterable[tuple[PlacementRow, int]]) -> Table:
    """A table of :func:`placement_rows`."""
    table = _table("tensor", "count", "shape", "type", "devices", "sharding", "local")
    table.columns[0].overflow = "fold"
    table.columns[1].justify = "right"
    for row, count in rows:
        table.add_row(
            row.name.removesuffix(".weight"),
            str(count),
            _shape(row.shape),
            row.dtype,
            row.devices,
            row.sharding,
            _shape(row.local_shape),
        )
    return table


def collective_table(collectives: Sequence[Collective]) -> Table:
    """A table of the collectives of a lowered program, with what each device sends."""
    table = _table("collective", "program", "group size", "count", "bytes each", "bytes total")
    for column in table.columns[2:]:
        column.justify = "right"
    merged: Counter[tuple[str, str, int, float, str]] = Counter()
    for each in collectives:
        size = each.bytes_per_device if each.bytes_per_unit is None else each.bytes_per_unit
        merged[each.kind, each.function, each.group_size, size or 0, each.unit] += each.count
    for (kind, function, group_size, sent, unit), count in merged.items():
        texts = [f"{value:,} {unit}".rstrip() for value in (sent, sent * count)]
        table.add_row(kind, function, str(group_size), str(count), *texts)
    return table


def mesh_label(mesh: DeviceMesh) -> str:
    """A mesh's shape and devices: "2x4: 0-7"."""
    ids = [int(device) for device in mesh.device_ids]
    devices = ",".join(map(str, ids))
    if len(ids) > 1 and ids == list(range(ids[0], ids[0] + len(ids))):
        devices = f"{ids[0]}-{ids[-1]}"
    return f"{'x'.join(str(int(size)) for size in mesh.shape)}: {devices}"


def _table(*columns: str) -> Table:
    # Narrow enough for the widest table on a terminal of 80 columns.
    return Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def _row(notation: Notation, param: Any) -> PlacementRow:
    type_ = param.ty
    tensor = type_.tensor_ty if isinstance(type_, DTensorType) else type_
    shape = tuple(int(size) for size in tensor.shape.values)
    dtype = str(tensor.dtype)
    if tensor is type_:
        return PlacementRow(param.name, shape, dtype, "-", "not placed", shape)
    mesh, placed = type_.device_mesh, [int(each.axis) for each in type_.placement.dim_specs]
    blocks = blocks_of(tuple(mesh.shape), tuple(mesh.device_ids), placed, len(shape))
    local = shard_shape(shape, blocks.parts)
    return PlacementRow(
        param.name, shape, dtype, mesh_label(mesh), str(notation.dims(type_)), local
    )


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"
