"""Layout of a sharding's picture: a grid of blocks, with devices and ranges of indices.

Rows and columns are two dimensions of the array. If more than two are sharded, there is a grid for
each combination of blocks of the others. If there are too many blocks, those in the middle are left
out, except the blocks of marked devices. Renderers draw this layout, and nothing else.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from distir_ext.mesh.device_text import device_text
from distir_ext.text.errors.spelling import counted
from distir_ext.text.palette import cell_color
from distir_ext.text.printable import shown as line_of
from distir_ext.views.drawing.abbreviation import shown

if TYPE_CHECKING:
    from distir_ext.signature.sharding import Sharding

MOST_ROWS, MOST_COLUMNS, MOST_GRIDS = 10, 8, 6
"""Blocks that a picture shows of a dimension, and grids, if it is not told otherwise."""

# Characters of a device list in a cell.
_LABEL = 12


@dataclass(frozen=True)
class Part:
    """One part of a dimension."""

    number: int
    begin: str
    end: str
    padding: int
    """Indices of padding behind the end, which every device has that holds this part."""
    padded: float
    """Share of the shard that is padding, 0 to 1."""

    @property
    def range(self) -> str:
        """As NumPy slices: ``"4:8"``."""
        return f"{self.begin}:{self.end}"

    @property
    def label(self) -> str:
        """The range, and what is padding: ``"4:7 +1"``."""
        return f"{self.range} +{self.padding}" if self.padding else self.range


@dataclass(frozen=True)
class Side:
    """A dimension that is shown along rows or columns."""

    dim: int
    title: str
    """As ``"dim 0: 8 over dp (2)"``."""
    parts: tuple[Part | None, ...]
    """None stands for those that are left out."""


@dataclass(frozen=True)
class Cell:
    """A block of the array."""

    devices: tuple[int, ...]
    """Devices that hold it."""
    label: str
    """These in few characters."""
    ranges: tuple[str, ...]
    """Per dimension of the array, as NumPy slices."""
    color: str
    marked: bool
    """True if it stands out."""
    empty: bool
    """True if all of it is padding."""

    @property
    def description(self) -> str:
        """All of it in words."""
        who = f"device{'s' if len(self.devices) > 1 else ''} {device_text(self.devices)}"
        what = "padding alone" if self.empty else f"[{', '.join(self.ranges)}]"
        return f"{who}: {what}"


@dataclass(frozen=True)
class Grid:
    """Blocks in rows and columns."""

    title: str
    """Part of the other dimensions that it shows; empty if there is no other grid."""
    cells: tuple[tuple[Cell | None, ...], ...]
    """None where blocks are left out."""


@dataclass(frozen=True)
class Layout:
    """All that a picture shows."""

    title: str
    rows: Side | None
    columns: Side | None
    grids: tuple[Grid | None, ...]
    """None stands for grids that are left out."""
    axes: tuple[tuple[str, str], ...]
    """For each mesh axis its name and size, and what it does."""
    notes: tuple[str, ...]

    @property
    def has_padding(self) -> bool:
        """True if a shard that is shown has padding."""
        cells = [cell for grid in self.grids if grid for row in grid.cells for cell in row if cell]
        sides = [side for side in (self.rows, self.columns) if side]
        parts = [part for side in sides for part in side.parts if part]
        return any(cell.empty for cell in cells) or any(part.padding for part in parts)


def lay_out(
    sharding: Sharding,
    title: str,
    marked: Collection[int] = (),
    most: tuple[int, int, int] = (MOST_ROWS, MOST_COLUMNS, MOST_GRIDS),
) -> Layout:
    """Lays out the picture of a sharding.

    Args:
        sharding: The sharding of an array on its mesh.
        title: Title of the picture.
        marked: Devices whose blocks stand out.
        most: Rows, columns and grids that there is room for.
    """
    blocks = sharding.blocks
    holders: dict[tuple[int, ...], list[int]] = {}
    for device, block in blocks.items():
        holders.setdefault(block, []).append(device)
    wanted = [blocks[device] for device in sorted(marked)]
    notes = [_note_of_shards(sharding, len(holders))]

    drawn = _drawn_dims(sharding)
    *outer, row, column = [None] * (2 - len(drawn)) + drawn
    folded = [dim for dim in range(len(sharding.shape)) if dim not in drawn]
    if folded:
        listed = ", ".join(f"{dim} ({sharding.shape[dim]})" for dim in folded)
        notes.append(f"not sharded and not drawn: {_dims(folded)} {listed}")

    rows = _side(sharding, row, most[0], wanted, notes)
    columns = _side(sharding, column, most[1], wanted, notes)
    outer_dims = [dim for dim in outer if dim is not None]
    combinations = list(itertools.product(*(range(sharding.parts[dim]) for dim in outer_dims)))
    numbers = {each: number for number, each in enumerate(combinations)}
    wanted_grids = {numbers[tuple(block[dim] for dim in outer_dims)] for block in wanted}
    chosen = shown(len(combinations), most[2], wanted_grids)
    if None in chosen:
        kept = sum(each is not None for each in chosen)
        notes.append(f"{kept} of {len(combinations)} grids are drawn")

    def cell(number: int, row_part: Part | None, column_part: Part | None) -> Cell:
        at = dict(zip(outer_dims, combinations[number], strict=True))
        for side, part in ((rows, row_part), (columns, column_part)):
            if side is not None and part is not None:
                at[side.dim] = part.number
        block = tuple(at.get(dim, 0) for dim in range(len(sharding.shape)))
        devices = tuple(sorted(holders.get(block, ())))
        bounds = [sharding.bounds(dim, part) for dim, part in enumerate(block)]
        color = cell_color(
            row_part.number if row_part else 0, column_part.number if column_part else 0, number
        )
        return Cell(
            devices,
            device_text(devices, _LABEL),
            tuple(f"{begin}:{end}" for begin, end, _ in bounds),
            color,
            not marked or not set(marked).isdisjoint(devices),
            any(begin == end and padding for begin, end, padding in bounds),
        )

    def grid(number: int) -> Grid:
        parts = zip(outer_dims, combinations[number], strict=True)
        named = (f"dim {dim}: {_part(sharding, dim, part).label}" for dim, part in parts)
        return Grid(
            ", ".join(named),
            tuple(
                tuple(
                    None if _gap(rows, r) or _gap(columns, c) else cell(number, r, c)
                    for c in (columns.parts if columns else (None,))
                )
                for r in (rows.parts if rows else (None,))
            ),
        )

    grids = tuple(None if number is None else grid(number) for number in chosen)
    layout = Layout(title, rows, columns, grids, tuple(_axes(sharding)), tuple(notes))
    return cast("Layout", _printable(layout))


def _printable(value: Any) -> Any:
    """Returns a value with its texts (names of sizes and axes) made printable."""
    if isinstance(value, str):
        return line_of(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_printable, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return type(value)(**{name: _printable(each) for name, each in fields.items()})
    return value


def _gap(side: Side | None, part: Part | None) -> bool:
    return side is not None and part is None


def _dims(dims: Sequence[int]) -> str:
    return "dimension" if len(dims) == 1 else "dimensions"


def _note_of_shards(sharding: Sharding, blocks: int) -> str:
    shape = " x ".join(map(str, sharding.shard_shape)) or "1"
    devices = len(sharding.devices)
    text = f"{counted(blocks, 'block')} of {shape} on {counted(devices, 'device')}"
    if devices > blocks > 0:
        text += f", each on {devices // blocks}"
    return f"{text}; the numbers are device ids"


def _drawn_dims(sharding: Sharding) -> list[int]:
    """The dimensions that are drawn: all of a matrix; else those that are sharded, at least two."""
    ndim = len(sharding.shape)
    sharded = [dim for dim in range(ndim) if sharding.parts[dim] > 1]
    others = [dim for dim in range(ndim) if dim not in sharded]
    missing = max(0, min(ndim, 2) - len(sharded))
    return sorted([*sharded, *others[len(others) - missing :]])


def _part(sharding: Sharding, dim: int, number: int) -> Part:
    begin, end, padding = sharding.bounds(dim, number)
    held = sharding.shard_shape[dim]
    padded = padding / held if isinstance(held, int) and held else 0.0
    return Part(number, begin, end, padding, padded)


def _side(
    sharding: Sharding,
    dim: int | None,
    most: int,
    wanted: Sequence[Sequence[int]],
    notes: list[str],
) -> Side | None:
    if dim is None:
        return None
    count = sharding.parts[dim]
    chosen = shown(count, most, {block[dim] for block in wanted})
    if None in chosen:
        kept = sum(each is not None for each in chosen)
        notes.append(f"dimension {dim}: {kept} of {count} blocks are drawn")
    parts = tuple(None if each is None else _part(sharding, dim, each) for each in chosen)
    return Side(dim, _side_title(sharding, dim), parts)


def _side_title(sharding: Sharding, dim: int) -> str:
    names = sharding.dims[dim]
    names = (names,) if isinstance(names, str) else tuple(names or ())
    text = f"dim {dim}: {sharding.shape[dim]}"
    if not names:
        return text
    sizes = " x ".join(str(_axis_size(sharding, name)) for name in names)
    return f"{text} over {', '.join(names)} ({sizes})"


def _axis_size(sharding: Sharding, name: str) -> int:
    """The size of an axis, or of a part of one, ``"tp:(2)4"``."""
    mesh = sharding.mesh
    if name in mesh.axis_names:
        return mesh.shape[mesh.axis_names.index(name)]
    found = re.search(r":\(\d+\)(\d+)$", name)
    assert found is not None, name
    return int(found[1])


def _axes(sharding: Sharding) -> list[tuple[str, str]]:
    """Describes the use of each mesh axis: the dimensions that it shards, or replication."""
    mesh = sharding.mesh
    uses: dict[str, list[tuple[str, int]]] = {name: [] for name in mesh.axis_names}
    for dim, names in enumerate(sharding.dims):
        for name in (names,) if isinstance(names, str) else names or ():
            axis = name if name in uses else name.rpartition(":(")[0]
            uses[axis].append((name, dim))
    found = []
    for axis, size in zip(mesh.axis_names, mesh.shape, strict=True):
        sharded = math.prod(_axis_size(sharding, name) for name, _ in uses[axis])
        texts = [
            f"shards dim {dim}" if name == axis else f"{name} shards dim {dim}"
            for name, dim in uses[axis]
        ]
        if sharded < size:
            texts.append("the rest replicates" if texts else "replicates")
        found.append((f"{axis} = {size}", ", ".join(texts) or "has one device"))
    return found
