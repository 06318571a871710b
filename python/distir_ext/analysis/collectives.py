"""Lists the collectives of a lowered program with the bytes that each device sends."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

_PREFIX = "relax.ccl."
# What a fused operator sends.
_SENDS_AS = {"all_reduce_add_rms_norm": "all_reduce"}
_PLANNED = ("permute", "exchange", "transfer", "send", "recv")


@dataclass(frozen=True)
class Collective:
    """One kind of collective in one per-worker function; equal ones are counted together."""

    kind: str
    """The operators name under ``R.ccl``, such as ``all_reduce``, ``send`` or ``recv``."""

    group_size: int
    """Devices per group; for transfers and segment exchanges, the devices that take part."""

    bytes_per_device: int | None
    """Bytes that a device sends, for transfers and segment exchanges the one that sends most.

    None if symbolic."""

    count: int
    """How often it runs in one call of the function, calls of other functions included."""

    function: str
    """The per-worker entry function."""


def collectives(mod: tvm.IRModule) -> list[Collective]:
    """The collectives of every per-worker entry function of a module.

    What sends nothing, as slices, is left out. Bytes follow the ring algorithms.

    Args:
        mod: A module after LowerDistIR, before LowerCCL.

    Returns:
        In the order of first occurrence, entry functions by name.

    Raises:
        ValueError: the module has not been lowered.
    """
    attrs = mod.attrs
    if attrs is None or "distir.signature" not in attrs:
        raise ValueError(
            "the module has no per-worker programs; run distir_ext.transform.LowerDistIR first"
        )
    signature = json.loads(str(attrs["distir.signature"]))
    entries = sorted(
        program["name"]
        for function in signature["functions"].values()
        for program in function["programs"]
    )
    counts = _FunctionCounts(mod)
    return [
        Collective(kind, group_size, size, count, entry)
        for entry in entries
        for (kind, group_size, size), count in counts.of(entry).items()
    ]


_Key = tuple[str, int, int | None]


class _FunctionCounts:
    """Collectives per function, counted once per function however often it is called."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._functions = {gv.name_hint: function for gv, function in mod.functions.items()}
        self._counts: dict[str, Counter[_Key]] = {}

    def of(self, name: str) -> Counter[_Key]:
        if name not in self._counts:
            self._counts[name] = Counter()  # a recursive call counts once
            function = self._functions[name]
            if isinstance(function, relax.Function):
                self._counts[name] = self._count(function)
        return self._counts[name]

    def _count(self, function: relax.Function) -> Counter[_Key]:
        counts: Counter[_Key] = Counter()
        for call in _calls(function.body):
            if isinstance(call.op, tvm.ir.GlobalVar):
                counts.update(self.of(call.op.name_hint))
            elif isinstance(call.op, tvm.ir.Op) and call.op.name.startswith(_PREFIX):
                key = _key(call.op.name.removeprefix(_PREFIX), call)
                if key is not None:
                    counts[key] += 1
        return counts


def _calls(body: relax.SeqExpr) -> Iterator[relax.Call]:
    for block in body.blocks:
        for binding in block.bindings:
            value = getattr(binding, "value", None)
            if isinstance(value, relax.Call):
                yield value
            elif isinstance(value, relax.If):
                yield from _calls(value.true_branch)
                yield from _calls(value.false_branch)


def _key(kind: str, call: relax.Call) -> _Key | None:
    if kind == "segment_exchange":
        devices, sent = _moved_segments(json.loads(str(call.attrs["plan"])), call.args[0].ty)
        return (kind, devices, sent) if devices else None
    if kind in _PLANNED:
        plan = json.loads(str(call.attrs["plan"]))
        tensor = call.ty_args[0] if kind == "recv" else call.args[0].ty
        return kind, len(_participants(plan)), _planned_bytes(kind, plan, tensor)
    group_size = len(call.attrs["groups"][0])
    size = _tensor_bytes(call.args[0].ty)
    if size is None:
        return (kind, group_size, None) if kind != "slice" else None
    sent = tvm_ffi.get_global_func("distir.cost.BytesSent")(
        _SENDS_AS.get(kind, kind), group_size, float(size)
    )
    return (kind, group_size, math.ceil(sent)) if kind != "slice" else None


def _moved_segments(plan: Any, tensor: Any) -> tuple[int, int | None]:
    """The devices that take part, and bytes that the busiest one sends."""
    sent: Counter[int] = Counter()
    devices: set[int] = set()
    for source, target, _, _, _, count in plan["pieces"]:
        if source != target:
            sent[source] += count
            devices |= {source, target}
    local = _tensor_bytes(tensor)
    if local is None:
        return len(devices), None
    return len(devices), max(sent.values(), default=0) * local // plan["source_size"]


def _participants(plan: Any) -> set[int]:
    return {device for source, target, _, _ in plan["pieces"] for device in (source, target)}


def _planned_bytes(kind: str, plan: Any, tensor: Any) -> int | None:
    """Bytes that the busiest device sends; a receiver sends none."""
    if kind == "recv":
        return 0
    local = _tensor_bytes(tensor)
    if local is None:
        return None
    cells = _cells(next(iter(plan["source_boxes"].values())))
    sent: Counter[int] = Counter()
    for source, target, begin, end in plan["pieces"]:
        if source != target:
            sent[source] += _cells((begin, end))
    return max(sent.values(), default=0) * local // cells


def _cells(box: Any) -> int:
    begin, end = box
    return math.prod(e - b for b, e in zip(begin, end, strict=True))


def _tensor_bytes(type_: Any) -> int | None:
    shape = type_.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    size = 1
    for dim in shape.values:
        if not isinstance(dim, tvm.tirx.IntImm):
            return None
        size *= int(dim)
    return size * max(int(tvm.DataType(str(type_.dtype)).bits), 8) // 8
