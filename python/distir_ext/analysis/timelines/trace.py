"""Writes timelines as traces for Perfetto, with arrows from senders to receivers.

An arrow is a pair of flow events ("s", "f") with one id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

import tvm_ffi

from distir_ext.analysis.timelines.events import DeviceGroup, Operation
from distir_ext.native.collective_records import names
from distir_ext.text.trace import MICROSECONDS, THREADS, event_row, name_rows, write_rows


class Traced(Protocol):
    """Parts of a timeline that a trace is written from."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The operations that run."""

    @property
    def stages(self) -> Sequence[str]:
        """The program of each stage."""

    def group_of(self, device: int) -> DeviceGroup:
        """Returns the operations of a device, and their times."""


def write_trace(
    timeline: Traced,
    about: Mapping[str, Any],
    path: str | PathLike[str],
    devices: Iterable[int],
) -> None:
    """Writes the events of some devices."""
    chosen = sorted(set(devices))
    groups = {device: timeline.group_of(device) for device in chosen}  # before anything is written
    write_rows(path, about, _rows(timeline, groups))


def _rows(timeline: Traced, groups: Mapping[int, DeviceGroup]) -> Iterator[dict[str, Any]]:
    yield from name_rows(groups)
    flows = _Flows(timeline, groups)
    for device, group in groups.items():
        for row in range(len(group)):
            operation = timeline.operations[group.operations[row]]
            yield _slice(timeline, device, group, row, operation)
            yield from flows.of(device, group, row, operation)


def _slice(
    timeline: Traced, device: int, group: DeviceGroup, row: int, operation: Operation
) -> dict[str, Any]:
    start = float(group.starts[row])
    is_kernel = operation.stream == "compute"
    args = {
        "variable": operation.name,
        "microbatch": int(group.microbatches[row]),
        "stage": operation.stage,
        "program": timeline.stages[operation.stage],
        "function": operation.function,
        "layer": operation.layer,
        ("bytes accessed" if is_kernel else "bytes sent"): operation.bytes,
    }
    if is_kernel:
        args["flops"] = operation.flops
    else:
        args["axes"] = ", ".join(operation.axes)
        args["waited (us)"] = (start - float(group.arrivals[row])) * MICROSECONDS
    return event_row(
        device,
        operation.stream,
        operation.operator,
        operation.kind,
        start,
        operation.seconds,
        args,
    )


class _Flows:
    """Arrows from sends to receives of the same transfer and turn."""

    def __init__(self, timeline: Traced, groups: Mapping[int, DeviceGroup]) -> None:
        self._ids: dict[tuple[str, int, int, int], int] = {}
        self._turns: dict[tuple[int, str], int] = {}
        self._devices = list(groups)
        self._sources: dict[str, Mapping[int, list[int]]] = {}
        self._targets: dict[str, Mapping[int, list[int]]] = {}

    def of(
        self, device: int, group: DeviceGroup, row: int, operation: Operation
    ) -> Iterator[dict[str, Any]]:
        """The ends of arrows that an event has."""
        if operation.kind not in (names.send, names.recv):
            return
        plan = operation.plan
        turn = self._turns.get((device, plan), 0)
        self._turns[device, plan] = turn + 1
        sources, targets = self._peers(plan)
        is_send = operation.kind == names.send
        for peer in (targets if is_send else sources).get(device, ()):
            pair = (device, peer) if is_send else (peer, device)
            number = self._ids.setdefault((plan, *pair, turn), len(self._ids))
            at = float(group.starts[row]) * MICROSECONDS
            yield {
                "ph": "s" if is_send else "f",
                **({} if is_send else {"bp": "e"}),
                "pid": device,
                "tid": THREADS[operation.stream],
                "name": names.transfer,
                "cat": names.transfer,
                "id": number,
                "ts": at,
            }

    def _peers(self, plan: str) -> tuple[Mapping[int, list[int]], Mapping[int, list[int]]]:
        if plan not in self._sources:
            found = tvm_ffi.get_global_func("distir.analysis.Peers")(plan, self._devices)
            sources, targets = (
                {int(device): [int(each) for each in peers] for device, peers in side}
                for side in found
            )
            self._sources[plan], self._targets[plan] = sources, targets
        return self._sources[plan], self._targets[plan]
