"""Reads the collectives of a program that XLA has compiled, with the bytes that a device sends."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
_TENSOR = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_COLLECTIVE = re.compile(
    r"= (?P<type>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all"
    r"|collective-permute)(?:-start)?\("
)


@dataclass(frozen=True)
class XlaCollective:
    """One collective of the optimised HLO."""

    kind: str
    """Such as ``all-reduce``."""

    devices: int
    """Devices per group."""

    sent: float
    """Bytes that a device sends by ring factors."""


def collectives(hlo: str) -> list[XlaCollective]:
    """The collectives of an optimised HLO module without loops.

    Args:
        hlo: Its text, as ``compiled.as_text()`` gives it.

    Raises:
        ValueError: The groups of a collective are written in an unknown form.
    """
    found = []
    for line in hlo.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None:
            continue
        kind = match["kind"]
        tensors = [_tensor_bytes(*tensor) for tensor in _TENSOR.findall(match["type"])]
        if "-start(" in match[0]:  # the type holds the operands first, then the results
            tensors = tensors[len(tensors) // 2 :]
        size = sum(tensors)
        if kind == "collective-permute":
            pairs = re.findall(r"\{(\d+),(\d+)\}", line.split("source_target_pairs=")[1])
            found.append(XlaCollective(kind, 2, size if any(a != b for a, b in pairs) else 0))
            continue
        devices = _group_size(line)
        share = (devices - 1) / devices
        factor = {"all-reduce": 2 * share, "reduce-scatter": devices - 1}.get(kind, share)
        found.append(XlaCollective(kind, devices, factor * size))
    return found


def _tensor_bytes(dtype: str, dims: str) -> int:
    return _BYTES.get(dtype, 0) * math.prod(int(dim) for dim in dims.split(",") if dim)


def _group_size(line: str) -> int:
    if match := re.search(r"replica_groups=\[([\d,]+)\]<=", line):
        return int(match[1].split(",")[-1])
    if match := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return len(match[1].split(","))
    if match := re.search(r"replica_groups=mesh\[(.*?)\].*?\{('[^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        return math.prod(
            int(part) if part else sizes[name]
            for name, part in re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])
        )
    raise ValueError(f"unknown form of replica groups: {line.strip()[:200]}")
