"""Which weights of a detected layer are sharded by columns, which by rows, and how they are fused.

Products alternate: one by columns, the next by rows, whose results are summed over the devices.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tvm import relax

from distir_ext._hints.groups import Group
from distir_ext._hints.kinds import latents
from distir_ext._hints.products import Product
from distir_ext._hints.program import sizes_of
from distir_ext._hints.traces import trace, unit_of_contracted

COLUMNS, ROWS, NONE = "colwise", "rowwise", "none"


@dataclass(frozen=True)
class Mode:
    """What was found of a weight.

    Attributes:
        param: The weight.
        tp_mode: As hints have it.
        output_sizes: Of the blocks that its columns are cut into; empty if they are not.
        units: How many columns or rows stay together, per block.
        size: How many columns or rows there are; 0 if it is not sharded.
    """

    param: relax.Var
    tp_mode: str
    output_sizes: tuple[int, ...] = ()
    units: tuple[int, ...] = (1,)
    size: int = 0


def modes_of(group: Group, layer_type: str) -> list[Mode]:
    """The modes of all weights of a layer, in the order of its products."""
    found: dict[relax.Var, Mode] = {}
    for product, tp_mode in _tp_modes(group, layer_type).items():
        found.setdefault(product.param, _mode(group, product, tp_mode))
    return list(found.values())


def _mode(group: Group, product: Product, tp_mode: str) -> Mode:
    if tp_mode == ROWS:
        unit = unit_of_contracted(group.program, product.data, product.data_dim)
        return Mode(product.param, ROWS, (), (unit,), _size(product.param, product.in_dim))
    if tp_mode == NONE or _columns(product) == 1:  # nothing to shard
        return Mode(product.param, NONE)
    # Not only within the group: its gate may lead past what the closing product reads.
    found = trace(group.program, product.var, product.result_dim, group.region.values)
    ends = [sum(found.blocks[: index + 1]) for index in range(len(found.blocks))]
    units = tuple(found.unit(end - size, end) for end, size in zip(ends, found.blocks, strict=True))
    blocks = found.blocks if len(units) > 1 else ()
    return Mode(product.param, COLUMNS, blocks, units, _size(product.param, product.out_dim))


def _size(param: relax.Var, dim: int) -> int:
    sizes = sizes_of(param)
    return max(sizes[dim], 0) if sizes else 0


def _tp_modes(group: Group, layer_type: str) -> dict[Product, str]:
    if layer_type == "unknown":
        return dict.fromkeys(group.products, NONE)
    if layer_type == "mla":
        return _alternating(group, latents(group))
    if layer_type == "moe":
        on_the_way = [
            product
            for product in group.products
            if product.view.positions is None and _is_routed(group, product)
        ]
        return _alternating(group, on_the_way)
    return _alternating(group, ())


def _is_routed(group: Group, product: Product) -> bool:
    """Whether a product leads to experts, or comes behind them: a router, a latent of experts."""
    if product in group.routers or set(group.sources(product)) & set(group.experts):
        return True
    leads = any(product in group.sources(expert) for expert in group.experts)
    return leads or (product in group.closing and not group.sources(product))


def _alternating(group: Group, replicated: Iterable[Product]) -> dict[Product, str]:
    """Rows where columns come in, else columns."""
    found = dict.fromkeys(replicated, NONE)
    for product in group.products:
        if product not in found:
            before = [found.get(each) for each in group.direct_sources(product)]
            found[product] = ROWS if COLUMNS in before else COLUMNS
    return {product: found[product] for product in group.products}


def _columns(product: Product) -> int:
    return (sizes_of(product.param) or ())[product.out_dim]
