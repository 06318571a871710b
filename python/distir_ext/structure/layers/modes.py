"""Chooses column or row sharding for each weight of a detected layer, and finds its blocks.

Products alternate: one by columns, the next by rows, whose results are summed over the devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.layers.adapters import adapters_of
from distir_ext.structure.layers.groups import Group
from distir_ext.structure.layers.kinds import Kind, latents
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.traces import trace, unit_of_contracted
from distir_ext.structure.program import sizes_of

COLUMNS, ROWS, NONE = "colwise", "rowwise", "none"


@dataclass(frozen=True)
class Mode:
    """Tensor-parallel mode of a weight, and its blocks.

    Attributes:
        param: The weight.
        tp_mode: As hints have it.
        output_sizes: Sizes of the blocks that its columns are split into; empty if there are none.
        units: Number of columns or rows per block that stay on one device, as those of a head.
        size: Number of columns or rows; 0 if it is not sharded.
        why: Why it is not sharded; empty if it is.
    """

    param: relax.Var
    tp_mode: str
    output_sizes: tuple[int, ...] = ()
    units: tuple[int, ...] = (1,)
    size: int = 0
    why: str = ""


def modes_of(group: Group, kind: Kind) -> list[Mode]:
    """The modes of all weights of a layer, in the order of its products."""
    found: dict[relax.Var, Mode] = {}
    for product, (tp_mode, why) in _tp_modes(group, kind).items():
        found.setdefault(product.param, _mode(group, product, tp_mode, why))
    return list(found.values())


def _mode(group: Group, product: Product, tp_mode: str, why: str) -> Mode:
    if tp_mode == ROWS:
        unit = unit_of_contracted(group.program, product.data, product.data_dim)
        return Mode(product.param, ROWS, (), (unit,), _size(product.param, product.in_dim))
    if tp_mode == NONE or _columns(product) == 1:  # nothing to shard
        return Mode(
            product.param, NONE, why=why or ("it has one column" if tp_mode != NONE else "")
        )
    # Not only within the group: its gate may lead past what the closing product reads.
    found = trace(group.program, product.var, product.result_dim, group.region.values)
    ends = [sum(found.blocks[: index + 1]) for index in range(len(found.blocks))]
    units = tuple(found.unit(end - size, end) for end, size in zip(ends, found.blocks, strict=True))
    blocks = found.blocks if len(units) > 1 else ()
    return Mode(product.param, COLUMNS, blocks, units, _size(product.param, product.out_dim))


def _size(param: relax.Var, dim: int) -> int:
    sizes = sizes_of(param)
    return max(sizes[dim], 0) if sizes else 0


def _tp_modes(group: Group, kind: Kind) -> dict[Product, tuple[str, str]]:
    """The mode of each product, and why it is none."""
    if kind.layer_type == "unknown":
        return dict.fromkeys(group.products, (NONE, ""))
    replicated: dict[Product, str] = {}
    if kind.layer_type == "mla":
        replicated = {each: _read_whole(group, each) for each in latents(group)}
    if kind.layer_type == "moe":
        for product in group.products:
            if product in group.routers:
                replicated[product] = "it chooses experts"
            elif product.view.positions is None and _is_routed(group, product):
                replicated[product] = "what it gives, or is given, is of all experts"
    return _alternating(group, replicated)


def _read_whole(group: Group, latent: Product) -> str:
    readers = [each for each in group.products if latent in group.direct_sources(each)]
    names = ", ".join(dict.fromkeys(str(each.param.name) for each in readers))
    return f"a latent of {_columns(latent)} columns, all of which {names} reads"


def _is_routed(group: Group, product: Product) -> bool:
    """Returns whether a product leads to experts (a router, a latent) or follows them."""
    if product in group.routers or set(group.sources(product)) & set(group.experts):
        return True
    leads = any(product in group.sources(expert) for expert in group.experts)
    return leads or (product in group.closing and not group.sources(product))


def _alternating(group: Group, replicated: Mapping[Product, str]) -> dict[Product, tuple[str, str]]:
    """Rows where columns come in, else columns; an adapter is as what it stands beside."""
    found = {product: (NONE, why) for product, why in replicated.items()}
    adapters = adapters_of(group)
    aside = {product for each in adapters for product in (each.down, each.up)}
    for product in group.products:
        if product not in found and product not in aside:
            before = [found[each][0] for each in group.direct_sources(product) if each in found]
            found[product] = (ROWS if COLUMNS in before else COLUMNS, "")
    for each in adapters:
        name = each.beside.param.name
        mode = found.get(each.beside, (NONE, ""))[0]
        if mode == ROWS:
            found[each.down] = ROWS, ""
            found[each.up] = NONE, f"an adapter, added to what {name} sums over all devices"
        else:
            rank = _columns(each.down)
            found[each.down] = NONE, f"an adapter of rank {rank} beside {name}, read as a whole"
            found[each.up] = (mode, "" if mode == COLUMNS else f"an adapter beside {name}")
    return {product: found[product] for product in group.products}


def _columns(product: Product) -> int:
    return (sizes_of(product.param) or ())[product.out_dim]
