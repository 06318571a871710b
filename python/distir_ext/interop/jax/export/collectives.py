"""Converts R.ccl.* of a worker's program to JAX's collectives inside of ``jax.shard_map``.

Devices are named by their positions in the mesh. What moves by a plan, as an exchange does, is a
few collective-permutes: in each, a device sends at most one piece and receives at most one.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from distir_ext.native.collective_records import names, on_tensors

Array = Any


@dataclass(frozen=True)
class Devices:
    """The devices of a program.

    Attributes:
        ids: In the order of the mesh.
        axes: The names of the mesh's axes.
    """

    ids: tuple[int, ...]
    axes: tuple[str, ...]

    def positions(self, groups: Iterable[Iterable[int]]) -> list[list[int]]:
        """Groups of ids as groups of positions."""
        place = {device: position for position, device in enumerate(self.ids)}
        return [[place[int(device)] for device in group] for group in groups]

    def mine(self, table: np.ndarray) -> Array:
        """This device's row of a table that has one for each position."""
        return jnp.asarray(table)[lax.axis_index(self.axes)]


# ---- over groups


def _all_reduce(devices: Devices, x: Array, attrs: Any) -> Array:
    groups = devices.positions(attrs["groups"])
    kind = str(attrs["reduction"])
    if kind == "prod":
        parts = lax.all_gather(x, devices.axes, axis_index_groups=groups)
        return jnp.prod(parts, axis=0)
    reduce = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[kind]
    return reduce(x, devices.axes, axis_index_groups=groups)


def _all_gather(devices: Devices, x: Array, attrs: Any) -> Array:
    groups = devices.positions(attrs["groups"])
    return lax.all_gather(
        x, devices.axes, axis=int(attrs["dim"]), tiled=True, axis_index_groups=groups
    )


def _reduce_scatter(devices: Devices, x: Array, attrs: Any) -> Array:
    if str(attrs["reduction"]) != "sum":
        return _slice(devices, _all_reduce(devices, x, attrs), attrs)
    groups = devices.positions(attrs["groups"])
    return lax.psum_scatter(
        x,
        devices.axes,
        scatter_dimension=int(attrs["dim"]),
        tiled=True,
        axis_index_groups=groups,
    )


def _all_to_all(devices: Devices, x: Array, attrs: Any) -> Array:
    groups = devices.positions(attrs["groups"])
    return lax.all_to_all(
        x,
        devices.axes,
        int(attrs["split_dim"]),
        int(attrs["concat_dim"]),
        tiled=True,
        axis_index_groups=groups,
    )


def _slice(devices: Devices, x: Array, attrs: Any) -> Array:
    groups, dim = devices.positions(attrs["groups"]), int(attrs["dim"])
    index = np.zeros(len(devices.ids), np.int32)
    for group in groups:
        index[group] = range(len(group))
    size = x.shape[dim] // len(groups[0])
    return lax.dynamic_slice_in_dim(x, devices.mine(index) * size, size, dim)


# ---- by a plan


class _Layout:
    """Assignment of the blocks of a tensor to devices (src/abi/layout.h)."""

    def __init__(self, written: Mapping[str, Any]) -> None:
        ids = [first + step * i for first, count, step in written["devices"] for i in range(count)]
        self.parts = tuple(
            int(np.prod([size for _, size in digits], dtype=int)) for digits in written["dims"]
        )
        self.block = {
            device: tuple(_number(digits, position) for digits in written["dims"])
            for position, device in enumerate(ids)
        }
        self.holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for device, block in self.block.items():
            self.holders[block].append(device)


def _number(digits: Sequence[tuple[int, int]], position: int) -> int:
    number = 0
    for stride, size in digits:
        number = number * size + position // stride % size
    return number


class _Senders:
    """Chooses the sender of a block: the device itself, or else the holder that has sent least."""

    def __init__(self, layout: _Layout) -> None:
        self._layout = layout
        self._sent: Counter[int] = Counter()

    def of(self, block: tuple[int, ...], target: int) -> int:
        holders = self._layout.holders[block]
        if target in holders:
            return target
        chosen = min(holders, key=lambda device: (self._sent[device], device))
        self._sent[chosen] += 1
        return chosen


Piece = tuple[int, int, Any, Any]
"""Sender, receiver, where it lies at the sender, where at the receiver."""


