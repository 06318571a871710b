"""Writes one Relax function of an import: its values, operators and StableHLO operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.annotate.open_regions import Region
from distir_ext.interop.jax.folding import fold
from distir_ext.interop.jax.hlo_shardings import constrained_to, group_of
from distir_ext.interop.jax.known import (
    Known,
    Stretched,
    check_type,
    constant_of,
    is_short,
    scalar_of,
    sizes_of,
)
from distir_ext.interop.jax.program import Program
from distir_ext.interop.jax.region_writer import RegionWriter
from distir_ext.interop.jax.shardings import results_shardings
from distir_ext.interop.jax.sizes import Size, Sizes, fold_sizes
from distir_ext.interop.jax.stablehlo import (
    Operation,
    UnsupportedError,
    Value,
    captured,
    dtype_of,
    open_tensor_of,
    operations_of,
    tensor_of,
)
from distir_ext.interop.jax.table import HANDLERS, near
from distir_ext.interop.shardy.program import without_names
from distir_ext.mesh.mesh import Mesh

_RETURNS = ("func.return", "stablehlo.return", "sdy.return")


class Writer(RegionWriter):
    """Writes one function.

    Args:
        program: The program that it belongs to.
        names: The parameters' names.
        types: Their types.
        region: The manual region that calls it, whose values its parameters are.
    """

    def __init__(
        self,
        program: Program,
        names: Sequence[str],
        types: Sequence[relax.Type],
        region: Region | None = None,
    ) -> None:
        self.parameters = [relax.Var(*each) for each in zip(names, types, strict=True)]
        super().__init__(program, region, [] if region is None else self.parameters)
        self.bindings: list[relax.Binding] = []
        self.values: dict[Value, Known] = {}

    # ---- values

    def set(self, value: Value, known: Known) -> None:
        """Sets the value of an SSA value."""
        self.values[value] = known

    def known(self, value: Value) -> Known:
        """Returns a value, stretched or not; sizes as a tensor."""
        known = self.values[value]
        return self.write_out(known) if isinstance(known, Sizes) else known

    def full(self, value: Value) -> relax.Expr:
        """A value as an expression of its own shape."""
        known = self.values[value]
        if isinstance(known, Sizes):  # which stay known as such
            return self.write_out(known)
        if isinstance(known, Stretched):
            known = self.write_out(known)
            self.values[value] = known
        return known

    def sizes(self, value: Value) -> tuple[Size, ...]:
        """The integers that a value lists.

        Raises:
            UnsupportedError: They depend on what tensors hold.
        """
        found = self.integers(value)
        if found is None:
            raise UnsupportedError("by sizes that are computed of what tensors hold")
        return found

    def integers(self, value: Value) -> tuple[Size, ...] | None:
        """The integers or booleans of a vector or scalar; None if they are not known."""
        known = self.values[value]
        if isinstance(known, Sizes):
            return known.values
        base = known.base if isinstance(known, Stretched) else known
        if not isinstance(base, tvm.ir.GenericConst):
            return None
        array = np.asarray(base.value.numpy())
        shape = self.shape(known)
        if array.dtype.kind not in "biu" or len(shape) > 1:
            return None
        if not all(isinstance(each, int) for each in shape):
            return None
        array = np.broadcast_to(array, shape)
        return tuple(int(each) for each in array.reshape(-1))

    def number(self, size: Size, dtype: str) -> Known:
        """A scalar that is a size."""
        size = self.program.algebra.simplified(size)
        return constant_of(size, dtype, ()) if isinstance(size, int) else Sizes((size,), dtype, ())

    def shape(self, known: Known) -> tuple[Size, ...]:
        """The shape of a value."""
        return known.shape if isinstance(known, Stretched | Sizes) else sizes_of(known)

    def is_shaped(self, known: Known, shape: Sequence[Size]) -> bool:
        """Returns whether a value has this shape."""
        return self.program.algebra.are_same(self.shape(known), shape)

    def write_out(self, known: Known) -> relax.Expr:
        """A value as an expression of its own shape."""
        if isinstance(known, Sizes):
            return self._tensor(known)
        if not isinstance(known, Stretched):
            return known
        number = scalar_of(known.base)
        # TVM 0.27 has no kernel for R.full of an infinity or NaN.
        is_plain = number is None or bool(np.isfinite(number.astype(np.float64)))
        if not sizes_of(known.base) and is_plain:
            dtype = str(known.base.ty.dtype)
            return self.emit(relax.op.full(list(known.shape), known.base, dtype))
        return self.emit(relax.op.broadcast_to(known.base, list(known.shape)))

    def _tensor(self, known: Sizes) -> relax.Expr:
        """Sizes as a tensor."""
        made = self.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(known.values))))
        if known.dtype != "int64":
            made = self.emit(relax.op.astype(made, known.dtype))
        return made if known.shape else self.emit(relax.op.reshape(made, []))

    def constant(self, value: Value) -> np.ndarray | None:
        """The number that a value is known to be, everywhere in it; None if it is not known."""
        known = self.values[value]
        if isinstance(known, Sizes):
            return None
        base = known.base if isinstance(known, Stretched) else known
        return scalar_of(base)

    # ---- emission

    def emit(self, expr: relax.Expr, name: str = "lv") -> relax.Var:
        """Binds an expression, whose operands are variables or constants, to a variable."""
        expr = self.program.builder.normalize(expr)
        variable = relax.DataflowVar(name, expr.ty)
        self.bindings.append(relax.VarBinding(variable, expr))
        if self._parts and not self._parts.isdisjoint(relax.analysis.free_vars(expr)):
            self._parts.add(variable)
        return variable

    # ---- operators

    def elementwise(
        self, op: Operation, build: Callable[..., relax.Expr], operands: Sequence[Value] = ()
    ) -> Known:
        """An operator of single elements; scalars and stretched operands stay as they are."""
        values = [self.known(each) for each in operands or op.operands]
        # A select may have one condition for all elements, a clamp one bound.
        shape = max(map(self.shape, values), key=len)
        dtype = dtype_of(op.results[0])
        wide = self._in_float32(build, dtype) if dtype.startswith("float8") else build
        return self.combine(wide, values, shape)

    def _in_float32(self, build: Callable[..., relax.Expr], dtype: str) -> Callable[..., Any]:
        """An operator on floats of 8 bits, of which Relax has few, in float32, rounded once."""

        def wide(*operands: relax.Expr) -> relax.Expr:
            given = [
                self.emit(relax_op.astype(each, "float32")) if str(each.ty.dtype) == dtype else each
                for each in operands
            ]
            made = self.emit(build(*given))
            return relax_op.astype(made, dtype) if str(made.ty.dtype) != dtype else made

        return wide

    def combine(
        self, build: Callable[..., relax.Expr], values: Sequence[Known], shape: tuple[Size, ...]
    ) -> Known:
        """Emits an operator on these values, which need not be operands of one operation."""
        bases = [each.base if isinstance(each, Stretched) else each for each in values]
        made = self.emit(build(*bases))
        return made if self.is_shaped(made, shape) else Stretched(made, shape)

    # ---- operations

    def block(self, block: Any, arguments: Sequence[Known]) -> list[Known]:
        """Writes the operations of a block with these arguments; returns the block's results."""
        for argument, known in zip(block.arguments, arguments, strict=True):
            self.set(argument, known)
        for op in operations_of(block):
            if op.name in _RETURNS:
                return [self.values[each] for each in op.operands]
            self.operation(op)
        raise UnsupportedError("a block has no return")

    def operation(self, op: Operation) -> None:
        """Writes one operation, or a stand-in for one without translation, which is recorded."""
        try:
            with self.with_values(self._read_by(op)), self._as_used(op):
                results = self._translated(op)
            results = self._as_stated(op, results)
            for value, known in zip(op.results, results, strict=True):
                check_type(value, known)
                self.set(value, known)
        except UnsupportedError as error:
            # Behind a stand-in it may be because of that.
            if op.name not in HANDLERS or not self._has_stand_in(op):
                self.program.problem(op, f"{op.name} {error}")
            self._stand_in(op)
        except (RuntimeError, TypeError, ValueError) as error:
            # Relax refuses the operator.
            if not self.program.problems:
                line = next(iter(str(error).strip().splitlines()), type(error).__name__)
                self.program.problem(op, f"{op.name} is refused by Relax: {line}")
            self._stand_in(op)

    def _as_used(self, op: Operation) -> AbstractContextManager[None]:
        """Makes the region that an operation's result is said to be in next the current one.

        A function that reads the number of a device is called with nothing that has entered it.
        """
        for stated in constrained_to(op) if self.program.shardings.has_manual_values else ():
            region = self.program.shardings.region_of(stated, self.region)
            if region is not None:
                return self.entering(region)
        return nullcontext()

    def _read_by(self, op: Operation) -> Iterator[Known]:
        yield from (self.values[each] for each in op.operands)
        yield from (self.values[each] for each in captured(op) if each in self.values)

    def _stand_in(self, op: Operation) -> None:
        """Results of these types, for what has no translation; no program with them is returned."""
        for value in op.results:
            try:
                shape, dtype = open_tensor_of(value.type)
                variable = self.program.algebra.multiple
                sizes = [variable("unknown") if each is None else each for each in shape]
                kind = relax.TensorType(sizes, dtype)
            except UnsupportedError:
                kind = relax.TensorType((), "float32")
            stand_in = relax.Var("unsupported", kind)
            self.program.stand_ins.add(stand_in)
            self.set(value, stand_in)

    def _has_stand_in(self, op: Operation) -> bool:
        known = (self.values[each] for each in op.operands)
        return any(isinstance(each, relax.Var) and each in self.program.stand_ins for each in known)

    def _translated(self, op: Operation) -> Sequence[Known]:
        handler = HANDLERS.get(op.name)
        if handler is None:
            raise UnsupportedError(f"has no translation{near(op.name)}")
        folded = fold(op, [self.constant(each) for each in op.operands])
        if folded is not None:
            shape, dtype = open_tensor_of(op.results[0].type)
            if None in shape:  # of an elementwise operation
                shape = max((self.shape(self.values[each]) for each in op.operands), key=len)
            return [constant_of(folded, dtype, shape)]
        sizes = self._sizes_of_sizes(op)
        if sizes is not None:
            return [sizes]
        made = handler(self, op)
        return made if isinstance(made, list) else [made]

    def _as_stated(self, op: Operation, results: Sequence[Known]) -> Sequence[Known]:
        """Results with the shardings that the operation states; sizes are no tensors."""
        stated = results_shardings(op)
        if stated is None:
            return results
        return [
            known
            if isinstance(known, Sizes)
            else self.annotated(known, sharding, f"the result of {op.name}")
            for known, sharding in zip(results, stated, strict=True)
        ]

    def _sizes_of_sizes(self, op: Operation) -> Known | None:
        """Computes an operation on sizes or as few numbers; None if it is another operation."""
        known = [self.values[each] for each in op.operands]
        if not known or not all(isinstance(each, Sizes) or is_short(each) for each in known):
            return None
        values = fold_sizes(self.program.algebra, op, [self.integers(each) for each in op.operands])
        if values is None:
            return None
        shape, dtype = tensor_of(op.results[0].type)
        if all(isinstance(each, int) for each in values):
            return constant_of(np.array(values).reshape(shape), dtype, shape)
        return Sizes(values, dtype, shape)

    def annotated(self, known: Known, sharding: Any, entity: str) -> Known:
        """A value with a stated sharding; the value itself if it leaves all dimensions open."""
        with self.with_values([known]):
            return self._annotated(known, sharding, entity)

    def _annotated(self, known: Known, sharding: Any, entity: str) -> Known:
        stated = self.program.shardings.read(sharding, self.region)
        if isinstance(known, tvm.ir.GenericConst) and not self.shape(known):
            return known  # a number has no dimensions, and stays known
        made = known if stated is None else self._marked(known, stated, entity)
        number = group_of(sharding)
        if number is None:
            return made
        return self.program.groups.tied(self, ("shard_as", number), self.part(made))

    def _marked(
        self, known: Known, stated: tuple[Mesh, Mesh, tuple[Any, ...] | None], entity: str
    ) -> relax.Expr:
        base, mesh, dims = stated
        expr = self.part(known)
        meshes = self.program.meshes
        try:
            meshes.mark("the mesh", base, None, None)
            where: Any = mesh
            if mesh != base:
                where, dims = without_names(mesh, dims, meshes)
            mark = meshes.mark(entity, where, dims, expr.ty)
        except ValueError as error:
            raise UnsupportedError(f"has a sharding that cannot be: {error}") from error
        return self.emit(mark.on(expr), "sharded")

    # ---- the function

    def function(self, results: Sequence[Known]) -> relax.Function:
        """The function that returns these results: one tensor, or a tuple."""
        outputs = [self.write_out(each) for each in results]
        expr = outputs[0] if len(outputs) == 1 else relax.Tuple(outputs)
        expr = self.program.builder.normalize(expr)
        result = relax.Var("result", expr.ty)
        self.bindings.append(relax.VarBinding(result, expr))
        body = relax.SeqExpr([relax.DataflowBlock(self.bindings)], result)
        return relax.Function(self.parameters, body, result.ty, is_pure=True)


def fields_of(writer: Writer, made: relax.Expr) -> list[relax.Expr]:
    """A result, or the fields of one that is a tuple."""
    if not isinstance(made.ty, relax.TupleType):
        return [made]
    return [writer.emit(relax.TupleGetItem(made, i)) for i in range(len(made.ty.fields))]
