"""Legalises lookups and writes by position so that they stay within their tensors.

TVM's kernels read or write memory wherever a position says. Here negative positions count from the
end, as in NumPy, JAX and torch. Positions that are outside even so are, as in JAX, the nearest ones
of a lookup, and left out of a write:

    R.take(x, [-1, 3, 9], axis=0)         rows 7, 3 and 7                          x of 8 rows
    R.scatter_nd(x, [[-1], [9]], y)       x with y[0] as row 7

Positions that are known to be within bounds cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.ir.expr import TensorLoad

from distir_ext.compile.kernels.legalizations.dtypes import constant_array
from distir_ext.compile.kernels.legalizations.kernel_builder import KernelBuilder

__all__ = ["broadcast_shape", "is_one", "legalizations"]

Legalization = Callable[[relax.BlockBuilder, relax.Call], Any]


def legalizations(others: Mapping[str, Legalization]) -> dict[str, Legalization]:
    """For ``relax.transform.LegalizeOps``: also lookups and writes by position.

    Args:
        others: Legalisations by operator, which are used within these.
    """
    made = dict(others)
    for name, legalization in _OF_OPERATORS.items():
        other = made.get(name) or tvm.ir.Op.get(name).get_attr("FLegalize")
        made[name] = legalization(other)
    return made


# ---- positions


def _is_within(positions: relax.Expr, size: Any, builder: relax.BlockBuilder) -> bool:
    """Returns True if positions are known to lie in a dimension: constants, and what is clipped."""
    if not isinstance(size, tirx.IntImm):
        return False
    array = constant_array(positions)
    if array is not None:
        return bool(((array >= 0) & (array < int(size))).all())
    value = builder.lookup_binding(positions) if isinstance(positions, relax.Var) else positions
    if not isinstance(value, tvm.ir.Call) or getattr(value.op, "name", "") != "relax.clip":
        return False
    low, high = value.args[1:]
    return bool(float(low.value) >= 0 and float(high.value) <= int(size) - 1)


def _wide(positions: relax.Expr, builder: relax.BlockBuilder) -> relax.Expr:
    """Positions in a type that has all sizes and their negatives."""
    if str(positions.ty.dtype) in ("int32", "int64"):
        return positions
    return builder.emit(relax.op.astype(positions, "int64"))


def _from_begin(position: Any, size: Any) -> Any:
    size = tirx.Cast(str(position.ty.dtype), size)
    return tirx.Select(position < 0, position + size, position)


def _nearest(position: Any, size: Any) -> Any:
    last = tirx.Cast(str(position.ty.dtype), size) - 1
    return tirx.max(tirx.min(_from_begin(position, size), last), tirx.const(0, position.ty))


def _bounded(tensor: te.Tensor, size: Any) -> Callable[..., Any]:
    """The function from the place of a position to the place in the tensor that it means."""
    return lambda *place: _nearest(tensor(*place), size)


# ---- lookups


def _take(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, indices = call.args
        axis = int(call.attrs.axis or 0) % len(x.ty.shape)
        if call.attrs.mode != "fast" or _is_within(indices, x.ty.shape[axis], builder):
            return other(builder, call)

        def take(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
            position = _bounded(indices, x.shape[axis])
            end = axis + len(indices.shape)

            def element(*i: Any) -> Any:
                return x(*i[:axis], position(*i[axis:end]), *i[end:])

            shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
            return te.compute(shape, element, name="T_take")

        return builder.call_te(take, x, _wide(indices, builder))

    return legalize


def _gather_elements(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, indices = call.args
        axis = int(call.attrs.axis) % len(x.ty.shape)
        if _is_within(indices, x.ty.shape[axis], builder):
            return other(builder, call)

        def gather(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
            position = _bounded(indices, x.shape[axis])

            def element(*i: Any) -> Any:
                return x(*i[:axis], position(*i), *i[axis + 1 :])

            return te.compute(indices.shape, element, name="T_gather")

        return builder.call_te(gather, x, _wide(indices, builder))

    return legalize


def _gather_nd(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, indices = call.args
        count = indices.ty.shape[-1]
        if not isinstance(count, tirx.IntImm):
            return other(builder, call)
        batch = int(call.attrs.batch_dims or 0)

        def gather_nd(x: te.Tensor, indices: te.Tensor) -> te.Tensor:
            places = len(indices.shape) - 1
            sizes = x.shape[batch : batch + int(count)]

            def element(*i: Any) -> Any:
                positions = [
                    _nearest(indices(*i[:places], number), size)
                    for number, size in enumerate(sizes)
                ]
                return x(*i[:batch], *positions, *i[places:])

            shape = [*indices.shape[:places], *x.shape[batch + int(count) :]]
            return te.compute(shape, element, name="T_gather_nd")

        return builder.call_te(gather_nd, x, _wide(indices, builder))

    return legalize


def _index_tensor(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, tensors = call.args[0], _fields(call.args[1], builder)
        sizes = x.ty.shape
        if all(_is_within(each, sizes[d], builder) for d, each in enumerate(tensors)):
            return other(builder, call)

        def index_tensor(x: te.Tensor, *tensors: te.Tensor) -> te.Tensor:
            shape = broadcast_shape([list(each.shape) for each in tensors])

            def position(d: int, tensor: te.Tensor, *i: Any) -> Any:
                own = i[len(shape) - len(tensor.shape) :]
                pairs = zip(own, tensor.shape, strict=True)
                place = [0 if is_one(size) else each for each, size in pairs]
                return _nearest(tensor(*place), x.shape[d])

            def element(*i: Any) -> Any:
                places, behind = i[: len(shape)], i[len(shape) :]
                positions = [position(d, each, *places) for d, each in enumerate(tensors)]
                return x(*positions, *behind)

            return te.compute([*shape, *x.shape[len(tensors) :]], element, name="advanced_index")

        return builder.call_te(index_tensor, x, *(_wide(each, builder) for each in tensors))

    return legalize


def broadcast_shape(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that indices of several shapes broadcast to."""
    shape: list[Any] = [1] * max(map(len, shapes))
    for each in shapes:
        for d, size in enumerate(reversed(each), 1):
            shape[-d] = shape[-d] if is_one(size) else size
    return shape


