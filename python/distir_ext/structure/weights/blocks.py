"""Replaces a fused weight, such as Q | K | V, by one parameter per block.

::

    lv = R.matmul(x, w)                          q = R.matmul(x, w_0)
    lv1 = R.split(lv, [64, 96], axis=-1)         k = R.matmul(x, w_1)
    q, k, v = lv1[0], lv1[1], lv1[2]             v = R.matmul(x, w_2)

So each block can be sharded by itself, and no split has to move anything. What lies between the
product and the split is computed per block, if its factor rule says that blocks do not meet: a
bias, a cast, a convolution of each channel. Other weights that are read there are cut alike. Where
blocks meet, or are cut elsewhere, they are joined again, which is right but may cost an exchange.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import tvm
from tvm import relax

from distir_ext.structure.calls import PARALLEL, CallRule, is_kernel_call
from distir_ext.structure.layers.products import Weights
from distir_ext.structure.layers.traces import trace
from distir_ext.structure.program import (
    CUTTING,
    Program,
    cut_points,
    entry_taken,
    operator_of,
    others_are_whole,
    sizes_of,
)
from distir_ext.structure.writing import FunctionWriter, resized, with_size, with_tensors


@dataclass(frozen=True)
class Cut:
    """Blocks of a weight along one dimension.

    Attributes:
        dim: The dimension that is split.
        sizes: Sizes of the blocks, in order.
    """

    dim: int
    sizes: tuple[int, ...]


@dataclass
class CutFunction:
    """A function whose fused weights are cut.

    Attributes:
        function: With a parameter for each block.
        cuts: By name of a weight that was cut.
        blocks: By the same name the names of its blocks.
        joined: Variables whose blocks had to be joined, with the operator that reads the whole.
        divided: Computed values that had to be cut to meet blocks, with the operator.
        unhelpful: Names of weights of which blocks had to be joined, or met what had to be cut.
        causes: By name of a weight that is cut to meet blocks, the weights of which they are.
    """

    function: relax.Function
    cuts: dict[str, Cut] = field(default_factory=dict)
    blocks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    joined: dict[str, str] = field(default_factory=dict)
    divided: dict[str, str] = field(default_factory=dict)
    unhelpful: set[str] = field(default_factory=set)
    causes: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Dimension and names of the blocks of each weight that was split, by name."""
        return {name: (cut.dim, self.blocks[name]) for name, cut in self.cuts.items()}


def cut_weights(
    program: Program, cuts: Mapping[str, Cut], kept: Collection[relax.Var] = ()
) -> CutFunction:
    """A function with a parameter for each block of the weights that are cut.

    Args:
        program: The function; without branches. Weights are its parameters behind ``num_input``.
        cuts: By name of a weight.
        kept: Variables that the function is to have still.
    """
    weights = Weights(program)
    wanted = dict(cuts)
    causes: dict[str, frozenset[str]] = {}
    while True:
        writer = _BlockWriter(program, weights, wanted, kept, causes)
        found = writer.run()
        more = {name: cut for name, cut in writer.wanted.items() if name not in wanted}
        if not more:
            return found
        wanted.update(more)


@dataclass(frozen=True)
class _Blocks:
    """A value in parts along a dimension, which are computed of weights that are cut."""

    dim: int
    sizes: tuple[int, ...]
    parts: tuple[relax.Expr, ...]
    weights: frozenset[str]

    def between(self, begin: int, end: int) -> _Blocks | None:
        """The blocks of a range; None where it does not begin and end with one."""
        ends = list(accumulate(self.sizes))
        starts = [0, *ends[:-1]]
        if begin not in starts or end not in ends:
            return None
        chosen = slice(starts.index(begin), ends.index(end) + 1)
        return _Blocks(self.dim, self.sizes[chosen], self.parts[chosen], self.weights)


