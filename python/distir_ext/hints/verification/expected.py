"""Expected communication of a layer according to textbooks, and that of a program.

Tensor parallelism reduces the hidden states once per layer, Megatron's way: a ring sends
``2 (n - 1) / n`` of them. A mixture of experts and its shared expert are one layer. Under
attention-dp, a mixture gathers the tokens of all devices and scatters the sum of its experts, each
``(n - 1) / n``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

import tvm
from tvm import relax

from distir_ext.annotate.annotations import relax_function
from distir_ext.communication.collectives import collectives
from distir_ext.hints.report import Node, Report
from distir_ext.hints.vocabulary import DistConfig
from distir_ext.native.collective_records import names
from distir_ext.params.host_array import numpy_dtype
from distir_ext.structure.program import Program, sizes_of
from distir_ext.structure.regions import Stream

Traffic = Counter[tuple[str, int]]
"""Number of times that each pair of a kind and bytes per device occurs."""

# Planned instead of each other where they send the same: summed before or behind.
_SAME = {names.all_to_all: names.reduce_scatter, names.all_reduce_add_rms_norm: names.all_reduce}


def textbook(report: Report, dist: DistConfig, stream_bytes: int) -> Traffic:
    """Returns the expected communication of a model that is sharded by hints.

    Args:
        report: Report of the applied hints.
        dist: Division of the devices.
        stream_bytes: Of the hidden states of the devices that share layers.
    """
    found: Traffic = Counter()
    for nodes in _layers(report.processed).values():
        reduced = [node for node in nodes if node.tp_mode == "rowwise"]
        shards = max((each for node in reduced for each in node.shards), default=1)
        if shards == 1:
            continue
        moved = stream_bytes * (shards - 1)
        times = 1 if _is_mixture(nodes) else max(node.uses for node in reduced)
        if dist.enable_attention_dp:
            found[names.all_gather, math.ceil(moved / shards)] += times
            found[names.reduce_scatter, math.ceil(moved / shards)] += times
        else:
            found[names.all_reduce, math.ceil(2 * moved / shards)] += times
    return found


def stream_bytes(mod: tvm.IRModule, report: Report) -> int:
    """Returns the bytes of the hidden states: the results of products by rows; 0 without any.

    Sharded or not: under attention-dp only experts are, whose products are larger, as they have a
    row per token and expert. Of a model of experts alone it is what they are added up to.
    """
    rows = {node.param for node in report.nodes if node.tp_mode == "rowwise"}
    experts = {node.param for node in report.nodes if node.layer_type == "moe"}
    stream = Stream(Program(relax_function(mod, "main")))
    hidden = [
        each.var
        for each in stream.products.values()
        if str(each.param.name) in rows - experts and each.view.looked_up is None
    ]
    if not hidden:
        hidden = [
            region.end
            for region in stream.regions()
            if any(str(each.param.name) in rows for each in region.products)
        ]
    return max(map(_bytes, hidden), default=0)


def _bytes(var: relax.Var) -> int:
    sizes = sizes_of(var)
    return math.prod(sizes) * numpy_dtype(str(var.ty.dtype)).itemsize if sizes else 0


def communicated(lowered: tvm.IRModule) -> Traffic:
    """Returns the communication of a lowered module."""
    found: Traffic = Counter()
    for each in collectives(lowered):
        found[_SAME.get(each.kind, each.kind), each.bytes_per_device or 0] += each.count
    return found


def as_text(traffic: Mapping[tuple[str, int], int]) -> str:
    """Traffic for a table: ``"8 all_reduce of 8192 B"``."""
    return ", ".join(f"{n} {kind} of {size} B" for (kind, size), n in traffic.items()) or "none"


def _layers(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    found: dict[str, list[Node]] = {}
    for node in nodes:
        found.setdefault(node.layer, []).append(node)
    return found


def _is_mixture(nodes: Iterable[Node]) -> bool:
    """Returns whether nodes are of experts, whose products may share one weight."""
    return any(node.layer_type == "moe" for node in nodes)
