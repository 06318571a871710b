"""Computes activations again in the backward pass, so that they need not be kept until then.

The gradients of a function read many values of its forward pass. Each of those that are not kept
is computed a second time, from the kept ones, in front of the first gradient that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from itertools import accumulate
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from distir_ext.annotate.emitting import emitted, is_nn, like
from distir_ext.text.errors.tracebacks import short_tracebacks

_START, _END = "relax.grad.start_checkpoint", "relax.grad.end_checkpoint"
# Elements that a dimension of unknown size is taken to have, where regions are compared.
_UNKNOWN = 256


@short_tracebacks
def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function whose values are computed again in the backward pass.

    Only its arguments and results are kept until then, as with ``jax.checkpoint`` and
    ``torch.utils.checkpoint``. It marks the values (``R.grad.start_checkpoint``), for
    :func:`distir_ext.train_step`; without gradients the marks do nothing.

    Args:
        function: It takes the arguments, and returns a value or several, while a program is
            written: by a BlockBuilder, in TVMScript, or in a module of ``relax.frontend.nn``.
        *args: Relax expressions or Tensors of ``relax.frontend.nn``, which are marked; all others
            are passed on as they are.

    Returns:
        What the function returns, marked.

    Raises:
        TypeError: No argument, or no result, is an expression or a Tensor.
    """

    def marked(value: Any, name: str, what: str) -> Any:
        if not isinstance(value, relax.Expr) and not is_nn(value):
            return value
        seen.add(what)
        expr = emitted(value._expr if is_nn(value) else value)
        return like(value, emitted(relax.Call(tvm.ir.Op.get(name), [expr])))

    seen: set[str] = set()
    found = function(*(marked(each, _START, "argument") for each in args))
    if isinstance(found, tuple | list):
        results: Any = type(found)(marked(each, _END, "result") for each in found)
    else:
        results = marked(found, _END, "result")
    for what in ("argument", "result"):
        if what not in seen:
            raise TypeError(
                f"checkpoint marks tensors, and no {what} of the function is a Relax expression or "
                "a Tensor of relax.frontend.nn"
            )
    return results


def without_mark(value: relax.Expr) -> relax.Expr:
    """The value that a mark stands around; other values as they are."""
    return value.args[0] if _mark(value) else value


def _mark(value: relax.Expr) -> str | None:
    if not isinstance(value, tvm.ir.Call) or not isinstance(value.op, tvm.ir.Op):
        return None
    return value.op.name if value.op.name in (_START, _END) else None


def _reads(bindings: Sequence[relax.Binding]) -> list[list[int]]:
    """For each binding, the places of those that it reads."""
    place = {binding.var: at for at, binding in enumerate(bindings)}
    return [
        [place[var] for var in relax.analysis.free_vars(each.value) if var in place]
        for each in bindings
    ]


def marked_places(bindings: Sequence[relax.Binding]) -> set[int]:
    """Places of the bindings between marks: what a mark of an end reads, back to those of starts.

    Results of a region are kept, as are values that others read, too.

    Args:
        bindings: Of a forward function, with its marks.
    """
    reads = _reads(bindings)
    marks = [_mark(each.value) for each in bindings]
    inside: set[int] = set()
    waiting = [each for at, mark in enumerate(marks) if mark == _END for each in reads[at]]
    kept = set(waiting)
    while waiting:
        at = waiting.pop()
        if at not in inside and marks[at] is None:
            inside.add(at)
            waiting += reads[at]
    behind: set[int] = set()
    for at, mark in enumerate(marks):
        if mark == _START or (mark is None and behind.intersection(reads[at])):
            behind.add(at)
    inside = (inside & behind) - kept
    read_elsewhere = {
        each
        for at, read in enumerate(reads)
        if at not in inside and at not in kept
        for each in read
    }
    return inside - read_elsewhere


def places_written_for(
    bindings: Sequence[relax.Binding], marked: Set[relax.Var], ends: Set[relax.Var]
) -> set[int]:
    """Places of the bindings that are written for marked variables.

    Args:
        bindings: Each of some variables, with what was written for it in front.
        marked: Some of these variables.
        ends: All of these variables.
    """
    found: set[int] = set()
    begin = 0
    for at, binding in enumerate(bindings):
        if binding.var in ends:
            found |= set(range(begin, at + 1)) if binding.var in marked else set()
            begin = at + 1
    return found