class _BlockWriter(FunctionWriter):
    def __init__(
        self,
        program: Program,
        weights: Weights,
        cuts: Mapping[str, Cut],
        kept: Collection[relax.Var],
        causes: dict[str, frozenset[str]],
    ) -> None:
        super().__init__(program)
        self._weights = weights
        self._kept = kept
        self._causes = causes
        self._cuts = dict(cuts)
        self._blocks: dict[relax.Var, _Blocks] = {}
        self._fields: dict[relax.Var, list[_Blocks | None]] = {}
        self._whole: dict[relax.Var, relax.Var] = {}
        self._reader = ""
        self.wanted: dict[str, Cut] = {}
        self.found = CutFunction(program.function, causes=causes)

    def run(self) -> CutFunction:
        params: list[relax.Var] = []
        for param in self.program.function.params:
            cut = self._cuts.get(str(param.name))
            if cut is None or param not in self.program.weights:
                params.append(param)
                continue
            blocks = [
                relax.Var(
                    self.free_name(f"{param.name}_{index}"), with_size(param.ty, cut.dim, size)
                )
                for index, size in enumerate(cut.sizes)
            ]
            params += blocks
            name = str(param.name)
            weights = frozenset([name]) | self._causes.get(name, frozenset())
            self._blocks[param] = _Blocks(cut.dim, cut.sizes, tuple(blocks), weights)
            self.found.cuts[name] = cut
            self.found.blocks[name] = tuple(str(each.name) for each in blocks)
        self.found.function = self.function(params)
        return self.found

    def write_value(self, binding: relax.VarBinding) -> None:
        var, value = binding.var, binding.value
        self._reader = operator_of(value) or type(value).__name__
        if isinstance(value, relax.Var) and value in self._blocks:
            self._blocks[var] = self._blocks[value]
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._fields:
            self._set(var, self._fields[value.tuple_value][int(value.index)])
        elif not isinstance(value, relax.Call) or not self._write_call(var, value):
            self.copy(binding)
        elif var in self._kept and var in self._blocks:
            self.bind(var, self._joined(var))
            del self._blocks[var]

    def value_of(self, value: relax.Expr) -> relax.Expr:
        if isinstance(value, relax.Var) and value in self._blocks:
            return self._joined(value)
        return super().value_of(value)

    def _joined(self, var: relax.Var) -> relax.Expr:
        if var not in self._whole:
            blocks = self._blocks[var]
            if len(blocks.parts) == 1:
                return blocks.parts[0]
            self._whole[var] = self.emit(
                relax.op.concat(list(blocks.parts), blocks.dim), f"{var.name}_joined"
            )
            self.found.joined[str(var.name)] = self._reader
            self.found.unhelpful |= blocks.weights
        return self._whole[var]

    def _set(self, var: relax.Var, blocks: _Blocks | None) -> None:
        assert blocks is not None
        if len(blocks.parts) > 1:
            self._blocks[var] = blocks
        elif var in self._kept:
            self.bind(var, blocks.parts[0])
        else:
            self.now[var] = blocks.parts[0]

    def _write_call(self, var: relax.Var, call: relax.Call) -> bool:
        if var in self._kept and isinstance(var.ty, relax.TupleType):
            return False
        if operator_of(call) == "concat":
            return self._concat(var, call)
        operands = self.program.operands(call)
        blocked = [index for index, each in enumerate(operands) if each in self._blocks]
        if not blocked:
            return False
        if blocked == [0] and (self._cut(var, call) or self._take(var, call)):
            return True
        return any(self._per_block(var, call, operands, index) for index in blocked)

    def _concat(self, var: relax.Var, call: relax.Call) -> bool:
        """Handles a concatenation whose result is split again at the same points.

        It is kept in blocks, and the concatenated tensor is never computed.
        """
        rank = len(sizes_of(var) or ())
        dim = int(call.attrs.axis) % rank if rank else 0
        parts: list[relax.Expr] = []
        sizes: list[int] = []
        weights: frozenset[str] = frozenset()
        for operand in self.program.operands(call):
            blocks = self._blocks.get(operand)
            if blocks is not None and blocks.dim == dim:
                parts += blocks.parts
                sizes += blocks.sizes
                weights |= blocks.weights
            else:
                shape = sizes_of(operand)
                if shape is None or shape[dim] < 0:
                    return False
                parts.append(self.value_of(operand))
                sizes.append(shape[dim])
        points = set(accumulate(sizes[:-1]))
        cuts = trace(self.program, var, dim).cuts - {0, sum(sizes)}
        if not cuts or not cuts <= points:
            return False
        self._blocks[var] = _Blocks(dim, tuple(sizes), tuple(parts), weights)
        return True

    def _cut(self, var: relax.Var, call: relax.Call) -> bool:
        """A split, or a slice, along the dimension that is in blocks."""
        if operator_of(call) not in CUTTING:
            return False
        blocks = self._blocks[call.args[0]]
        ranges = cut_points(call, blocks.dim, sum(blocks.sizes))
        if ranges is None:
            return False
        found = [blocks.between(begin, end) for begin, end in ranges]
        if any(each is None for each in found):
            return False
        if isinstance(var.ty, relax.TupleType):
            self._fields[var] = found
            return True
        shape = sizes_of(call.args[0])
        if shape is None or not others_are_whole(call, blocks.dim, shape):
            return False
        self._set(var, found[0])
        return True

    def _take(self, var: relax.Var, call: relax.Call) -> bool:
        """One entry, which is a block, without the dimension."""
        taken = entry_taken(call)
        if taken is None:
            return False
        (dim, entry), blocks = taken, self._blocks[call.args[0]]
        block = blocks.between(entry, entry + 1) if dim == blocks.dim else None
        if block is None:
            return False
        self.bind(var, relax.op.squeeze(block.parts[0], [dim]))
        return True

    def _per_block(
        self, var: relax.Var, call: relax.Call, operands: Sequence[relax.Expr], first: int
    ) -> bool:
        """The call once for each block, if blocks do not meet in it."""
        rule = self.program.rule(var)
        assert rule is not None
        blocks = self._blocks[operands[first]]
        factors = rule.operands[first][blocks.dim]
        minor = rule.minor(factors) if factors else 0
        if not minor or rule.kinds[factors[0]] != PARALLEL:
            return False
        if any(size % minor for size in blocks.sizes):
            return False
        factor, extents = factors[0], tuple(size // minor for size in blocks.sizes)
        places = _places(rule, rule.operands, factor)
        results = _places(rule, rule.results, factor)
        if places is None or results is None or None in results:
            return False
        kernels = self._kernels(call, factor, extents)
        if kernels is None:
            return False
        of_operands = (self._blocks[each] for each in operands if each in self._blocks)
        weights = frozenset[str]().union(*(each.weights for each in of_operands))
        parts = self._parts(operands, rule, places, extents, weights)
        if parts is None:
            return False
        sizes = [
            tuple(extent * rule.minor(dims[place]) for extent in extents)
            for dims, place in zip(rule.results, results, strict=True)
            if place is not None
        ]
        types = self._types(var, results, sizes)
        if types is None:
            return False
        made = [
            self.emit(
                resized(call, with_tensors(call, parts_of_block), type_, kernel),
                f"{var.name}_{number}",
            )
            for number, (parts_of_block, type_, kernel) in enumerate(
                zip(parts, types, kernels, strict=True)
            )
        ]
        self._keep(var, results, sizes, made, weights)
        return True

    def _kernels(
        self, call: relax.Call, factor: int, extents: Sequence[int]
    ) -> list[tvm.ir.GlobalVar | None] | None:
        """The kernels that compute blocks, each None for an operator; None if there are none."""
        if not is_kernel_call(call):
            return [None] * len(extents)
        kernels = [self.program.calls.resized_kernel(call, factor, each) for each in extents]
        return None if None in kernels else kernels

    def _parts(
        self,
        operands: Sequence[relax.Expr],
        rule: CallRule,
        places: Sequence[int | None],
        extents: Sequence[int],
        weights: frozenset[str],
    ) -> list[list[relax.Expr]] | None:
        """The operands for each block; None where one of them cannot be cut alike."""
        columns: list[Sequence[relax.Expr]] = []
        for operand, dims, place in zip(operands, rule.operands, places, strict=True):
            blocks = self._blocks.get(operand)
            if place is None:
                if blocks is not None:
                    return None
                columns.append([self.value_of(operand)] * len(extents))
                continue
            sizes = tuple(extent * rule.minor(dims[place]) for extent in extents)
            if blocks is None:
                if not self._want(operand, place, sizes, weights):
                    columns.append(self._divided(operand, place, sizes))
                    if isinstance(operand, relax.Var):
                        self.found.unhelpful |= weights
                    continue
                return None  # this run is not the last one
            if (blocks.dim, blocks.sizes) != (place, sizes):
                return None
            columns.append(blocks.parts)
        return [list(each) for each in zip(*columns, strict=True)]

    def _want(
        self, operand: relax.Expr, place: int, sizes: tuple[int, ...], causes: frozenset[str]
    ) -> bool:
        """Notes that the next run cuts the weight behind an operand; False if it is no weight."""
        view = self._weights.views.get(operand)
        dim = view.dims[place] if view is not None else None
        if view is None or dim is None or str(view.param.name) in self._cuts:
            return False
        if (sizes_of(view.param) or ())[dim] != sum(sizes):
            return False
        self.wanted[str(view.param.name)] = Cut(dim, sizes)
        self._causes[str(view.param.name)] = causes
        return True

    def _divided(self, operand: relax.Expr, dim: int, sizes: Sequence[int]) -> list[relax.Expr]:
        name = str(operand.name) if isinstance(operand, relax.Var) else "constant"
        if isinstance(operand, relax.Var):
            self.found.divided[name] = self._reader
        points = list(accumulate(sizes[:-1]))
        split = self.emit(relax.op.split(self.value_of(operand), points, dim), f"{name}_blocks")
        return [
            self.emit(relax.TupleGetItem(split, index), f"{name}_{index}")
            for index in range(len(sizes))
        ]

    def _types(
        self, var: relax.Var, places: Sequence[int | None], sizes: Sequence[tuple[int, ...]]
    ) -> list[relax.Type] | None:
        """The type of the call's value for each block."""
        is_tuple = isinstance(var.ty, relax.TupleType)
        whole = list(var.ty.fields) if is_tuple else [var.ty]
        if any(not isinstance(each, relax.TensorType) for each in whole):
            return None
        found: list[relax.Type] = []
        for number in range(len(sizes[0])):
            types = [
                with_size(type_, place, each[number])
                for type_, place, each in zip(whole, places, sizes, strict=True)
                if place is not None
            ]
            found.append(relax.TupleType(types) if is_tuple else types[0])
        return found

    def _keep(
        self,
        var: relax.Var,
        places: Sequence[int | None],
        sizes: Sequence[tuple[int, ...]],
        made: Sequence[relax.Var],
        weights: frozenset[str],
    ) -> None:
        """Notes what a value's blocks are."""
        dims = [place for place in places if place is not None]
        if not isinstance(var.ty, relax.TupleType):
            self._blocks[var] = _Blocks(dims[0], sizes[0], tuple(made), weights)
            return
        self._fields[var] = [
            _Blocks(
                dim,
                each,
                tuple(
                    self.emit(relax.TupleGetItem(one, index), f"{var.name}_{index}") for one in made
                ),
                weights,
            )
            for index, (dim, each) in enumerate(zip(dims, sizes, strict=True))
        ]


def _places(
    rule: CallRule, tensors: Sequence[Sequence[tuple[int, ...]]], factor: int
) -> list[int | None] | None:
    """Finds the dimension of each tensor that has a factor as its major one.

    Returns None if a tensor has it as a minor factor, or in two dimensions.
    """
    found: list[int | None] = []
    for dims in tensors:
        having = [at for at, dim in enumerate(dims) if factor in dim]
        if len(having) > 1 or any(
            dims[at][0] != factor or not rule.minor(dims[at]) for at in having
        ):
            return None
        found.append(having[0] if having else None)
    return found
