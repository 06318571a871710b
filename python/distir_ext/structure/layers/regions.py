"""Cuts a program into regions between additions to its residual stream.

Of a Transformer's block ``x + attention(norm(x))`` the stream is ``x`` and the sum, ``norm(x)`` is
*near* it, since no product with a weight lies between, and the region is all that is computed
between ``norm(x)`` and the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.layers.products import Product, Weights
from distir_ext.structure.program import Program, is_float, operator_of, sizes_of

_NO_ORIGINS: frozenset[relax.Var] = frozenset()


@dataclass(frozen=True, eq=False)
class Region:
    """Computation between two values of the residual stream, or before a result.

    Attributes:
        end: The variable that leaves it, which is added to the stream or is a result.
        values: All variables that are computed in it.
        products: The products with weights among them, in order.
    """

    end: relax.Var
    values: frozenset[relax.Var]
    products: tuple[Product, ...]


class Stream:
    """The residual stream of a program, and the regions between its values."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.weights = Weights(program)
        self.products: dict[relax.Var, Product] = {}
        for binding in program.bindings:
            found = self.weights.product(binding.var)
            if found is not None:
                self.products[binding.var] = found
        self.near: dict[relax.Var, frozenset[relax.Var]] = {}
        self._ends: list[relax.Var] = []
        # Floats that are inputs are streams if a weight is applied to them; others are masks.
        floats = [each for each in program.inputs if is_float(each)]
        self._walk(set(floats))
        used = {origin for p in self.products.values() for origin in self.near.get(p.data, ())}
        if any(each not in used for each in floats):
            self._walk({each for each in floats if each in used})

    def _walk(self, streams: set[relax.Var]) -> None:
        """Finds what is near the stream, and what is added to it."""
        program, views = self.program, self.weights.views
        aside = set(self.weights.of_inputs)
        aside |= {each for each in program.inputs if each not in streams}
        self.near = {each: frozenset([each]) for each in streams}
        self._ends = []
        for binding in program.bindings:
            var, value = binding.var, binding.value
            if var in self.products or var in views:
                continue
            reads = [read for read in program.reads(value) if read not in views]
            if all(read in aside for read in reads):
                if self._is_lookup(var):
                    self.near[var] = frozenset([var])
                else:
                    aside.add(var)
            elif all(read in aside or read in self.near for read in reads):
                self.near[var] = _NO_ORIGINS.union(*(self.near.get(r, _NO_ORIGINS) for r in reads))
            else:
                added = self._added(var, value)
                if added is not None:
                    self.near[var] = frozenset([var])
                    self._ends.append(added)

    def _is_lookup(self, var: relax.Var) -> bool:
        """Returns whether an input looks up rows of a weight, as in an embedding."""
        reads = self.program.reads(self.program.made[var])
        return is_float(var) and any(read in self.weights.views for read in reads)

    def _added(self, var: relax.Var, value: relax.Expr) -> relax.Var | None:
        """Returns the term that is added to the residual stream; None if a value is no such sum."""
        if operator_of(value) != "add":
            return None
        operands = self.program.operands(value)
        near = [each for each in operands if each in self.near]
        others = [each for each in operands if each not in self.near]
        if len(near) != 1 or len(others) != 1 or not isinstance(others[0], relax.Var):
            return None
        alike = sizes_of(near[0]) == sizes_of(others[0]) == sizes_of(var)
        return others[0] if alike else None

    def regions(self) -> list[Region]:
        """The regions in order; the last ones end with the results of the function."""
        result = self.program.function.body.body
        taken: set[relax.Var] = set()
        inner = [b.var for b in self.program.bindings if b.var not in self.near]
        found = []
        for end in dict.fromkeys([*self._ends, *self.program.reads(result)]):
            values = self.program.ancestors([end], set(inner) - taken)
            products = tuple(self.products[v] for v in self.products if v in values)
            taken |= values
            if products:
                found.append(Region(end, frozenset(values), products))
        return found
