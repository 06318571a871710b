"""Finds the products of a program with weights, and the roles of the weights' dimensions.

Worked example: torch keeps the weight of a linear layer as (out, in). The product ``matmul(x,
permute_dims(w))`` contracts dimension 1 of ``w``, and dimension 0 becomes its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import relax

from distir_ext.structure.calls import PARALLEL, REDUCTION, CallRule
from distir_ext.structure.program import Program, is_float


@dataclass(frozen=True, eq=False)
class WeightView:
    """A value that is a weight in another order or type, or entries of it that are looked up.

    Attributes:
        param: The weight.
        dims: For each dimension of the value the one of the weight; None for new ones.
        looked_up: The dimension of the weight along which entries are taken; None: all.
        positions: Indices of the entries that are taken.
    """

    param: relax.Var
    dims: tuple[int | None, ...]
    looked_up: int | None = None
    positions: relax.Var | None = None


@dataclass(frozen=True, eq=False)
class Product:
    """A product of activations with a weight.

    Attributes:
        var: The result.
        data: The activations.
        view: The weight.
        out_dim: The dimension of the weight that becomes columns of the result.
        in_dim: The dimension of the weight that is contracted.
        result_dim: Dimension of the result that has the columns.
        data_dim: Dimension of the activations that is contracted.
    """

    var: relax.Var
    data: relax.Var
    view: WeightView
    out_dim: int
    in_dim: int
    result_dim: int
    data_dim: int

    @property
    def param(self) -> relax.Var:
        """The weight."""
        return self.view.param


class Weights:
    """The views of weights in a program."""

    def __init__(self, program: Program, inner_positions: bool = True) -> None:
        self._program = program
        self.views: dict[relax.Var, WeightView] = {
            param: WeightView(param, tuple(range(len(param.ty.shape))))
            for param in program.weights
            if isinstance(param.ty, relax.TensorType) and param.ty.shape is not None
        }
        self.of_inputs = _of_inputs(program)
        for binding in program.bindings:
            found = self._view(binding.var)
            if found is not None:
                self.views[binding.var] = found

    def _view(self, var: relax.Var) -> WeightView | None:
        program, value = self._program, self._program.made[var]
        if isinstance(value, relax.Var):
            return self.views.get(value)
        if not isinstance(value, relax.Call):
            return None
        operands = program.operands(value)
        viewed = [i for i, each in enumerate(operands) if each in self.views]
        if len(viewed) != 1:
            return None
        others = [
            each for each in operands if each not in self.views and isinstance(each, relax.Var)
        ]
        if any(is_float(each) for each in others) or len(others) > 1:
            return None
        rule = program.rule(var)
        if rule is None or len(rule.results) != 1:
            return None
        view = self.views[operands[viewed[0]]]
        if others and (view.positions is not None or others[0] in self.of_inputs):
            return None  # an embedding gives activations
        dims = rule.operands[viewed[0]]
        placed = tuple(_place(rule, dims, dim, view) for dim in rule.results[0])
        if not others:
            return WeightView(view.param, placed, view.looked_up, view.positions)
        kept = {place for place in placed if place is not None}
        gone = [place for place in view.dims if place is not None and place not in kept]
        if len(gone) != 1:
            return None
        return WeightView(view.param, placed, gone[0], others[0])

    def product(self, var: relax.Var, several: bool = False) -> Product | None:
        """The product that makes a variable; None where none does.

        Args:
            var: The variable.
            several: Whether the weight may have several dimensions of columns, or that are
                contracted, as heads and their width; the product names the first of them then.
        """
        rule, value = self._program.rule(var), self._program.made[var]
        if rule is None or not isinstance(value, relax.Call):
            return None
        operands = self._program.operands(value)
        if len(operands) != 2 or len(rule.results) != 1:
            return None
        for weight, data in ((1, 0), (0, 1)):
            view = self.views.get(operands[weight])
            activations = operands[data]
            if view is None or activations in self.views or not isinstance(activations, relax.Var):
                continue
            found = _product(rule, weight, data, several)
            if found is None:
                continue
            out, contracted, result_dim, data_dim = found
            out_dim, in_dim = view.dims[out], view.dims[contracted]
            if out_dim is not None and in_dim is not None:
                return Product(var, activations, view, out_dim, in_dim, result_dim, data_dim)
        return None


def _place(
    rule: CallRule, dims: tuple[tuple[int, ...], ...], dim: tuple[int, ...], view: WeightView
) -> int | None:
    """The dimension of the weight that a dimension of the result is."""
    if not dim or any(rule.kinds[factor] != PARALLEL for factor in dim):
        return None
    return next((view.dims[at] for at, other in enumerate(dims) if other == dim), None)


def _product(
    rule: CallRule, weight: int, data: int, several: bool
) -> tuple[int, int, int, int] | None:
    """The columns and the contracted dimension of a weight, and where result and data have them."""

    def factors(dims: tuple[tuple[int, ...], ...]) -> Mapping[int, int]:
        return {f: at for at, dim in enumerate(dims) for f in dim}

    of_weight, of_data = factors(rule.operands[weight]), factors(rule.operands[data])
    of_result = factors(rule.results[0])
    out = [f for f in of_weight if f in of_result and f not in of_data]
    out = [f for f in out if rule.sizes[f] != 1] or out  # a gate has one column
    contracted = [f for f in of_weight if f in of_data and rule.kinds[f] == REDUCTION]
    contracted = [f for f in contracted if rule.sizes[f] != 1]
    if not out or not contracted or (not several and len(out) + len(contracted) > 2):
        return None
    return (
        of_weight[out[0]],
        of_weight[contracted[0]],
        of_result[out[0]],
        of_data[contracted[0]],
    )


def _of_inputs(program: Program) -> set[relax.Var]:
    """Values that are made of inputs and constants alone, none of them floats: ids, positions."""
    found = {each for each in program.inputs if not is_float(each)}
    weights = set(program.weights)
    for binding in program.bindings:
        reads = program.reads(binding.value)
        if all(read in found for read in reads) and not any(read in weights for read in reads):
            found.add(binding.var)
    return found
