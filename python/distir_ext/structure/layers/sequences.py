"""Finds layers that follow each other without a residual stream in between.

Zamba's shared block is attention, then a feed-forward layer, then a product, and only what comes
out of it is added to the stream. All that is computed there goes through the last product of
attention, which ends a layer, then:

    h + linear(mlp(norm(attention(norm(h, embedding)))))  ->  attention | mlp | linear
"""

from __future__ import annotations

from distir_ext.structure.layers.adapters import adapters_of, is_narrower
from distir_ext.structure.layers.groups import Group
from distir_ext.structure.layers.kinds import kind_of
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.regions import Stream


def in_sequence(stream: Stream, group: Group) -> list[Group]:
    """The layers of a group in the order of what they compute; most groups are one."""
    found = []
    while (parts := _first_of(stream, group)) is not None:
        first, group = parts
        found.append(first)
    return [*found, group]


def _first_of(stream: Stream, group: Group) -> tuple[Group, Group] | None:
    """The first layer of a group, and the rest; None where there is no rest."""
    if group.experts:
        return None
    for product in group.products:
        if product in group.closing:
            continue
        parts = _divided(stream, group, product)
        if parts is not None and _is_layer(parts[0]):
            return parts
    return None


def _divided(stream: Stream, group: Group, last: Product) -> tuple[Group, Group] | None:
    """Splits a group after a product; None if a value bypasses that product."""
    program = group.program
    cone = program.ancestors([last.var], group.values)
    rest = group.values - cone
    before = [product for product in group.products if product.var in cone]
    computed = {product.var for product in before}
    for binding in program.bindings:  # what is made of products before the last one
        if binding.var in cone and any(read in computed for read in program.reads(binding.value)):
            computed.add(binding.var)
    barred = computed - {last.var}
    for var in rest:
        for read in program.reads(program.made[var]):
            if read in barred or stream.near.get(read):
                return None
    after = tuple(product for product in group.products if product.var in rest)
    if not after:
        return None
    first = Group(program, group.region, (last,), tuple(before), frozenset(cone))
    return first, Group(program, group.region, group.closing, after, frozenset(rest))


def _is_layer(group: Group) -> bool:
    """Returns whether products form a layer; two with a latent in between do not."""
    kind = kind_of(group).layer_type
    if kind != "mlp":
        return kind != "unknown"
    aside = {each for found in adapters_of(group) for each in (found.down, found.up)}
    opening = [each for each in group.products if group.is_opening(each) and each not in aside]
    return not all(map(is_narrower, opening))
