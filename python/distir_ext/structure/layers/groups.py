"""Groups products with weights into layers, each of which ends in one product or mixture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tvm import relax

from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.regions import Region, Stream
from distir_ext.structure.layers.traces import trace
from distir_ext.structure.program import Program, operator_of


@dataclass(frozen=True, eq=False)
class Group:
    """The products of a layer.

    Attributes:
        program: Program that has the products.
        region: Region that computes them.
        closing: Those whose columns leave the layer.
        products: All, in order.
        values: Values computed between the beginning of the layer and the closing products, these
            included.
    """

    program: Program
    region: Region
    closing: tuple[Product, ...]
    products: tuple[Product, ...]
    values: frozenset[relax.Var]

    @cached_property
    def operators(self) -> frozenset[str]:
        """The names of the operators that are called."""
        return frozenset(operator_of(self.program.made[var]) for var in self.values)

    @cached_property
    def experts(self) -> tuple[Product, ...]:
        """Products with entries of weights that the layer itself chooses."""
        return tuple(p for p in self.products if p.view.positions is not None)

    @cached_property
    def chooses(self) -> frozenset[relax.Var]:
        """The values that the choice of experts is computed from."""
        positions = [p.view.positions for p in self.experts]
        return frozenset(
            self.program.ancestors([p for p in positions if p is not None], self.region.values)
        )

    @cached_property
    def routers(self) -> tuple[Product, ...]:
        """Products that choose experts."""
        return tuple(p for p in self.products if p.var in self.chooses)

    def sources(self, product: Product) -> tuple[Product, ...]:
        """The products that a product's activations, or the choice of its weight, come from."""
        found = sources(self.program, self.region, product)
        return tuple(p for p in self.products if p.var in found)

    def direct_sources(self, product: Product) -> tuple[Product, ...]:
        """Returns the products that a product reads with no other product in between."""
        products = {each.var: each for each in self.products}
        found: dict[Product, None] = {}
        pending, seen = [product.data], set()
        while pending:
            var = pending.pop()
            if var in seen or var not in self.region.values:
                continue
            seen.add(var)
            if var in products:
                found[products[var]] = None
            else:
                pending += self.program.reads(self.program.made[var])
        return tuple(found)

    def is_opening(self, product: Product) -> bool:
        """Returns whether no other product comes before a product."""
        return not self.sources(product)

    def activation_products(self) -> Iterator[relax.Var]:
        """Products of activations with each other."""
        weighted = {product.var for product in self.products}
        for var in self.values:
            rule = self.program.rule(var)
            if rule is not None and rule.is_product and var not in weighted:
                yield var


def sources(program: Program, region: Region, product: Product) -> set[relax.Var]:
    """Returns the values of a region that a product depends on."""
    starts = [product.data]
    if product.view.positions is not None:
        starts.append(product.view.positions)
    return program.ancestors(starts, region.values)


def groups_of(stream: Stream, region: Region) -> list[Group]:
    """The layers of a region: a parallel block has several; a shared expert is of its mixture."""
    program = stream.program
    before = {product.var: sources(program, region, product) for product in region.products}
    last = [
        product
        for product in region.products
        if not any(product.var in found for found in before.values())
    ]
    closing = [product for product in last if _reaches(program, region, product)] or last
    cones = [{product.var, *before[product.var]} for product in closing]
    clusters = _clusters(closing, cones, {product.var for product in region.products})
    clusters = _with_shared_experts(clusters, before, region)
    found = []
    for cluster in clusters:
        values: set[relax.Var] = set()
        for product in cluster:
            values |= {product.var, *before[product.var]}
        found.append((cluster, values))
    _adopt(found, region)
    return [
        Group(
            program,
            region,
            tuple(cluster),
            tuple(product for product in region.products if product.var in values),
            frozenset(values),
        )
        for cluster, values in found
    ]


def _reaches(program: Program, region: Region, product: Product) -> bool:
    """Returns whether a product's columns are those of the region's result."""
    return region.end in trace(program, product.var, product.result_dim, region.values).values


def _clusters(
    closing: Sequence[Product], cones: Sequence[set[relax.Var]], products: set[relax.Var]
) -> list[list[Product]]:
    """Closing products that have products before them in common."""
    found: list[tuple[list[Product], set[relax.Var]]] = []
    for product, cone in zip(closing, cones, strict=True):
        mine = cone & products
        joined, rest = [product], []
        for cluster, others in found:
            if others & mine:
                joined = [*cluster, *joined]
                mine |= others
            else:
                rest.append((cluster, others))
        found = [*rest, (joined, mine)]
    return [cluster for cluster, _ in found]


def _with_shared_experts(
    clusters: list[list[Product]], before: dict[relax.Var, set[relax.Var]], region: Region
) -> list[list[Product]]:
    """A mixture of experts has the layers without choice and without attention beside it."""

    def chooses(cluster: list[Product]) -> bool:
        cone = {var for each in cluster for var in (each.var, *before[each.var])}
        return any(p.view.positions is not None for p in region.products if p.var in cone)

    routed = [cluster for cluster in clusters if chooses(cluster)]
    if len(routed) != 1:
        return clusters
    shared = [cluster for cluster in clusters if cluster is not routed[0] and len(cluster) == 1]
    others = [c for c in clusters if c is not routed[0] and c not in shared]
    return [*others, [*routed[0], *(product for cluster in shared for product in cluster)]]


def _adopt(found: list[tuple[list[Product], set[relax.Var]]], region: Region) -> None:
    """Products that lead to no closing one, as a shared expert's gate, are of the last layer."""
    known = {var for _, values in found for var in values}
    if found:
        found[-1][1].update(p.var for p in region.products if p.var not in known)
