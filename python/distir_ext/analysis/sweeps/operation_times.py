"""Reduces programs to arrays of operations and times, the input of a sweep's simulations.

Consecutive kernels are joined to one operation, so that each configuration is simulated quickly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm_ffi

from distir_ext.analysis.programs.operations import form_of_members, simulated_kind
from distir_ext.analysis.programs.planned_steps import place_of
from distir_ext.analysis.programs.steps import Step
from distir_ext.analysis.roofline import Roofline
from distir_ext.analysis.sweeps.planned_functions import PlannedFunction
from distir_ext.communication.collectives import sent_by_plan, sent_in_group
from distir_ext.mesh.cluster import Cluster
from distir_ext.native.collective_records import names

_KERNEL = simulated_kind("kernel")
_SEND, _RECEIVE = simulated_kind(names.send), simulated_kind(names.recv)

# As src/analysis/timeline/timeline_data.cc reads it.
RECORD = np.dtype([("seconds", "f8"), ("kind", "i4"), ("communication", "i4")])
Records = npt.NDArray[np.void]


@dataclass(frozen=True)
class OperationTimes:
    """Operations of a program, in order. Kernels that follow each other are one."""

    records: Records
    """Of :data:`RECORD`; kernels have the communication -1."""

    bytes_sent: float
    """By a device, in one call."""

    @cached_property
    def computing(self) -> float:
        """Seconds in which kernels run."""
        return float(np.sum(self.records["seconds"][self.records["kind"] == _KERNEL]))

    @cached_property
    def communicating(self) -> float:
        """Seconds of all else."""
        return float(np.sum(self.records["seconds"][self.records["kind"] != _KERNEL]))


class Prices:
    """Costs of steps on a cluster, cached."""

    def __init__(self, cluster: Cluster) -> None:
        assert cluster.device is not None
        self.roofline = Roofline(cluster.device)
        self._seconds_of = tvm_ffi.get_global_func("distir.analysis.CollectiveSeconds")(
            cluster.as_data()
        )
        self._seconds: dict[tuple[str, str, float, float], float] = {}
        self._bytes: dict[tuple[str, str, float, tuple[int, ...]], float] = {}

    def seconds(self, step: Step, text: str) -> float:
        """Returns the seconds that a collective takes with these groups or this plan."""
        key = step.callee, text, step.given_bytes, step.made_bytes
        if key not in self._seconds:
            self._seconds[key] = float(self._seconds_of(*key))
        return self._seconds[key]

    def bytes_sent(self, step: Step, text: str, among: tuple[int, ...]) -> float:
        """Returns the bytes that the busiest device sends in a collective."""
        key = step.callee, text, step.given_bytes, among if step.plan else ()
        if key not in self._bytes:
            if step.plan:
                _, sent = sent_by_plan(step.callee, text, among, step.given_bytes)
            else:
                sent = sent_in_group(step.callee, len(json.loads(text)[0]), step.given_bytes)
            self._bytes[key] = float(math.ceil(sent))
        return self._bytes[key]


class OperationTimesReader:
    """Reads the programs of one module.

    Args:
        functions: Its functions.
        prices: Costs of their steps.
    """

    def __init__(self, functions: Mapping[str, PlannedFunction], prices: Prices) -> None:
        self._functions = functions
        self._prices = prices
        self._found: dict[tuple[str, tuple[int, ...]], OperationTimes] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    @property
    def communications(self) -> list[list[str]]:
        """Forms and texts by the numbers that operations have for them."""
        return [list(each) for each in self._numbers]

    def program(self, name: str, device_ids: tuple[int, ...], microbatches: int) -> OperationTimes:
        """Returns the operations of devices in a call from outside, once for each microbatch."""
        times = self.read(name, device_ids)
        seconds = self._prices.roofline.device.seconds_of_step(microbatches)
        if not seconds:
            return times
        step = np.array([(seconds, _KERNEL, -1)], RECORD)
        records = _with_joined_kernels(np.concatenate([step, times.records]))
        return OperationTimes(records, times.bytes_sent)

    def read(self, name: str, device_ids: tuple[int, ...]) -> OperationTimes:
        """Returns the operations that these devices run of a function."""
        key = name, device_ids
        if key not in self._found:
            self._found[key] = self._joined(self._functions[name], device_ids)
        return self._found[key]

    def _joined(self, planned: PlannedFunction, device_ids: tuple[int, ...]) -> OperationTimes:
        function = planned.function
        parts: list[Records] = []
        rows: list[tuple[float, int, int]] = []
        sent = 0.0
        for step in planned.steps.body.steps:
            assert not step.branches
            if step.kind == "call":
                called = self.read(function.callees[step.callee], device_ids)
                parts += [np.array(rows, RECORD), called.records]
                rows = []
                sent += called.bytes_sent
                continue
            if step.kind == "collective":
                text = function.communications[place_of(step)]
                members = form_of_members(step.callee, step.plan), text
                number = self._numbers.setdefault(members, len(self._numbers))
                seconds = self._prices.seconds(step, text)
                rows.append((seconds, simulated_kind(step.callee), number))
                sent += self._prices.bytes_sent(step, text, device_ids)
                if not step.flops:
                    continue
            cost, _, _ = self._prices.roofline.step_cost(step)
            rows.append((cost.seconds, _KERNEL, -1))
        parts.append(np.array(rows, RECORD))
        return OperationTimes(_with_joined_kernels(np.concatenate(parts)), sent)


def with_sends(programs: Sequence[OperationTimes]) -> list[OperationTimes]:
    """A send takes as long as what receives it."""
    records = np.concatenate([each.records for each in programs])
    received = records[records["kind"] == _RECEIVE]
    seconds = dict(zip(received["communication"].tolist(), received["seconds"], strict=True))
    found = []
    for each in programs:
        changed = each.records.copy()
        for index in np.flatnonzero(changed["kind"] == _SEND):
            number = int(changed["communication"][index])
            changed["seconds"][index] = seconds.get(number, 0.0)
        found.append(OperationTimes(changed, each.bytes_sent))
    return found


def simulated_seconds(
    layout: Mapping[str, Any],
    programs: Sequence[OperationTimes],
    communications: Sequence[Sequence[str]],
) -> float | None:
    """Simulates all programs and returns the seconds; None if devices deadlock.

    Args:
        layout: :meth:`distir_ext.analysis.pipeline_layout.PipelineLayout.as_data`.
        programs: Their operations.
        communications: :attr:`OperationTimesReader.communications`.
    """
    problem = {
        **layout,
        "programs": [each.records.tobytes() for each in programs],
        "communications": communications,
    }
    seconds = float(tvm_ffi.get_global_func("distir.analysis.SimulatedSeconds")(problem))
    return None if seconds < 0 else seconds


def _with_joined_kernels(records: Records) -> Records:
    """Kernels behind each other as one."""
    is_kernel = records["kind"] == _KERNEL
    first = np.ones(len(records), bool)
    first[1:] = ~(is_kernel[1:] & is_kernel[:-1])
    starts = np.flatnonzero(first)
    joined = records[starts]
    if len(starts):
        joined["seconds"] = np.add.reduceat(records["seconds"], starts)
    return joined