def is_one(size: Any) -> bool:
    """Returns whether a size is known to be 1."""
    return isinstance(size, int | tirx.IntImm) and int(size) == 1


def _fields(value: relax.Expr, builder: relax.BlockBuilder) -> list[relax.Expr]:
    """The tensors of a tuple, or of a list that holds one tensor."""
    if not isinstance(value.ty, relax.TupleType):
        return [value]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    return [builder.emit(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]


# ---- writes


def _slice_scatter(other: Legalization) -> Legalization:
    """A kernel where bounds are symbolic, for which TVM has none."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        if all(isinstance(each, tirx.IntImm) for each in call.args[2:]):
            return other(builder, call)
        axis = int(call.attrs.axis) % len(call.args[0].ty.shape)

        def slice_scatter(
            x: te.Tensor, source: te.Tensor, start: Any, end: Any, step: Any
        ) -> te.Tensor:
            def element(*i: Any) -> Any:
                behind = i[axis] - start
                is_written = tirx.all(behind >= 0, i[axis] < end, behind % step == 0)
                value = source(*i[:axis], behind // step, *i[axis + 1 :])
                return tirx.if_then_else(is_written, value, x(*i))

            return te.compute(x.shape, element, name="slice_scatter")

        return builder.call_te(slice_scatter, *call.args)

    return legalize


def _scatter_elements(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, indices, updates = call.args
        axis = int(call.attrs.axis or 0) % len(x.ty.shape)
        if _is_within(indices, x.ty.shape[axis], builder):
            return other(builder, call)

        def edit(function: tirx.PrimFunc) -> tirx.PrimFunc:
            size = function.params[0].ty.shape[axis]
            return _only_within(function, {function.params[1]: size})

        return _edited(other, builder, call, [x, _wide(indices, builder), updates], edit)

    return legalize


def _index_put(other: Legalization) -> Legalization:
    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
        x, values = call.args[0], call.args[2]
        tensors = [_wide(each, builder) for each in _fields(call.args[1], builder)]
        is_within = all(_is_within(each, x.ty.shape[d], builder) for d, each in enumerate(tensors))

        def edit(function: tirx.PrimFunc) -> tirx.PrimFunc:
            if len(function.params) != len(tensors) + 3:
                return function  # a cast of operands or of the result
            if call.attrs.accumulate:
                function = _in_order(function)
            if is_within:
                return function
            shape = function.params[0].ty.shape
            return _only_within(
                function, {function.params[1 + d]: shape[d] for d in range(len(tensors))}
            )

        return _edited(other, builder, call, [x, relax.Tuple(tensors), values], edit)

    return legalize


def _at_rows(data: int, indices: int, axis_of: Callable[[Any], int]) -> Any:
    """For writes whose kernels take no negative positions: outside ones are -1, and left out.

    Args:
        data: Number of the operand that is written to, or that has its shape.
        indices: Number of the operand that has the positions.
        axis_of: Returns the first dimension that they are of.
    """

    def of(other: Legalization) -> Legalization:
        def legalize(builder: relax.BlockBuilder, call: relax.Call) -> Any:
            shape, places = call.args[data].ty.shape, _wide(call.args[indices], builder)
            axis = axis_of(call) % len(shape)
            is_vector = call.op.name == "relax.scatter_nd"
            count = int(places.ty.shape[-1]) if is_vector else 1
            if all(_is_within(places, shape[axis + d], builder) for d in range(count)):
                return other(builder, call)

            def positions(x: te.Tensor, places: te.Tensor) -> te.Tensor:
                def position(*i: Any) -> Any:
                    found = tirx.const(-1, str(places.dtype))
                    for d in range(count):
                        here = _from_begin(places(*i), x.shape[axis + d])
                        size = tirx.Cast(str(here.ty.dtype), x.shape[axis + d])
                        here = tirx.Select(
                            tirx.all(here >= 0, here < size), here, tirx.const(-1, here.ty)
                        )
                        found = tirx.Select(i[-1] == d, here, found) if is_vector else here
                    return found

                return te.compute(places.shape, position, name="positions")

            args = list(call.args)
            args[indices] = builder.emit(builder.call_te(positions, args[data], places))
            return _edited(other, builder, call, args, _only_at_positions)

        return legalize

    return of


def _edited(
    other: Legalization,
    builder: relax.BlockBuilder,
    call: relax.Call,
    args: Sequence[relax.Expr],
    edit: Callable[[tirx.PrimFunc], tirx.PrimFunc],
) -> Any:
    changed = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
    relax.expr._update_type(changed, call.ty)
    return other(KernelBuilder(builder, edit=edit), changed)


def _only_within(function: tirx.PrimFunc, sizes: Mapping[Any, Any]) -> tirx.PrimFunc:
    """A kernel that writes where positions lie in their dimensions only.

    Args:
        function: Kernel of a write that counts negative positions from the end.
        sizes: By parameter that has positions the size of their dimension.
    """

    def condition(load: TensorLoad) -> Any:
        for tensor, size in sizes.items():
            if load.source.same_as(tensor):
                size = tirx.Cast(str(load.ty.dtype), size)
                return tirx.all(load >= -size, load < size)
        return None

    return _where(function, condition)


def _only_at_positions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that writes where no position is negative."""
    return _where(function, lambda load: load >= 0)


def _where(function: tirx.PrimFunc, condition: Callable[[TensorLoad], Any]) -> tirx.PrimFunc:
    """A kernel whose writes by position are done under the condition of all positions."""

    def guard(node: Any) -> Any:
        conditions: list[Any] = []

        def see(load: TensorLoad) -> None:
            holds = condition(load)
            if holds is not None and not any(
                tvm_ffi.structural_equal(holds, each) for each in conditions
            ):
                conditions.append(holds)

        tvm_ffi.structural_walk(node.indices, (TensorLoad, see))
        return tirx.IfThenElse(tirx.all(*conditions), node, None) if conditions else node

    return tvm_ffi.structural_map(function, (tirx.BufferStore, guard))


def _in_order(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel without parallel loops: what is added up at one place may not be at one time."""

    def serial(node: tirx.For) -> tirx.For:
        if node.kind != tirx.ForKind.PARALLEL:
            return node
        return tirx.For(node.loop_var, node.min, node.extent, tirx.ForKind.SERIAL, node.body)

    return tvm_ffi.structural_map(function, (tirx.For, serial))


_OF_OPERATORS: Mapping[str, Callable[[Legalization], Legalization]] = {
    "relax.take": _take,
    "relax.gather_elements": _gather_elements,
    "relax.gather_nd": _gather_nd,
    "relax.index_tensor": _index_tensor,
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _at_rows(0, 1, lambda call: 0),
    "relax.index_put": _index_put,
    "relax.slice_scatter": _slice_scatter,
    "relax.grad.take_backward": _at_rows(1, 2, lambda call: int(call.attrs.axis or 0)),
}
