"""Finds adapters (LoRA): two small products beside a product with the same activations.

Of ``query = x @ w + (x @ a) @ b`` the pair ``a``, ``b`` is an adapter of ``w``, and the columns of
``a``, its rank, are fewer than those of ``x``. What is in between may be scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.layers.groups import Group
from distir_ext.structure.layers.products import Product
from distir_ext.structure.program import Program, operator_of, sizes_of

_SCALES = ("multiply", "divide", "astype")


@dataclass(frozen=True)
class Adapter:
    """A pair of products, and the one that its result is added to.

    Attributes:
        down: The first product, whose columns are the rank.
        up: The second one.
        beside: The product to whose result its own is added.
    """

    down: Product
    up: Product
    beside: Product


def adapters_of(group: Group) -> list[Adapter]:
    """The adapters of a layer."""
    found = []
    made = {product.var: product for product in group.products}
    for up in group.products:
        direct = group.direct_sources(up)
        if len(direct) != 1 or not is_narrower(direct[0]):
            continue
        down = direct[0]
        readers = [each for each in group.products if down in group.direct_sources(each)]
        beside = [
            made[var]
            for var in _added_to(group.program, up.var)
            if var in made and down not in group.sources(made[var])
        ]
        if readers == [up] and beside:
            found.append(Adapter(down, up, beside[0]))
    return found


def is_narrower(product: Product) -> bool:
    """Returns whether a product has fewer columns than rows that it sums over."""
    sizes = sizes_of(product.param)
    return sizes is not None and sizes[product.out_dim] < sizes[product.in_dim]


def _added_to(program: Program, var: relax.Var) -> Iterator[relax.Var]:
    """The values that a value is added to, it and they scaled, cast or with a bias."""
    pending = [var]
    while pending:
        value = pending.pop()
        for user in program.users.get(value, ()):
            made = program.made[user]
            if isinstance(made, relax.Var) or operator_of(made) in _SCALES:
                pending.append(user)
            elif operator_of(made) == "add":
                for other in program.operands(made):
                    if isinstance(other, relax.Var) and not other.same_as(value):
                        yield from _terms(program, other)
                pending.append(user)


def _terms(program: Program, var: relax.Var) -> Iterator[relax.Var]:
    """Yields the terms of a sum; scaling and casts of terms are looked through."""
    pending = [var]
    while pending:
        value = pending.pop()
        yield value
        made = program.made.get(value)
        if isinstance(made, relax.Var):
            pending.append(made)
        elif operator_of(made) in ("add", *_SCALES):
            pending += [each for each in program.operands(made) if isinstance(each, relax.Var)]
