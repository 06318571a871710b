"""Keeps match_casts to known sizes, which check them, from removal by CanonicalizeBindings.

A match_cast defines the sizes that nothing states before it; of others it says that they are the
same. CanonicalizeBindings of TVM 0.27 takes both for definitions: behind ``x: (n, 4)`` and
``s: (m,)`` it drops ``R.match_cast(x, R.Tensor((m, 4)))`` with its check, and writes ``n`` for some
``m``, so that operators do not fit their operands any more. While it runs, such casts are calls.
ConvertToDataflow and FuseTIR run it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

_HIDDEN = "distir.checked_sizes"

_Change = Callable[[relax.Binding], relax.Binding]


def hide_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with calls in place of match_casts to sizes that are stated before."""
    return _changed(mod, lambda function: _Hider(function).hide)


def show_checks(mod: tvm.IRModule) -> tvm.IRModule:
    """The module of :func:`hide_checks`, or what a pass has made of it, with its match_casts."""
    return _changed(mod, lambda _: _show)


class _Hider:
    """Hides the casts of a function, in order."""

    def __init__(self, function: relax.Function) -> None:
        self._stated: set[Any] = set()
        for param in function.params:
            if isinstance(param.ty, tvm.ir.PrimType):
                self._stated.add(param)
            self._stated.update(_sizes(param.ty))

    def hide(self, binding: relax.Binding) -> relax.Binding:
        if not isinstance(binding, relax.MatchCast):
            return binding
        type_ = binding.ty
        sizes = set(_sizes(type_))
        is_check = not sizes.isdisjoint(self._stated)
        self._stated |= sizes
        if not is_check or tvm_ffi.structural_equal(type_, binding.value.ty):
            return binding
        operator = tvm.ir.Op.get("relax.call_pure_packed")
        arguments = [relax.ExternFunc(_HIDDEN), binding.value]
        call = relax.Call(operator, arguments, ty_args=[type_], ret_ty=type_)
        return relax.VarBinding(binding.var, call)


def _show(binding: relax.Binding) -> relax.Binding:
    call = getattr(binding, "value", None)
    if not isinstance(call, relax.Call) or len(call.args) != 2:
        return binding
    callee, value = call.args
    if not isinstance(callee, relax.ExternFunc) or callee.global_symbol != _HIDDEN:
        return binding
    return relax.MatchCast(binding.var, value, call.ty_args[0])


def _changed(mod: tvm.IRModule, change_of: Callable[[relax.Function], _Change]) -> tvm.IRModule:
    changed = {
        gv: relax.Function(
            function.params,
            _in_sequence(function.body, change_of(function)),
            function.ret_ty,
            function.is_pure,
            function.attrs,
            function.span,
        )
        for gv, function in mod.functions_items()
        if isinstance(function, relax.Function) and _has_casts(function.body)
    }
    if not changed:
        return mod
    mod = mod.clone()
    for gv, function in changed.items():
        mod.update_func(gv, function)
    return mod


def _has_casts(body: relax.SeqExpr) -> bool:
    """Returns whether a sequence, or a branch in it, has match_casts or calls that hide them."""
    return any(
        isinstance(binding, relax.MatchCast)
        or _show(binding) is not binding
        or any(_has_casts(branch) for branch in _branches(binding))
        for block in body.blocks
        for binding in block.bindings
    )


def _branches(binding: relax.Binding) -> list[relax.SeqExpr]:
    value = getattr(binding, "value", None)
    return [value.true_branch, value.false_branch] if isinstance(value, relax.If) else []


def _in_sequence(body: relax.SeqExpr, change: _Change) -> relax.SeqExpr:
    blocks = [
        type(block)([_in_branches(change(each), change) for each in block.bindings], block.span)
        for block in body.blocks
    ]
    made = relax.SeqExpr(blocks, body.body, body.span)
    relax.expr._update_type(made, body.ty)
    return made


def _in_branches(binding: relax.Binding, change: _Change) -> relax.Binding:
    branches = _branches(binding)
    if not any(map(_has_casts, branches)):
        return binding
    value = binding.value
    made = relax.If(value.cond, *(_in_sequence(each, change) for each in branches), value.span)
    relax.expr._update_type(made, value.ty)
    return relax.VarBinding(binding.var, made)


def _sizes(type_: Any) -> Iterator[Any]:
    """The symbolic variables in a type."""
    if isinstance(type_, tvm.ir.TupleType):
        for field in type_.fields:
            yield from _sizes(field)
        return
    shape = type_ if isinstance(type_, relax.ShapeType) else getattr(type_, "shape", None)
    for size in getattr(shape, "values", None) or ():
        yield from tvm.tirx.analysis.undefined_vars(size)