def regions(bindings: Sequence[relax.Binding], number: int, num_weights: int = 0) -> set[int]:
    """Places of the bindings that are computed again where the forward pass has some regions.

    A border of regions is where few bytes are read later, such as between layers. Values that cross
    a border are kept, and all of the last region, which the backward pass begins with.

    Args:
        bindings: Of a forward function.
        number: Of regions; as many as fit, if there are fewer.
        num_weights: Bindings at the beginning that are weights, or these in another type. They
            count for nothing: all regions read them.
    """
    last = list(range(len(bindings)))  # the last binding that reads each; itself, if none does
    for at, read in enumerate(_reads(bindings)):
        for each in read:
            last[each] = at
    sizes = [
        _bytes_of(each.var.ty) if at >= num_weights else 0.0 for at, each in enumerate(bindings)
    ]
    changes = [0.0] * (len(bindings) + 1)
    for at, end in enumerate(last):
        if end > at:
            changes[at + 1] += sizes[at]
            changes[end] -= sizes[at]
    # Bytes that are made before a place and read behind the binding that stands there.
    crossing = list(accumulate(changes))
    total, so_far = sum(sizes), 0.0
    best: dict[int, tuple[float, int]] = {}
    for at in range(1, len(bindings)):
        so_far += sizes[at - 1]
        # A border belongs to the nearest of those that would make equal regions.
        share = so_far / total * number if total else 0.0
        border = round(share)
        if 0 < border < number:
            cost = (crossing[at] * (1 + abs(share - border)), at)
            best[border] = min(best.get(border, cost), cost)
    borders = sorted({at for _, at in best.values()})
    if not borders:
        return set()
    kept = {
        at for at, end in enumerate(last) for border in borders if at < border <= end and end > at
    }
    return set(range(borders[-1])) - kept


def _bytes_of(type_: Any) -> float:
    if isinstance(type_, relax.TupleType):
        return sum(_bytes_of(field) for field in type_.fields)
    shape = getattr(type_, "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return 0.0
    elements = prod(int(d) if isinstance(d, tvm.tirx.IntImm) else _UNKNOWN for d in shape)
    return float(tvm.DataType(str(type_.dtype)).bits / 8 * elements)


@mutator
class _Replace(PyExprMutator):
    """Replaces variables."""

    def __init__(self, by: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self._by = by

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self._by.get(var, var)

    visit_dataflow_var_ = visit_var_


def computed_again(
    function: relax.Function, places: Iterable[int], num_forward: int
) -> relax.Function:
    """A function with its gradients, which computes some values of its forward pass again.

    Args:
        function: It has one dataflow block, which begins with the forward pass.
        places: Of the bindings that are not kept, in the forward pass.
        num_forward: Number of bindings of the forward pass.

    Returns:
        The same function with copies of these bindings, each in front of the first gradient that
        reads it. All other variables are the same.
    """
    bindings = [each for block in function.body.blocks for each in block.bindings]
    again = {bindings[at].var: bindings[at].value for at in places}
    copies: dict[relax.Var, relax.Var] = {}
    written = list(bindings[:num_forward])
    replace = _Replace(copies)

    def copy(wanted: relax.Var) -> None:
        waiting = [wanted]
        while waiting:
            var = waiting[-1]
            missing = [
                each
                for each in relax.analysis.free_vars(again[var])
                if each in again and each not in copies
            ]
            if missing and var not in copies:
                waiting += missing
                continue
            waiting.pop()
            if var not in copies:
                made = relax.DataflowVar(f"{var.name}_again", var.ty)
                written.append(relax.VarBinding(made, replace.visit_expr(again[var])))
                copies[var] = made

    for binding in bindings[num_forward:]:
        used = [each for each in relax.analysis.free_vars(binding.value) if each in again]
        for each in used:
            copy(each)
        value = replace.visit_expr(binding.value) if used else binding.value
        written.append(relax.VarBinding(binding.var, value))
    body = relax.SeqExpr([relax.DataflowBlock(written)], function.body.body)
    relax.expr._update_type(body, function.body.body.ty)
    return relax.Function(function.params, body, function.ret_ty, attrs=function.attrs)
