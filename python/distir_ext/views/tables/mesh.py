"""Makes tables of meshes, devices and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from distir_ext.text.tables import amount, new_table
from distir_ext.views.drawing.abbreviation import shown

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Link
    from distir_ext.mesh.device import Device
    from distir_ext.mesh.mesh import Mesh

_MOST_ROWS, _MOST_COLUMNS = 16, 16


def mesh_table(mesh: Mesh) -> Table:
    """The ids of the devices: a column for each index of the last axis, rows for the others."""
    sizes = ", ".join(
        f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.shape, strict=True)
    )
    columns = shown(mesh.shape[-1], _MOST_COLUMNS)
    heads = ["…" if each is None else f"{mesh.axis_names[-1]} {each}" for each in columns]
    ids = "the id of its device" if mesh.size == 1 else f"the ids of its {mesh.size} devices"
    title = f"Mesh {sizes}: {ids}"
    table = new_table(title, *mesh.axis_names[:-1], *heads, texts=0)
    table_ids = np.array(mesh.device_ids).reshape(-1, mesh.shape[-1])
    for row in shown(len(table_ids), _MOST_ROWS):
        if row is None:
            table.add_row(*["…"] * len(table.columns))
            continue
        place = np.unravel_index(row, mesh.shape[:-1]) if mesh.shape[:-1] else ()
        held = ["…" if each is None else str(table_ids[row, each]) for each in columns]
        table.add_row(*map(str, place), *held)
    return table


def device_table(device: Device) -> Table:
    """Returns a table of a device's peak rates, bandwidths and memory."""
    table = new_table(f"Device {device.name}", "what", "peak")
    for dtype, rate in device.flops.items():
        table.add_row(f"{dtype} operations", amount(rate, "FLOP/s"))
    if device.loops is not None:
        table.add_row("float32 operations of loops", amount(device.loops, "FLOP/s"))
    if device.transcendentals is not None:
        table.add_row("transcendentals", amount(device.transcendentals, "/s"))
    table.add_row("memory", amount(device.memory, "B"))
    table.add_row("memory bandwidth", amount(device.bandwidth, "B/s"))
    for size, bandwidth in device.caches.items():
        table.add_row(f"bandwidth of up to {amount(size, 'B')}", amount(bandwidth, "B/s"))
    table.add_row("launch of a kernel", amount(device.launch, "s"))
    if device.step:
        table.add_row("step", amount(device.step, "s"))
    if device.queued_step is not None:
        table.add_row("step in a queue", amount(device.queued_step, "s"))
    return table


def link_table(links: Mapping[str, Link], sizes: Sequence[int | None], launch: float) -> Table:
    """The links of a cluster.

    Args:
        links: By what they join.
        sizes: Number of devices that a link joins; None for any number.
        launch: Seconds that starting a collective takes.
    """
    heads = ("between devices along", "size", "latency", "bandwidth", "gap")
    table = new_table("Links", *heads)
    for (name, link), size in zip(links.items(), sizes, strict=True):
        table.add_row(
            name,
            "any" if size is None else str(size),
            amount(link.latency, "s"),
            amount(link.bandwidth, "B/s"),
            amount(link.gap, "s"),
        )
    table.caption = f"Starting a collective takes {amount(launch, 's')}."
    return table
