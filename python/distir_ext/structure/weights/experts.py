"""Rewrites a mixture of experts so that each group of devices computes its own experts.

A mixture looks the weights of the chosen experts up: ``w[expert_ids]``. With experts divided over
groups, a lookup sums what each group has, and what comes behind it would be summed again. Here the
experts get a dimension of groups, and all that is computed with them, too:

::

    w = R.take(experts, ids)                 mine = ids - first expert of each group
    y = R.matmul(w, x)                       w = gather_nd(experts by group, mine)
    z = combine(y)                           y = R.matmul(w, x of each group)
                                             z = R.sum(combine(y * (mine is in range)))

Groups whose choice lies elsewhere compute with some expert of theirs, and zero the result. The sum
over groups is the only reduction; it joins that of a shared expert which is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi
from tvm import relax

from distir_ext.structure.calls import PARALLEL
from distir_ext.structure.layers.products import Product
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.program import Program, operator_of, sizes_of
from distir_ext.structure.writing import FunctionWriter, resized, with_size, with_tensors


@dataclass
class GroupedFunction:
    """A function whose experts are computed by group.

    Attributes:
        function: The function.
        tokens: The variables that all groups read, with the number of dimensions.
        sums: The variables that are sums over groups, with the same, and the dimension of tokens.
        refused: Weights whose lookup stays as it is, with the reason.
    """

    function: relax.Function
    tokens: dict[str, int]
    sums: dict[str, tuple[int, int]]
    refused: dict[str, str]


def group_experts(
    function: relax.Function, experts: Mapping[str, int], groups: int
) -> GroupedFunction:
    """A function whose experts are computed by group.

    Args:
        function: Without branches.
        experts: By name of a weight the dimension of its experts.
        groups: Number of groups; divides the number of experts.
    """
    writer = _GroupWriter(Program(function), experts, groups)
    try:
        made = writer.function(list(function.params))
    except _MeetError as error:
        return GroupedFunction(function, {}, {}, dict.fromkeys(experts, str(error)))
    return GroupedFunction(made, writer.tokens, writer.sums, writer.refused)


class _MeetError(Exception):
    """An operator combines the results of several groups before they can be summed."""


@dataclass(frozen=True)
class _Lifted:
    """A value per group: along ``dim`` the first group's, then the second's, ..

    Attributes:
        var: The value.
        dim: The dimension, which is ``groups`` times as long as that of the value it stands for.
        is_summed: Whether the value that it stands for is the sum over the groups.
        choice: The chosen experts that are the group's.
        ids: The experts that are chosen.
    """

    var: relax.Expr
    dim: int
    is_summed: bool
    choice: relax.Var
    ids: relax.Expr


class _GroupWriter(FunctionWriter):
    def __init__(self, program: Program, experts: Mapping[str, int], groups: int) -> None:
        super().__init__(program)
        self._experts, self._groups = experts, groups
        self._lifted: dict[relax.Var, _Lifted] = {}
        self._writing: relax.Var | None = None
        self._sums: dict[relax.Var, relax.Var] = {}
        self._choices: dict[relax.Expr, tuple[relax.Var, relax.Var]] = {}
        self._by_group: dict[relax.Var, relax.Var] = {}
        self.tokens: dict[str, int] = {}
        self.sums: dict[str, tuple[int, int]] = {}
        self.refused: dict[str, str] = {}
        stream = Stream(program)
        weights = stream.weights
        self._products: dict[relax.Var, Product] = {}
        for var, product in stream.products.items():
            if str(product.param.name) in experts:
                self._products[var] = product
        self._near = stream.near
        self._routed: dict[relax.Var, relax.Expr | None] = {}
        self._copies: dict[tuple[relax.Expr | None, relax.Var], relax.Expr] = {}
        views = {binding.var for binding in program.bindings if binding.var in weights.views}
        starts = [r for var in self._products for r in program.reads(program.made[var])]
        self._of_weights = program.ancestors(starts, views)
        # What leads to another product with the same choice has to stay apart by group.
        every = {binding.var for binding in program.bindings}
        self._leads: dict[relax.Expr | None, set[relax.Var]] = {}
        for product in self._products.values():
            leads = self._leads.setdefault(product.view.positions, set())
            leads |= program.ancestors([product.data], every)
            # What only this choice and its experts are made of: not what is added to the stream.
            inner = every - set(self._near)
            for var in program.ancestors([product.var], inner):
                self._routed.setdefault(var, product.view.positions)

    def write_value(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        self._writing = var
        if isinstance(value, relax.Call):
            if self._is_lookup(value) and self._look_up(var, value):
                return
            is_read = any(each in self._lifted for each in self.program.operands(value))
            if is_read and self._goes_on(var, value) and self._lift(var, value):
                return
        elif isinstance(value, relax.Var) and value in self._lifted:
            self._lifted[var] = self._lifted[value]
            return
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._lifted:
            lifted = self._lifted[value.tuple_value]
            field = self.emit(relax.TupleGetItem(lifted.var, int(value.index)), str(var.name))
            self._lifted[var] = replace(lifted, var=field)
            return
        self.copy(binding)

    def value_of(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Var) and value in self._lifted:
            return self._sum(value)
        is_read = isinstance(value, relax.Var) and value in self._near
        if is_read and self._writing in self._routed and value in self.program.made:
            return self._copy_for_experts(value, self._routed[self._writing])
        return super().value_of(value)

    def _copy_for_experts(self, value: relax.Var, ids: relax.Expr | None) -> relax.Expr:
        """The tokens as experts and the choice of experts read them; others read them elsewhere."""
        if (ids, value) not in self._copies:
            source = self._rewritten(value)
            if source is None:
                copy = self.emit(super().value_of(value), "expert_tokens")
                self.tokens[str(copy.name)] = len(sizes_of(value) or ())
            else:
                self._copy_for_experts(source, ids)
                call = self.program.made[value]
                args = [self._copies.get((ids, arg), arg) for arg in call.args]
                made = relax.Call(call.op, args, call.attrs, call.ty_args)
                copy = self.emit(made, f"{value.name}_of_experts")
            self._copies[ids, value] = copy
        return self._copies[ids, value]

    def _rewritten(self, value: relax.Var) -> relax.Var | None:
        """Returns the only operand of a value near the residual stream; None after a norm."""
        reads = self.program.reads(self.program.made[value])
        if len(reads) != 1 or not isinstance(self.program.made[value], relax.Call):
            return None
        return reads[0] if reads[0] in self._near and reads[0] in self.program.made else None

    def _is_lookup(self, call: relax.Call) -> bool:
        if operator_of(call) != "take" or not isinstance(call.args[0], relax.Var):
            return False
        name = str(call.args[0].name)
        return (
            name in self._experts
            and call.attrs.axis is not None
            and (int(call.attrs.axis) == self._experts[name] == 0)
        )

    def _look_up(self, var: relax.Var, call: relax.Call) -> bool:
        """The entries that each group has."""
        table, ids = call.args
        shape, positions = sizes_of(table), sizes_of(ids)
        if not shape or not positions or min(positions) < 0 or shape[0] % self._groups:
            self.refused[str(table.name)] = "sizes are not known"
            return False
        if ids not in self._choices:
            self._choices[ids] = self._choose(ids, shape[0] // self._groups, positions)
        indices, choice = self._choices[ids]
        if table not in self._by_group:
            divided = (self._groups, shape[0] // self._groups, *shape[1:])
            self._by_group[table] = self.emit(
                relax.op.reshape(table, divided), f"{table.name}_by_group"
            )
        found = self.emit(
            relax.op.gather_nd(self._by_group[table], indices, 1), f"{var.name}_by_group"
        )
        whole = (self._groups * positions[0], *positions[1:], *shape[1:])
        self._lifted[var] = _Lifted(
            self.emit(relax.op.reshape(found, whole), str(var.name)), 0, False, choice, ids
        )
        if var not in self._of_weights:  # a bias is added where its expert is
            self._mask(var)
        return True

    def _choose(
        self, ids: relax.Expr, count: int, positions: tuple[int, ...]
    ) -> tuple[relax.Var, relax.Var]:
        """Positions within each group's experts; and which of the chosen ones are a group's."""
        now = self.value_of(ids)
        dtype = str(ids.ty.dtype)
        shape = (self._groups, *[1] * len(positions))
        first = relax.const(np.arange(self._groups, dtype=dtype).reshape(shape) * count, dtype)
        ahead = self.emit(relax.op.expand_dims(now, 0), "expert_ids")
        mine = self.emit(relax.op.subtract(ahead, first), "own_expert_ids")
        zero, end = relax.const(0, dtype), relax.const(count, dtype)
        last = relax.const(count - 1, dtype)
        begins = self.emit(relax.op.greater_equal(mine, zero), "is_behind_first")
        ends = self.emit(relax.op.less(mine, end), "is_before_last")
        is_own = self.emit(relax.op.logical_and(begins, ends), "is_own_expert")
        flat = (self._groups * positions[0], *positions[1:])
        choice = self.emit(relax.op.reshape(is_own, flat), "own_choice")
        least = self.emit(relax.op.maximum(mine, zero), "least_expert_id")
        within = self.emit(relax.op.minimum(least, last), "expert_id_of_group")
        wide = self.emit(relax.op.astype(within, "int64"), "expert_position")
        return self.emit(relax.op.expand_dims(wide, -1), "expert_positions"), choice

    def _goes_on(self, var: relax.Var, call: relax.Call) -> bool:
        """Returns whether a call is computed per group: before a product, or if sums stay sums."""
        operands = self.program.operands(call)
        lifted = [self._lifted[each] for each in operands if each in self._lifted]
        if var in self._products or any(var in self._leads[each.ids] for each in lifted):
            return True
        return not all(each.is_summed for each in lifted) or self._stays_sum(call, operands)

    def _lift(self, var: relax.Var, call: relax.Call) -> bool:
        """The call on all groups."""
        rule = self.program.rule(var)
        operands = self.program.operands(call)
        first = next(i for i, each in enumerate(operands) if each in self._lifted)
        lifted = self._lifted[operands[first]]
        assert rule is not None
        factors = rule.operands[first][lifted.dim]
        if not factors or rule.kinds[factors[0]] != PARALLEL:
            return False
        factor = factors[0]
        tensors: list[relax.Expr] = []
        for operand, dims in zip(operands, rule.operands, strict=True):
            places = [at for at, dim in enumerate(dims) if factor in dim]
            other = self._lifted.get(operand)
            if len(places) > 1 or (places and dims[places[0]][0] != factor):
                return False
            if other is not None:
                if places != [other.dim] or not other.ids.same_as(lifted.ids):
                    return False
                tensors.append(other.var)
            elif places:
                tensors.append(self._repeated(operand, places[0]))
            else:
                tensors.append(self.value_of(operand))
        where = [
            [at for at, dim in enumerate(dims) if dim[:1] == (factor,)] for dims in rule.results
        ]
        if any(len(each) != 1 for each in where):
            return False
        places = [each[0] for each in where]
        if len(set(places)) != 1:
            return False
        type_ = _larger(var.ty, places[0], self._groups)
        made = self.emit(resized(call, with_tensors(call, tensors), type_), str(var.name))
        is_summed = self._stays_sum(call, operands)
        self._lifted[var] = _Lifted(made, places[0], is_summed, lifted.choice, lifted.ids)
        if var in self._products and var not in self._leads[lifted.ids]:
            self._mask(var)
        return True

    def _stays_sum(self, call: relax.Call, operands: list[relax.Expr]) -> bool:
        marks = [each in self._lifted for each in operands]
        summed = all(self._lifted[e].is_summed for e in operands if e in self._lifted)
        commutes = tvm_ffi.get_global_func("distir.rules.CommutesWithSum")
        return summed and bool(commutes(call, marks))

    def _repeated(self, operand: relax.Expr, dim: int) -> relax.Expr:
        """A value that all groups have, once for each."""
        now = self.value_of(operand)
        shape = sizes_of(operand) or ()
        name = str(operand.name) if isinstance(operand, relax.Var) else "constant"
        ahead = self.emit(relax.op.expand_dims(now, dim), f"{name}_of_group")
        wide = (*shape[:dim], self._groups, *shape[dim:])
        spread = self.emit(relax.op.broadcast_to(ahead, wide), f"{name}_of_groups")
        flat = (*shape[:dim], self._groups * shape[dim], *shape[dim + 1 :])
        return self.emit(relax.op.reshape(spread, flat), f"{name}_by_group")

    def _mask(self, var: relax.Var) -> None:
        """Zeros what a group has of experts that are not its own."""
        lifted = self._lifted[var]
        shape = sizes_of(lifted.var) or ()
        chosen = sizes_of(lifted.choice) or ()
        if shape[lifted.dim : lifted.dim + len(chosen)] != chosen:
            raise _MeetError(f"what groups compute cannot be summed where {var.name} is read")
        ones = (*[1] * lifted.dim, *chosen, *[1] * (len(shape) - lifted.dim - len(chosen)))
        choice = self.emit(relax.op.reshape(lifted.choice, ones), f"{var.name}_choice")
        # A product commutes with sums over devices that share an expert; a selection does not.
        one_or_zero = self.emit(relax.op.astype(choice, str(var.ty.dtype)), f"{var.name}_weight")
        own = self.emit(relax.op.multiply(lifted.var, one_or_zero), f"{var.name}_own")
        self._lifted[var] = replace(lifted, var=own, is_summed=True)

    def _sum(self, var: relax.Var) -> relax.Expr:
        """The value that a lifted one stands for."""
        if var in self._sums:
            return self._sums[var]
        lifted = self._lifted[var]
        if not lifted.is_summed:
            self._mask(var)
            lifted = self._lifted[var]
        shape, dim = sizes_of(var) or (), lifted.dim
        wide = (*shape[:dim], self._groups, *shape[dim:])
        apart = self.emit(relax.op.reshape(lifted.var, wide), f"{var.name}_apart")
        found = self.emit(relax.op.sum(apart, dim), f"{var.name}_sum")
        self._sums[var] = found
        self.sums[str(found.name)] = (len(shape), dim)
        return found


def _larger(type_: relax.Type, dim: int, times: int) -> relax.Type:
    if isinstance(type_, relax.TupleType):
        return relax.TupleType([_larger(each, dim, times) for each in type_.fields])
    return with_size(type_, dim, int(type_.shape[dim]) * times)
