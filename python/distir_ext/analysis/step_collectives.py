"""Kind, mesh axes, bytes and cause of the collectives among a program's steps."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm_ffi

from distir_ext._analysis.steps import Body, FunctionSteps, Step
from distir_ext._meshes.mesh_axes import MeshAxes, NamedMesh
from distir_ext._native.collective_records import names, records
from distir_ext.communication.collectives import sent_by_plan, sent_in_group


@dataclass(frozen=True)
class StepCollective:
    """Traffic of a collective."""

    kind: str
    """Its name under ``R.ccl``."""
    axes: tuple[str, ...]
    """The mesh axes that it communicates over; none for transfers between meshes."""
    group_size: int
    """Devices per group; of a plan, those that take part."""
    bytes: float
    """That a device sends; of a plan, the one that sends most."""


class StepCollectives:
    """Reads steps of collectives, each list of groups and each plan once.

    Args:
        meshes: Whose axes are named.
    """

    def __init__(self, meshes: Iterable[NamedMesh]) -> None:
        self._meshes = MeshAxes(meshes)
        self._known: dict[tuple[Any, ...], StepCollective | None] = {}

    def of(self, step: Step, among: Sequence[int] | None) -> StepCollective | None:
        """Returns the traffic of a step; None where nothing is sent.

        Args:
            step: A collective.
            among: The devices that run it; None for all.
        """
        devices = tuple(among) if among is not None and step.plan else None
        key = step.callee, step.plan or step.groups, step.given_bytes, devices
        if key not in self._known:
            self._known[key] = self._read(step, devices)
        return self._known[key]

    def _read(self, step: Step, among: tuple[int, ...] | None) -> StepCollective | None:
        record = records().get(step.callee)
        if record is None or not (step.plan or step.groups):
            return None
        if not step.plan:
            group = json.loads(step.groups)[0]
            sent = sent_in_group(record.name, len(group), step.given_bytes)
            return StepCollective(record.name, self._meshes.of_group(group), len(group), sent)
        devices, sent = sent_by_plan(record.name, step.plan, among, step.given_bytes)
        if not devices:
            return None
        axes: tuple[str, ...] = ()
        if not record.is_side:
            axes_of = tvm_ffi.get_global_func(record.plan_function("Axes"))
            axes = self._meshes.of_move(partial(axes_of, step.plan))
        kind = kind_of_transfer(step.plan) if record.name == names.transfer else record.name
        return StepCollective(kind, axes, devices, sent)


def kind_of_transfer(plan: str) -> str:
    """Returns the collective that a transfer was lowered from; three share one runtime builtin.

    A permute moves whole blocks on the devices of one mesh, an exchange parts of blocks, and a
    transfer leaves the mesh.
    """
    sides = [json.loads(plan)[side] for side in ("source", "target")]
    devices, counts = (
        [_devices(side["devices"]) for side in sides],
        [[math.prod(size for _, size in dim) for dim in side["dims"]] for side in sides],
    )
    if devices[0] != devices[1]:
        return names.transfer
    return names.permute if counts[0] == counts[1] else names.exchange


def _devices(runs: Sequence[Sequence[int]]) -> set[int]:
    return {first + step * index for first, count, step in runs for index in range(count)}


class Causes:
    """Because of which operators collectives of a function are there.

    Args:
        function: Its steps before fusion.
        functions: All of these, by name.
    """

    def __init__(self, function: FunctionSteps, functions: Mapping[str, FunctionSteps]) -> None:
        self._functions = functions
        self._body_of: dict[int, tuple[Body, int]] = {}
        self._outer: dict[int, Step] = {}
        self._by_name: dict[str, Step] = {}
        self._enter(function.body, None)

    def _enter(self, body: Body, branch: Step | None) -> None:
        if branch is not None:
            self._outer[id(body)] = branch
        for index, step in enumerate(body.steps):
            self._body_of[id(step)] = body, index
            self._by_name[step.name] = step
            for side in step.branches:
                self._enter(side, step)

    def tensors(self, step: Step) -> tuple[str, ...]:
        """The variables that are sent; of a receive, what it gives."""
        return step.reads[:1] or (step.name,)

    def operators(self, step: Step) -> tuple[str, ...]:
        """Returns the operators that make a reduced or sent value, else those that read it."""
        record = records()[step.callee]
        asks_before = record.reduces or not record.has_result
        found = self._makers(step) if asks_before else self._readers(step)
        return tuple(dict.fromkeys(found))

    def _makers(self, step: Step) -> Iterator[str]:
        body, _ = self._body_of[id(step)]
        sent = self._by_name.get(step.reads[0]) if step.reads else None
        made_by = [body.steps[index] for index in step.after if index >= 0]
        for each in [sent] if sent is not None else made_by:
            if each.kind == "collective":
                yield from self._makers(each)
            elif each.kind != "branch":
                yield self._operator(each)

    def _readers(self, step: Step) -> Iterator[str]:
        body, index = self._body_of[id(step)]
        if index in body.result_after:
            outer = self._outer.get(id(body))
            yield from ["return"] if outer is None else self._readers(outer)
        for each in body.steps:
            if index not in each.after:
                continue
            if each.kind == "collective":
                yield from self._readers(each)
            elif each.kind != "branch":
                yield self._operator(each)

    def _operator(self, step: Step) -> str:
        callee = self._functions.get(step.callee) if step.kind == "call" else None
        return (callee.operator if callee is not None else "") or step.callee
