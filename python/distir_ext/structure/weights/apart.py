"""Keeps merged dimensions separate if their shards would otherwise be scattered.

::

    flat = R.reshape(x, (b * s * heads, size))        x of (b, s, heads, size), heads sharded
    y = normalise(flat)                               y of (b, s, heads, size)
    z = R.reshape(y, (b, s, heads, size))

The shard of a device is no block of ``flat``, which it would have to gather. Element by element,
along other dimensions, and in stacks of products the merged dimension need not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tvm import relax

from distir_ext.structure.calls import PARALLEL, CallRule
from distir_ext.structure.layers.regions import Stream
from distir_ext.structure.program import Program, operator_of, sizes_of
from distir_ext.structure.writing import FunctionWriter


def keep_apart(function: relax.Function, columns: Collection[str]) -> relax.Function:
    """A function that keeps dimensions apart where merging them would scatter shards.

    Args:
        function: Without branches.
        columns: The names of weights whose columns are sharded.
    """
    program = Program(function)
    starts = [
        (product.var, product.result_dim)
        for product in Stream(program).products.values()
        if str(product.param.name) in columns
    ]
    found = _scattering(program, starts)
    merges = {var for var in found if not _is_stack(program, var, found)}
    if not merges:
        return function
    return _ApartWriter(program, merges).function(list(function.params))


def _scattering(program: Program, starts: Iterable[tuple[relax.Var, int]]) -> set[relax.Var]:
    """The reshapes that put a sharded dimension behind another one.

    The dimension is followed also where it is merged: ``ahead`` are the elements of the merged
    dimension that stand before it, 1 where it is the first.
    """
    found: set[relax.Var] = set()
    pending = [(var, dim, 1) for var, dim in starts]
    seen = set()
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        var, dim, ahead = at
        for user in program.users.get(var, ()):
            made = program.made[user]
            if isinstance(made, relax.Var | relax.TupleGetItem):
                pending.append((user, dim, ahead))
            elif isinstance(made, relax.Call):
                for place, now in _places(program, user, at):
                    pending.append((user, place, now))
                    if now > 1 and ahead == 1 and operator_of(made) == "reshape":
                        found.add(user)
    return found


def _places(
    program: Program, user: relax.Var, at: tuple[relax.Var, int, int]
) -> Iterator[tuple[int, int]]:
    """Yields the dimensions of a call's results that contain a dimension of an operand.

    Each comes with the number of elements of the merged dimension that stand before it there.
    """
    (var, dim, ahead), rule = at, program.rule(user)
    call = program.made[user]
    assert rule is not None
    for operand, dims in zip(program.operands(call), rule.operands, strict=True):
        if not operand.same_as(var):
            continue
        before = 1
        for factor in dims[dim]:
            size = rule.sizes[factor]
            if size < 1 or (before <= ahead < before * size and ahead % before == 0):
                if rule.kinds[factor] == PARALLEL:
                    for place, start in _having(rule, factor):
                        yield place, start * (ahead // before)
                break
            before *= size


def _having(rule: CallRule, factor: int) -> Iterator[tuple[int, int]]:
    for dims in rule.results:
        for place, factors in enumerate(dims):
            if factor in factors:
                ahead = factors[: factors.index(factor)]
                yield place, prod(rule.sizes[each] for each in ahead)


def _is_stack(program: Program, var: relax.Var, merges: Collection[relax.Var]) -> bool:
    """Returns whether a value is only multiplied by others of ``merges``.

    Propagation itself keeps the dimensions of these apart.
    """
    users = program.users.get(var, [])
    return bool(users) and all(
        _is_matrix_product(program.rule(user))
        and all(read in merges for read in program.reads(program.made[user]))
        for user in users
    )


@dataclass(frozen=True)
class _Apart:
    """A value of which one dimension is several.

    Attributes:
        value: With the dimensions apart.
        dim: The dimension that they are in the program, where the first of them is.
        parts: Their sizes.
    """

    value: relax.Expr
    dim: int
    parts: tuple[int, ...]


class _ApartWriter(FunctionWriter):
    def __init__(self, program: Program, merges: Collection[relax.Var]) -> None:
        super().__init__(program)
        self._merges = merges
        self._apart: dict[relax.Var, _Apart] = {}
        self._merged: dict[relax.Var, relax.Expr] = {}

    def write_value(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.Call):
            if operator_of(value) == "reshape" and value.args[0] in self._apart:
                whole = self._apart[value.args[0]].value
                self.bind(var, relax.op.reshape(whole, value.args[1]))
                return
            if var in self._merges and self._hold(var, value):
                return
            is_read = any(each in self._apart for each in self.program.operands(value))
            if is_read and self._write_apart(var, value):
                return
        self.copy(binding)

    def value_of(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Var) and value in self._apart:
            if value not in self._merged:
                apart = self._apart[value].value
                merged = relax.op.reshape(apart, sizes_of(value))
                self._merged[value] = self.emit(merged, str(value.name))
            return self._merged[value]
        return super().value_of(value)

    def _hold(self, var: relax.Var, call: relax.Call) -> bool:
        before, after = sizes_of(call.args[0]), sizes_of(var)
        if before is None or after is None or min((*before, *after), default=1) < 1:
            return False
        count = len(before) - len(after) + 1
        for dim, size in enumerate(after):
            parts = before[dim : dim + count]
            rest = (*after[:dim], *parts, *after[dim + 1 :])
            if count > 1 and prod(parts) == size and rest == before:
                self._apart[var] = _Apart(self.value_of(call.args[0]), dim, parts)
                return True
        return False

    def _write_apart(self, var: relax.Var, call: relax.Call) -> bool:
        rule = self.program.rule(var)
        assert rule is not None
        if isinstance(var.ty, relax.TupleType):
            return False
        operands = self.program.operands(call)
        held = [self._apart[each] for each in operands if each in self._apart]
        if len({(each.parts) for each in held}) != 1:
            return False
        if _has_axes(call):
            return self._reduce(var, call, held[0])
        if operator_of(call) == "permute_dims":
            return self._permute(var, call, held[0])
        if not _is_elementwise(rule, operands) and not _is_matrix_product(rule):
            return False
        return self._aligned(var, call, operands, held[0].parts)

    def _aligned(
        self,
        var: relax.Var,
        call: relax.Call,
        operands: Sequence[relax.Expr],
        parts: tuple[int, ...],
    ) -> bool:
        """A call whose operands' dimensions are aligned at their ends."""
        behind = {
            len(sizes_of(each) or ()) - self._apart[each].dim
            for each in operands
            if each in self._apart
        }
        shape = sizes_of(var)
        if len(behind) != 1 or shape is None:
            return False
        (end,) = behind
        is_rows = _is_matrix_product(self.program.rule(var)) and end <= 2
        if is_rows and (end != 2 or operands[1] in self._apart or _rank(operands[1]) != 2):
            return False
        others = []
        for each in operands:
            if each in self._apart:
                others.append(self._apart[each].value)
                continue
            other = self._divided(each, end, parts, is_rows)
            if other is None:
                return False
            others.append(other)
        made = self.emit(relax.Call(call.op, others, call.attrs, call.ty_args), f"{var.name}_apart")
        self._apart[var] = _Apart(made, len(shape) - end, parts)
        return True

    def _divided(
        self, operand: relax.Expr, end: int, parts: tuple[int, ...], is_rows: bool
    ) -> relax.Expr | None:
        """An operand with the dimension apart, if it has it."""
        shape = sizes_of(operand)
        now = self.value_of(operand)
        if shape is None:
            return None
        if is_rows or len(shape) < end:
            return now
        dim = len(shape) - end
        if shape[dim] not in (1, prod(parts)):
            return None
        inner = parts if shape[dim] != 1 else (1,) * len(parts)
        name = str(operand.name) if isinstance(operand, relax.Var) else "constant"
        wide = (*shape[:dim], *inner, *shape[dim + 1 :])
        return self.emit(relax.op.reshape(now, wide), f"{name}_apart")

    def _permute(self, var: relax.Var, call: relax.Call, held: _Apart) -> bool:
        """The dimensions in another order, those that are apart one behind the other."""
        rank, count = _rank(call.args[0]), len(held.parts)
        axes = [int(axis) % rank for axis in call.attrs.axes or reversed(range(rank))]
        moved: list[int] = []
        for axis in axes:
            if axis == held.dim:
                moved += range(axis, axis + count)
            else:
                moved.append(axis if axis < held.dim else axis + count - 1)
        made = self.emit(relax.op.permute_dims(held.value, moved), f"{var.name}_apart")
        self._apart[var] = _Apart(made, axes.index(held.dim), held.parts)
        return True

    def _reduce(self, var: relax.Var, call: relax.Call, held: _Apart) -> bool:
        """A reduction along other dimensions."""
        rank = _rank(call.args[0])
        axes = [int(axis) % rank for axis in call.attrs.axis or range(rank)]
        if held.dim in axes:
            return False
        more = len(held.parts) - 1
        moved = [axis + more if axis > held.dim else axis for axis in axes]
        reduce = getattr(relax.op, operator_of(call))
        keeps = bool(call.attrs.keepdims)
        made = self.emit(reduce(held.value, moved, keeps), f"{var.name}_apart")
        gone = 0 if keeps else sum(axis < held.dim for axis in axes)
        self._apart[var] = _Apart(made, held.dim - gone, held.parts)
        return True


def _rank(value: relax.Expr) -> int:
    return len(sizes_of(value) or ())


def _has_axes(call: relax.Call) -> bool:
    return call.attrs is not None and all(hasattr(call.attrs, n) for n in ("axis", "keepdims"))


def _is_matrix_product(rule: CallRule | None) -> bool:
    """Returns whether a call is a matrix product of the last two dimensions of its operands."""
    if rule is None or not rule.is_product or len(rule.results) != 1:
        return False
    (left, right), result = rule.operands, rule.results[0]
    if min(len(left), len(right), len(result)) < 2:
        return False
    return left[-1] == right[-2] and (left[-2], right[-1]) == result[-2:]


def _is_elementwise(rule: CallRule, operands: Sequence[relax.Expr]) -> bool:
    """Returns whether a result element depends only on operand elements at its position."""
    if any(kind != PARALLEL for kind in rule.kinds) or len(rule.results) != 1:
        return False
    result = rule.results[0]
    for operand, dims in zip(operands, rule.operands, strict=True):
        sizes = sizes_of(operand) or ()
        placed = result[len(result) - len(dims) :]
        for size, dim, other in zip(sizes, dims, placed, strict=True):
            if dim != other and size != 1:
                return False
    return True
