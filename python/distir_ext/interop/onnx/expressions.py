"""Walks and rebuilds Relax expressions in normal form: parts, and replacement of parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tvm
from tvm import relax


def handles(value: relax.Expr) -> Iterator[Any]:
    """Yields the handles of an expression and of all its parts."""
    yield value.__chandle__()
    for part in parts_of(value):
        yield from handles(part)


def parts_of(value: relax.Expr) -> Iterable[relax.Expr]:
    """The expressions that one is made of, in the order in which :func:`replaced` has them."""
    if isinstance(value, tvm.ir.Call):
        return [each for each in value.args if isinstance(each, relax.Expr)]
    if isinstance(value, relax.Tuple):
        return list(value.fields)
    if isinstance(value, relax.TupleGetItem):
        return [value.tuple_value]
    if isinstance(value, relax.If):
        return [value.cond, value.true_branch, value.false_branch]
    if isinstance(value, relax.SeqExpr):
        bound = [binding.value for block in value.blocks for binding in block.bindings]
        return [*bound, value.body]
    return []


def replaced(value: relax.Expr, now: Mapping[Any, relax.Expr]) -> relax.Expr:
    """An expression with other values, of the same types, in place of some."""
    there = now.get(value.__chandle__())
    if there is not None:
        return there
    parts = list(parts_of(value))
    new = [replaced(part, now) for part in parts]
    if all(after.same_as(before) for after, before in zip(new, parts, strict=True)):
        return value
    if isinstance(value, tvm.ir.Call):
        rest = iter(new)
        args = [next(rest) if isinstance(each, relax.Expr) else each for each in value.args]
        result = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
    elif isinstance(value, relax.Tuple):
        result = relax.Tuple(new)
    elif isinstance(value, relax.TupleGetItem):
        result = relax.TupleGetItem(new[0], value.index)
    elif isinstance(value, relax.If):
        result = relax.If(*new)
    else:
        result = _body(value, iter(new))
    relax.expr._update_type(result, value.ty)
    return result


def _body(body: relax.SeqExpr, values: Iterator[relax.Expr]) -> relax.SeqExpr:
    blocks = []
    for block in body.blocks:
        bindings = [
            relax.MatchCast(binding.var, next(values), binding.ty)
            if isinstance(binding, relax.MatchCast)
            else relax.VarBinding(binding.var, next(values))
            for binding in block.bindings
        ]
        is_dataflow = isinstance(block, relax.DataflowBlock)
        blocks.append((relax.DataflowBlock if is_dataflow else relax.BindingBlock)(bindings))
    return relax.SeqExpr(blocks, next(values))
