"""Writes R.nn.dropout for training: masks that depend on a seed, the step and the call alone.

TVM's operator is the identity, with a mask of ones. In a training step it becomes::

    keep = random_bits(key, positions) >> 9 < (1 - rate) * 2 ** 23
    result = where(keep, x / (1 - rate), 0)

The key follows from the seed and the step, fields of the state, and the number of the call. So
gradients and activations that are computed again have the same mask, on every mesh.
"""

from __future__ import annotations

from collections.abc import Iterable

import tvm
from tvm import relax
from tvm.relax import op

from distir_ext.text.printable import shown
from distir_ext.training.random_numbers import Emit, folded_keys, kept

_OPERATOR = "relax.nn.dropout"


def is_dropout(value: relax.Expr) -> bool:
    """Returns True for a call of R.nn.dropout."""
    return (
        isinstance(value, tvm.ir.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == _OPERATOR
    )


def checked_calls(bindings: Iterable[relax.Binding], func: str) -> int:
    """Returns the number of calls of R.nn.dropout.

    Raises:
        ValueError: A rate is not from 0 to below 1; names the value.
    """
    found = [each for each in bindings if is_dropout(each.value)]
    for each in found:
        rate = float(each.value.attrs.rate)
        if not 0 <= rate < 1:
            raise ValueError(
                f"{shown(str(each.var.name))} of {func} is R.nn.dropout with the rate {rate:g}; "
                "rates are from 0 to below 1"
            )
    return len(found)


class Dropout:
    """The calls of R.nn.dropout of one step.

    Args:
        emit: Binds values.
        seed: Field of the state, a scalar of int64.
        step: Field of the state, the number of steps before, a scalar of int32.
        calls: Number of the calls.
    """

    def __init__(self, emit: Emit, seed: relax.Var, step: relax.Var, calls: int) -> None:
        self._emit = emit
        words = emit(op.astype(step, "int64"))
        self._keys = iter(folded_keys(emit, seed, words, range(calls)))
        self._results: dict[relax.Expr, relax.Tuple] = {}

    def replaced(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        """The value of a variable in training: a call drops, and its fields are what it made."""
        if is_dropout(value):
            self._results[var] = self._applied(value)
            return self._results[var]
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._results:
            return self._results[value.tuple_value].fields[value.index]
        return value

    def _applied(self, call: relax.Call) -> relax.Tuple:
        emit, (x,) = self._emit, call.args
        dtype, rate = str(x.ty.dtype), float(call.attrs.rate)
        key = next(self._keys)
        if rate == 0:
            return relax.Tuple([x, emit(op.ones_like(x))])
        keep = emit(kept(emit, key, list(x.ty.shape), 1 - rate))
        scaled = emit(op.multiply(x, relax.const(1 / (1 - rate), dtype)))
        result = emit(op.where(keep, scaled, relax.const(0, dtype)))
        return relax.Tuple([result, emit(op.grad.no_grad(emit(op.astype(keep, dtype))))])
