"""Builds loss functions: scalars computed from a forward function's results and its targets.

A loss is a name, one of ``tvm.relax.training``, or a function on Relax values. Its targets are
further inputs of the training step.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.training import loss as tvm_losses

from distir_ext.text.errors.spelling import counted, did_you_mean

Emit = Callable[[relax.Expr], relax.Var]
"""Binds a value."""


@dataclass(frozen=True)
class Loss:
    """A loss with its targets.

    Attributes:
        targets: New inputs of the step.
        write: Emits the loss of the predictions; it gets what binds a value.
        predictions: Number of results of the forward function that it takes.
    """

    targets: Sequence[relax.Var]
    write: Callable[[Emit, Sequence[relax.Expr]], relax.Expr]
    predictions: int


def _squared_error(emit: Emit, prediction: relax.Expr, target: relax.Expr) -> relax.Expr:
    error = emit(relax.op.subtract(prediction, target))
    return relax.op.mean(emit(relax.op.multiply(error, error)))


def _absolute_error(emit: Emit, prediction: relax.Expr, target: relax.Expr) -> relax.Expr:
    error = emit(relax.op.subtract(prediction, target))
    return relax.op.mean(emit(relax.op.abs(error)))


def _cross_entropy(emit: Emit, logits: relax.Expr, target: relax.Expr) -> relax.Expr:
    sizes = list(logits.ty.shape)
    rows = math.prod(int(size) for size in sizes[:-1])
    logarithms = emit(relax.op.nn.log_softmax(logits, axis=-1))
    logarithms = emit(relax.op.reshape(logarithms, (rows, sizes[-1])))
    flat = emit(relax.op.reshape(target, (rows,)))
    # The gradient of a sum needs no collective; that of TVM's mean has one for its weights.
    total = emit(relax.op.nn.nll_loss(logarithms, flat, reduction="sum"))
    return relax.op.divide(total, relax.const(float(rows), str(logits.ty.dtype)))


_Named = Callable[[Emit, relax.Expr, relax.Expr], relax.Expr]

_NAMED: Mapping[str, _Named] = {
    "mse": _squared_error,
    "l1": _absolute_error,
    "cross_entropy": _cross_entropy,
}


def as_loss(
    loss: Any,
    predictions: Sequence[relax.Expr],
    targets: Mapping[str, relax.Type] | None,
    func: str,
) -> Loss:
    """A loss for a forward function.

    Args:
        loss: A name, ``"mse"``, ``"l1"`` or ``"cross_entropy"``; a loss of
            ``tvm.relax.training``; or a function of the predictions and the targets.
        predictions: What the forward function returns.
        targets: Types of the targets by name, for a function of the user's.
        func: Name of the forward function.

    Raises:
        ValueError: There is no loss of that name, the forward function returns too few values, or
            sizes that the loss divides by are symbolic.
        TypeError: The loss is none of these, or needs types of targets.
    """
    if isinstance(loss, str):
        if loss not in _NAMED:
            raise ValueError(
                f"there is no loss {loss!r}; known are {sorted(_NAMED)}{did_you_mean(loss, _NAMED)}"
            )
        return _named(loss, predictions, func)
    if isinstance(loss, tvm_losses.Loss):
        return _of_tvm(loss, predictions, targets, func)
    if callable(loss):
        return _of_function(loss, predictions, targets)
    raise TypeError(
        f"loss is a {type(loss).__name__}, not a name, a loss of tvm.relax.training, a function of "
        "predictions and targets, or None where the function returns the loss"
    )


def _named(loss: str, predictions: Sequence[relax.Expr], func: str) -> Loss:
    _check_count(loss, 1, predictions, func)
    type_ = predictions[0].ty
    write = _NAMED[loss]
    if loss == "cross_entropy":
        if type_.shape is None or len(type_.shape) < 1:
            raise ValueError(f"the loss 'cross_entropy' takes logits, {func} returns {type_}")
        if not all(isinstance(size, tvm.tirx.IntImm) for size in list(type_.shape)[:-1]):
            raise ValueError(
                f"the loss 'cross_entropy' divides by the number of targets, but {func} returns "
                f"{type_}: state sizes, or give a function as the loss"
            )
        type_ = relax.TensorType(list(type_.shape)[:-1], "int64")
    target = relax.Var("target", type_)
    return Loss([target], lambda emit, values: write(emit, values[0], target), 1)


def _of_tvm(
    loss: tvm_losses.Loss,
    predictions: Sequence[relax.Expr],
    targets: Mapping[str, relax.Type] | None,
    func: str,
) -> Loss:
    count = int(loss.num_backbone_outputs)
    _check_count(type(loss).__name__, count, predictions, func)
    taken = [value.ty for value in predictions[:count]]
    if targets is not None:
        types = list(targets.values())
    elif isinstance(loss, tvm_losses.CrossEntropyLoss):
        sizes = list(taken[0].shape)
        del sizes[1 if len(sizes) > 1 else 0]
        types = [relax.TensorType(sizes, "int64")]
    elif isinstance(
        loss, tvm_losses.L1Loss | tvm_losses.MSELoss | tvm_losses.CategoricalCrossEntropyLoss
    ):
        types = [taken[0]]
    else:
        raise TypeError(
            f"targets= states the types of the targets of {type(loss).__name__}, by name"
        )
    function = loss(*taken, *types)
    inner = list(function.params)
    names = list(targets) if targets is not None else [str(each.name) for each in inner[count:]]
    mine = [relax.Var(name, each.ty) for name, each in zip(names, inner[count:], strict=True)]

    def write(emit: Emit, values: Sequence[relax.Expr]) -> relax.Expr:
        known = dict(zip(inner, [*values[:count], *mine], strict=True))
        for block in function.body.blocks:
            for binding in block.bindings:
                known[binding.var] = emit(_replaced(binding.value, known))
        return known[function.body.body]

    return Loss(mine, write, count)


def _replaced(value: relax.Expr, known: Mapping[relax.Var, relax.Expr]) -> relax.Expr:
    """A value of one operator, on other operands."""
    if isinstance(value, relax.Var):
        return known[value]
    if isinstance(value, tvm.ir.Call):
        args = [_replaced(arg, known) for arg in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args)
    if isinstance(value, relax.Tuple):
        return relax.Tuple([_replaced(field, known) for field in value.fields])
    if isinstance(value, relax.TupleGetItem):
        return relax.TupleGetItem(_replaced(value.tuple_value, known), value.index)
    return value


def _of_function(
    loss: Callable[..., relax.Expr],
    predictions: Sequence[relax.Expr],
    targets: Mapping[str, relax.Type] | None,
) -> Loss:
    mine = [relax.Var(name, type_) for name, type_ in (targets or {}).items()]
    try:
        inspect.signature(loss).bind(*predictions, *mine)
    except TypeError as error:
        raise TypeError(
            f"the loss is called with {counted(len(predictions), 'prediction')} and "
            f"{counted(len(mine), 'target')}, which targets= states by name: {error}"
        ) from None
    return Loss(mine, lambda _, values: loss(*values, *mine), len(predictions))


def _check_count(name: str, count: int, predictions: Sequence[relax.Expr], func: str) -> None:
    if len(predictions) < count:
        raise ValueError(
            f"the loss {name!r} takes {counted(count, 'prediction')}, {func} returns "
            f"{counted(len(predictions), 'value')}"
        )