def _rounds(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces in rounds in which each device sends and receives at most one."""
    rounds: list[tuple[set[int], set[int], list[Piece]]] = []
    for piece in pieces:
        sender, receiver = piece[:2]
        free = (each for each in rounds if sender not in each[0] and receiver not in each[1])
        chosen = next(free, None)
        if chosen is None:
            chosen = set(), set(), []
            rounds.append(chosen)
        chosen[0].add(sender)
        chosen[1].add(receiver)
        chosen[2].append(piece)
    return [members for _, _, members in rounds]


def _exchange(devices: Devices, x: Array, attrs: Any) -> Array:
    """Every device receives the boxes of its target block."""
    plan = json.loads(str(attrs["plan"]))
    shape = plan["shape"]
    source, target = _Layout(plan["source"]), _Layout(plan["target"])
    held = [size // parts for size, parts in zip(shape, source.parts, strict=True)]
    wanted = [size // parts for size, parts in zip(shape, target.parts, strict=True)]
    by_size: dict[tuple[int, ...], list[Piece]] = defaultdict(list)
    senders = _Senders(source)
    for device, block in target.block.items():
        begin = [index * size for index, size in zip(block, wanted, strict=True)]
        spans = [
            range(first // size, (first + extent - 1) // size + 1)
            for first, extent, size in zip(begin, wanted, held, strict=True)
        ]
        for theirs in product(*spans):
            origin = [index * size for index, size in zip(theirs, held, strict=True)]
            low = np.maximum(begin, origin)
            high = np.minimum(np.add(begin, wanted), np.add(origin, held))
            sender = senders.of(theirs, device)
            piece = sender, device, low - origin, low - begin
            by_size[tuple(map(int, high - low))].append(piece)
    (place,) = devices.positions([devices.ids])
    position = dict(zip(devices.ids, place, strict=True))
    result = jnp.zeros(wanted, x.dtype)
    for size, pieces in by_size.items():
        for members in _rounds(pieces):
            starts = np.zeros((2, len(devices.ids), len(shape)), np.int32)
            receives = np.zeros(len(devices.ids), bool)
            for sender, receiver, there, here in members:
                starts[0, position[sender]], starts[1, position[receiver]] = there, here
                receives[position[receiver]] = True
            moved = lax.dynamic_slice(x, list(devices.mine(starts[0])), size)
            moved = _permuted(devices, moved, members, position)
            updated = lax.dynamic_update_slice(result, moved, list(devices.mine(starts[1])))
            result = jnp.where(devices.mine(receives), updated, result)
    return result


def _permuted(
    devices: Devices, x: Array, members: Sequence[Piece], position: Mapping[int, int]
) -> Array:
    pairs = [(position[sender], position[receiver]) for sender, receiver, *_ in members]
    if all(sender == receiver for sender, receiver in pairs):
        return x  # what devices have themselves
    return lax.ppermute(x, devices.axes, pairs)


def _segment_exchange(devices: Devices, x: Array, attrs: Any) -> Array:
    """Elements along one dimension go to other places (src/abi/segment_plan.h)."""
    plan = json.loads(str(attrs["plan"]))
    dim = plan["dim"]
    source, target = _Layout(plan["source"]), _Layout(plan["target"])
    held = plan["source_size"] // source.parts[dim]
    wanted = plan["target_size"] // target.parts[dim]
    origin = np.full(plan["target_size"], -1)
    for first, place, step, count in plan["segments"]:
        origin[place : place + count] = first + step * np.arange(count)
    pieces: list[Piece] = []
    senders = _Senders(source)
    for device, block in target.block.items():
        begin = block[dim] * wanted
        mine = origin[begin : begin + wanted]
        for theirs in sorted(set(mine[mine >= 0] // held)):
            places = np.flatnonzero((mine >= 0) & (mine // held == theirs))
            sender = senders.of((*block[:dim], int(theirs), *block[dim + 1 :]), device)
            pieces.append((sender, device, mine[places] % held, places))
    position = {device: index for index, device in enumerate(devices.ids)}
    fill = 0 if plan["fill"] == "any" else float(plan["fill"])
    shape = [*x.shape]
    shape[dim] = wanted
    result = jnp.moveaxis(jnp.full(shape, fill, x.dtype), dim, 0)
    for members in _rounds(pieces):
        count = max(len(places) for *_, places in members)
        taken = np.zeros((len(devices.ids), count), np.int32)
        put = np.full((len(devices.ids), count), wanted, np.int32)  # outside: is left out
        for sender, receiver, there, here in members:
            taken[position[sender], : len(there)] = there
            put[position[receiver], : len(here)] = here
        moved = jnp.moveaxis(jnp.take(x, devices.mine(taken), axis=dim), dim, 0)
        moved = _permuted(devices, moved, members, position)
        result = result.at[devices.mine(put)].set(moved, mode="drop")
    return jnp.moveaxis(result, 0, dim)


COLLECTIVES: dict[str, Callable[[Devices, Array, Any], Array]] = {
    on_tensors(names.all_reduce): _all_reduce,
    on_tensors(names.all_gather): _all_gather,
    on_tensors(names.reduce_scatter): _reduce_scatter,
    on_tensors(names.all_to_all): _all_to_all,
    on_tensors(names.slice): _slice,
    on_tensors(names.permute): _exchange,
    on_tensors(names.exchange): _exchange,
    on_tensors(names.segment_exchange): _segment_exchange,
}


def run_collective(devices: Devices, name: str, x: Any, attrs: Any) -> Any:
    """One collective, of a tensor or of each field of a tuple."""
    return jax.tree.map(lambda each: COLLECTIVES[name](devices, each, attrs), x)
