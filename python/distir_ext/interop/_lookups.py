"""Bounds indices of lookups to their tensor, after TVM's frontends.

TVM's kernels read or write memory wherever an index says: that of -1 is before the first element,
and that of the size behind the last one. So negative indices get the size, as PyTorch and ONNX
count, constants behind the end are refused, and others are clipped:

    R.take(h, R.const(-1), axis=1)      R.take(h, R.const(7), axis=1)             h of (4, 8, 32)
    R.take(h, ids, axis=0)              R.take(h, R.clip(ids, 0, 3), axis=0)      ids: an input
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, sym, tirx

from distir_ext.interop._known_indices import KnownIntegers, Size, as_size


def with_bounded_lookups(mod: tvm.IRModule, counts_from_end: Callable[[str], bool]) -> tvm.IRModule:
    """A module, all of whose lookups and writes by indices stay within their tensors.

    Variables stay the same objects. What is known to be within bounds is as before.

    Args:
        mod: As a frontend has made it.
        counts_from_end: Whether negative indices that are computed at run time count from the end,
            by the name of the variable that holds the result.

    Raises:
        ValueError: A constant index is outside of its tensor; says of which variable.
    """
    changed = {}
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            body = _Bounded(function, counts_from_end).sequence(function.body)
            if not body.same_as(function.body):
                changed[name] = relax.Function(
                    function.params,
                    body,
                    function.ret_ty,
                    function.is_pure,
                    function.attrs,
                    function.span,
                )
    if not changed:
        return mod
    mod = mod.clone()
    for name, function in changed.items():
        mod[name] = function
    return mod


def _axis_size(call: tvm.ir.Call, axis: Any) -> Size:
    return as_size(call.args[0].ty.shape[0 if axis is None else int(axis)])


def _one(call: tvm.ir.Call) -> Sequence[Size]:
    return (_axis_size(call, call.attrs.axis),)


def _each(call: tvm.ir.Call) -> Sequence[Size]:
    return tuple(map(as_size, call.args[0].ty.shape))


def _vector(call: tvm.ir.Call) -> Sequence[Size]:
    """The sizes that the last dimension of the indices is of."""
    batch = int(getattr(call.attrs, "batch_dims", 0) or 0)
    count = int(call.args[1].ty.shape[-1])
    return tuple(map(as_size, list(call.args[0].ty.shape)[batch : batch + count]))


# By operator the sizes that its second argument has indices of: one for all of them, one for each
# field of a tuple, or one for each element of the last dimension.
_LOOKUPS: Mapping[str, Callable[[tvm.ir.Call], Sequence[Size]]] = {
    "relax.take": _one,
    "relax.gather_elements": _one,
    "relax.scatter_elements": _one,
    "relax.index_tensor": _each,
    "relax.index_put": _each,
    "relax.gather_nd": _vector,
    "relax.scatter_nd": _vector,
}


class _Bounded:
    def __init__(self, function: relax.Function, counts_from_end: Callable[[str], bool]) -> None:
        self._counts_from_end = counts_from_end
        self._known = KnownIntegers()
        self._builder = relax.BlockBuilder()
        self._analyzer = sym.Analyzer()
        self._count = 0
        self._names = {str(param.name) for param in function.params}
        for var in _variables(function.body):
            self._names.add(str(var.name))

    def sequence(self, body: relax.SeqExpr) -> relax.SeqExpr:
        """The body of a function or a branch; the same object if nothing is to be done."""
        blocks, is_changed = [], False
        for block in body.blocks:
            is_dataflow = isinstance(block, relax.DataflowBlock)
            self._kind = relax.DataflowVar if is_dataflow else relax.Var
            self._bindings: list[relax.Binding] = []
            changed = False
            for binding in block.bindings:
                value = self._value(binding)
                self._known.bind(binding.var, value)
                if value.same_as(binding.value):
                    self._bindings.append(binding)
                    continue
                changed = True
                self._bindings.append(relax.VarBinding(binding.var, value))
            kind = relax.DataflowBlock if is_dataflow else relax.BindingBlock
            blocks.append(kind(self._bindings) if changed else block)
            is_changed |= changed
        if not is_changed:
            return body
        result = relax.SeqExpr(blocks, body.body)
        relax.expr._update_type(result, body.ty)
        return result

    def _value(self, binding: relax.Binding) -> relax.Expr:
        value = binding.value
        if isinstance(binding, relax.MatchCast):
            return value
        if isinstance(value, relax.If):
            outer, kind = self._bindings, self._kind
            branches = [self.sequence(each) for each in (value.true_branch, value.false_branch)]
            self._bindings, self._kind = outer, kind
            if branches[0].same_as(value.true_branch) and branches[1].same_as(value.false_branch):
                return value
            result = relax.If(value.cond, *branches)
            relax.expr._update_type(result, value.ty)
            return result
        if not isinstance(value, tvm.ir.Call):
            return value
        sizes_of = _LOOKUPS.get(str(getattr(value.op, "name", "")))
        if sizes_of is None or getattr(value.attrs, "mode", "fast") in ("clip", "wrap", "nan"):
            return value
        if getattr(value.args[0].ty, "shape", None) is None:
            return value
        return self._looked_up(value, sizes_of, str(binding.var.name))

    def _looked_up(
        self, call: tvm.ir.Call, sizes_of: Callable[[Any], Sequence[Size]], name: str
    ) -> relax.Expr:
        sizes = sizes_of(call)
        indices = self._known.definition(call.args[1])
        if sizes_of is _each:
            fields = [
                self._index(each, (size,), name)
                for each, size in zip(indices.fields, sizes, strict=False)
            ]
            if all(new.same_as(old) for new, old in zip(fields, indices.fields, strict=True)):
                return call
            index: relax.Expr = relax.Tuple(fields)
        else:
            index = self._index(call.args[1], sizes, name)
            if index.same_as(call.args[1]):
                return call
        args = [call.args[0], index, *call.args[2:]]
        result = relax.Call(call.op, args, call.attrs, call.ty_args, call.span)
        return self._builder.normalize(result)

    def _index(self, index: relax.Expr, sizes: Sequence[Size], name: str) -> relax.Expr:
        """Indices within dimensions of some sizes; the same object if they are it."""
        dtype = str(index.ty.dtype)
        if dtype == "bool" or not sizes:
            return index
        array = self._known.array(index)
        if array is not None and all(isinstance(each, int) for each in sizes):
            return self._constant(index, array, self._numbers(sizes, dtype), name)
        bounds = self._known.bounds(index)
        low, high = bounds if bounds is not None else (None, None)
        if bounds is not None and all(self._within(low, high, size) for size in sizes):
            return index
        size = self._tensor(sizes, dtype)
        may_be_negative = array is not None or self._counts_from_end(name)
        may_be_negative = may_be_negative and not dtype.startswith("uint")
        if may_be_negative and not (isinstance(low, int) and low >= 0):
            if isinstance(high, int) and high < 0:
                index = self._emit(relax.op.add(index, size))
            else:
                is_negative = self._emit(relax.op.less(index, relax.const(0, dtype)))
                counted = self._emit(relax.op.add(index, size))
                index = self._emit(relax.op.where(is_negative, counted, index))
        if len(sizes) == 1:
            return self._emit(relax.op.clip(index, 0, sizes[0] - 1))
        last = self._emit(relax.op.subtract(size, relax.const(1, dtype)))
        index = self._emit(relax.op.minimum(index, last))
        return self._emit(relax.op.maximum(index, relax.const(0, dtype)))

    def _constant(self, index: relax.Expr, array: Any, size: Any, name: str) -> relax.Expr:
        """Constant indices, counted from the beginning."""
        if array.size and not ((array >= -size) & (array < size)).all():
            outside = array[~((array >= -size) & (array < size))].reshape(-1)[0]
            raise ValueError(
                f"index {int(outside)} of {name} is outside of its dimension, which has "
                f"{' x '.join(map(str, size.reshape(-1).tolist()))} elements"
            )
        counted = np.where(array < 0, array + size, array)
        if np.array_equal(counted, array) and not self._known.is_computed(index):
            return index
        return relax.const(counted.astype(size.dtype), str(size.dtype))

    def _within(self, low: Any, high: Any, size: Size) -> bool:
        if all(isinstance(each, int) for each in (low, high, size)):
            return bool(low >= 0 and high < size)
        return bool(self._analyzer.can_prove(tirx.all(low >= 0, high <= size - 1)))

    def _tensor(self, sizes: Sequence[Size], dtype: str) -> relax.Expr:
        """Sizes as a tensor: one number, or a list of several."""
        if all(isinstance(each, int) for each in sizes):
            return relax.const(self._numbers(sizes, dtype), dtype)
        parts = [
            relax.const(np.array([size], dtype), dtype)
            if isinstance(size, int)
            else self._emit(relax.op.arange(size, size + 1, 1, dtype))
            for size in sizes
        ]
        if len(parts) == 1:
            return self._emit(relax.op.reshape(parts[0], []))
        return self._emit(relax.op.concat(parts, 0))

    def _numbers(self, sizes: Sequence[int], dtype: str) -> Any:
        return np.array(sizes if len(sizes) > 1 else sizes[0], dtype)

    def _emit(self, value: relax.Expr) -> relax.Var:
        """A variable of a new binding, before the lookup."""
        value = self._builder.normalize(value)
        while (name := f"index_{self._count}") in self._names:
            self._count += 1
        self._names.add(name)
        var = self._kind(name, value.ty)
        self._bindings.append(relax.VarBinding(var, value))
        self._known.bind(var, value)
        return var


def _variables(body: relax.SeqExpr) -> Iterator[relax.Var]:
    for block in body.blocks:
        for binding in block.bindings:
            yield binding.var
            if isinstance(binding.value, relax.If):
                yield from _variables(binding.value.true_branch)
                yield from _variables(binding.value.false_branch)
