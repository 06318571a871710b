"""Computes the communication that textbooks expect of a layer, and reads that of a program.

Tensor parallelism reduces the hidden states once per layer, Megatron's way: a ring sends
``2 (n - 1) / n`` of them. A mixture of experts and its shared expert are one layer, and so are
blocks that are computed side by side and added. What a product by rows gives to other products of
its layer, as Mamba's time steps, is reduced too, and so are the statistics of norms over all heads.
Under attention-dp, a mixture gathers the tokens of all devices and scatters the sum of its experts,
each ``(n - 1) / n``.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Mapping, Sequence

import tvm
from tvm import relax

from distir_ext.annotate.annotations import relax_function
from distir_ext.communication.collectives import collectives
from distir_ext.hints.report import Node, Report
from distir_ext.hints.vocabulary import DistConfig
from distir_ext.native.collective_records import names
from distir_ext.params.host_array import numpy_dtype
from distir_ext.structure.calls import REDUCTION, CallRule
from distir_ext.structure.layers.groups import Group, groups_of
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.layers.sequences import in_sequence
from distir_ext.structure.layers.traces import trace
from distir_ext.structure.program import Program, operator_of, sizes_of

Traffic = Counter[tuple[str, int]]
"""Number of times that each pair of a kind and bytes per device occurs."""

# Planned instead of each other where they send the same: summed before or behind.
_SAME = {names.all_to_all: names.reduce_scatter, names.all_reduce_add_rms_norm: names.all_reduce}


def textbook(mod: tvm.IRModule, report: Report, dist: DistConfig) -> Traffic:
    """Returns the expected communication of a model that is sharded by hints.

    Args:
        mod: The module before hints were applied.
        report: Report of the applied hints.
        dist: Division of the devices.
    """
    stream = Stream(Program(relax_function(mod, "main")))
    found = _Textbook(stream, report, dist)
    for region in stream.regions():
        ends = []
        for group in groups_of(stream, region):
            *before, last = in_sequence(stream, group)
            for each in before:
                found.add_sum([each])
            ends.append(last)
        found.add_sums(ends)
    for size, shards in found.statistics.values():
        found.add(names.all_reduce, _all_reduced(size, shards))
    return found.traffic


def is_expected(found: Traffic, wanted: Traffic) -> bool:
    """Returns whether a program sends what is expected, in no more collectives.

    Reductions that do not wait for each other may have been combined.
    """

    def totals(traffic: Traffic) -> tuple[Counter[str], Counter[str]]:
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for (kind, size), count in traffic.items():
            sizes[kind] += size * count
            counts[kind] += count
        return sizes, counts

    (size, count), (wanted_size, wanted_count) = totals(found), totals(wanted)
    return size == wanted_size and not count - wanted_count


class _Textbook:
    """The communication of layers that were added so far."""

    def __init__(self, stream: Stream, report: Report, dist: DistConfig) -> None:
        self.traffic: Traffic = Counter()
        self.statistics: dict[relax.Var, tuple[int, int]] = {}
        self._stream, self._dist = stream, dist
        self._nodes = {node.param: node for node in report.processed}

    def add_sums(self, groups: Sequence[Group]) -> None:
        """Adds parallel blocks, whose results are added up: first those without a bias."""
        alone = [g for g in groups if any(self._has_bias(g, each) for each in g.closing)]
        for group in alone:
            self.add_sum([group])
        self.add_sum([group for group in groups if group not in alone])

    def add_sum(self, groups: Sequence[Group]) -> None:
        """Adds layers whose results are added up and reduced once, as those of parallel blocks."""
        sizes, counts = [0], [1]
        for group in groups:
            for product in group.products:
                node = self._nodes.get(str(product.param.name))
                if node is None:
                    continue
                if node.tp_mode == "colwise":
                    self._add_statistics(group, product, node)
                elif product in group.closing:
                    sizes.append(self._size(group, product))
                    counts.append(max(node.shards))
                elif node.tp_mode == "rowwise" and product.view.positions is None:
                    self.add(names.all_reduce, _all_reduced(_bytes(product.var), max(node.shards)))
        shards, size = max(counts), max(sizes)
        if self._dist.enable_attention_dp:
            moved = math.ceil(size * (shards - 1) / shards)
            self.add(names.all_gather, moved)
            self.add(names.reduce_scatter, moved)
        else:
            self.add(names.all_reduce, _all_reduced(size, shards))

    def add(self, kind: str, sent: int) -> None:
        if sent:
            self.traffic[kind, sent] += 1

    def _size(self, group: Group, product: Product) -> int:
        """Bytes of what is reduced.

        Of experts it is what they are added up to, unless each of them has a bias, which is added
        once.
        """
        if product.view.positions is None:
            return _bytes(product.var)
        is_summed = self._dist.moe_tp_size > 1 and self._has_bias(group, product)
        return _bytes(product.var if is_summed else group.region.end)

    def _has_bias(self, group: Group, product: Product) -> bool:
        program, views = self._stream.program, self._stream.weights.views
        within = group.region.values
        columns = trace(program, product.var, product.result_dim, within).values
        users = {user for value in columns for user in program.users.get(value, ())}
        return any(
            operator_of(program.made[user]) == "add"
            and any(read in views for read in program.reads(program.made[user]))
            for user in users & within
        )

    def _add_statistics(self, group: Group, product: Product, node: Node) -> None:
        """Adds the sums over a product's columns that no product with a weight computes."""
        program = self._stream.program
        columns = trace(program, product.var, product.result_dim, group.region.values)
        starts = [sum(columns.blocks[:index]) for index in range(len(node.shards))]
        for value, dim in columns.values.items():
            begin, _ = columns.parts.get(value, (0, 0))
            shards = node.shards[max(bisect(starts, begin) - 1, 0)]
            for user in program.users.get(value, ()):
                rule = program.rule(user)
                if rule is None or rule.is_product or user in self._stream.products:
                    continue
                operands = program.operands(program.made[user])
                for operand, dims in zip(operands, rule.operands, strict=True):
                    if operand.same_as(value) and _is_summed(rule, dims[dim]):
                        self.statistics[user] = _bytes(user), shards


def _is_summed(rule: CallRule, factors: tuple[int, ...]) -> bool:
    return any(rule.kinds[factor] == REDUCTION for factor in factors[:1])


def _all_reduced(size: int, shards: int) -> int:
    """Bytes that a device sends in an all-reduce."""
    return math.ceil(2 * size * (shards - 1) / shards)


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
