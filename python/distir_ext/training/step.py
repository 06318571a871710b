"""Builds training steps: one function of the forward pass, its gradients and an optimiser.

A forward function ``main(x, w)`` becomes a function of a state and a batch, both flat::

    main(state.params.w, state.velocity.w, state.step, state.nonfinite_steps,
         x, target, learning_rate)
      -> (state.params.w, state.velocity.w, state.step, state.nonfinite_steps,
          loss, gradient_norm, nonfinite_steps)

It is a Relax function like any other. The attribute ``distir.state`` says of each field of the
state which parameter it belongs to, so that ``annotate`` shards what comes out as what goes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from distir_ext.annotate.annotations import function_to_annotate
from distir_ext.annotate.donation import DONATED_ATTRIBUTE
from distir_ext.structure.annotated_function import bindings_of
from distir_ext.structure.training_state import STATE, STATE_ATTRIBUTE
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.printable import shown
from distir_ext.training.differentiate import differentiated
from distir_ext.training.dropout import Dropout, checked_calls
from distir_ext.training.losses import as_loss
from distir_ext.training.memory_limit import MemoryLimit
from distir_ext.training.optimizers import Optimizer, as_optimizer
from distir_ext.training.parameters import Param, field_of, float_of, trained_params
from distir_ext.training.recompute import (
    computed_again,
    marked_places,
    places_written_for,
    regions,
    without_mark,
)
from distir_ext.training.state import (
    DROPOUT_SEED,
    LEARNING_RATE,
    LOSS_SCALE,
    LOSS_SCALE_ATTRIBUTE,
    NONFINITE_STEPS,
    STEP,
)


@dataclass(frozen=True)
class LossScale:
    """Scaling of the loss, so that gradients in float16 do not vanish.

    Each step in which a gradient or the loss is not finite leaves the state as it is, is counted in
    ``nonfinite_steps``, and makes the scale smaller. (As ``torch.amp.GradScaler``.)

    Attributes:
        initial: The scale at first.
        growth: Factor after ``interval`` steps that were finite.
        backoff: Factor after a step that was not.
        interval: Number of steps.
    """

    initial: float = 2.0**15
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000


@short_tracebacks
def train_step(
    mod: tvm.IRModule,
    loss: Any = None,
    optimizer: Any = "sgd",
    params: Sequence[str] | None = None,
    *,
    func: str = "main",
    targets: Mapping[str, relax.Type] | None = None,
    clip: float | None = None,
    loss_scale: LossScale | float | None = None,
    checkpoint: int | MemoryLimit | None = None,
    legalize: bool = False,
    donate: bool = True,
) -> tvm.IRModule:
    """Makes a forward function a training step: gradients, optimiser, new state.

    Parameters in float16 or bfloat16 have float32 master weights in the state; the step casts
    them. The learning rate is the last input, a float32 scalar, so a schedule is what the
    caller passes. ``R.nn.dropout`` drops, with other masks in each step: they depend on the seed
    ``state.dropout_seed`` and on ``state.step``, and not on the mesh.

    Args:
        mod: The module; it is not changed. Functions that ``func`` calls are to be inlined.
        loss: A name (``"mse"``, ``"l1"``, ``"cross_entropy"`` of logits and int64 classes), a loss
            of ``tvm.relax.training``, or a function of the predictions and the targets. None: the
            first result of ``func`` is the loss.
        optimizer: One of :mod:`distir_ext.training`, its name, or one of ``tvm.relax.training``,
            of which all but the learning rate is taken.
        params: Names of the parameters that are trained; all others are inputs. None: the weights,
            those behind the function's attribute ``num_input``.
        func: Name of the forward function.
        targets: Types of the targets by name, where the loss does not say what they are.
        clip: The largest norm of all gradients together; larger ones are scaled down to it.
        loss_scale: The loss is multiplied by it before gradients are taken, and gradients are
            divided by it: a number that stays, or a :class:`distir_ext.training.LossScale`.
        checkpoint: Number of regions of the forward pass, with borders where few bytes are read
            later, such as between layers. Only values that cross a border are kept for the backward
            pass, which computes the others again. A
            :class:`distir_ext.training.MemoryLimit`: as many regions as it takes. None: values
            between the marks of :func:`distir_ext.training.checkpoint` are computed again.
        legalize: Whether ``LegalizeOps`` is run on the step. Plans need not have it.
        donate: Whether a call uses up the state that it is given, as :func:`distir_ext.donate`
            says, so that workers hold one state instead of two.

    Returns:
        A module with one function, ``main``. Its parameters are the fields of the state
        (``state.params.<name>``, ``state.<slot>.<name>`` and scalars), the inputs of ``func``, the
        targets and ``learning_rate``. It returns the new state in the same order, then the loss,
        the norm of the gradients (before clipping), the number of steps so far in which the loss or
        a gradient was not finite, and further results of ``func``.

    Raises:
        ValueError: There is no such function or parameter, or none is trained; no number of regions
            is within the memory limit; the loss is not a
            scalar of floats, or does not depend on a parameter; an operator on the way has no
            gradient; the function has branches; a rate of dropout is not below 1; names repeat; a
            number is out of range.
        TypeError: A loss or an optimiser is none.
    """
    function = function_to_annotate(mod, func)
    chosen = as_optimizer(optimizer)
    _check_numbers(clip, loss_scale, checkpoint)
    trained = trained_params(function, params, func)

    def with_regions(number: int | None) -> tvm.IRModule:
        builder = _Builder(function, func, [field_of(each, func) for each in trained], chosen)
        builder.forward(loss, targets, loss_scale, number)
        step = builder.step(clip, loss_scale)
        if donate:
            state = step.params[: len(step.attrs[STATE_ATTRIBUTE])]
            step = step.with_attr(DONATED_ATTRIBUTE, [str(each.name) for each in state])
        result = tvm.IRModule({"main": step}, global_infos=mod.global_infos)
        for var, other in mod.functions_items():
            if isinstance(other, tvm.tirx.PrimFunc):
                result[var] = other
        result = relax.transform.CanonicalizeBindings()(result)
        return relax.transform.DeadCodeElimination(["main"])(result)

    if isinstance(checkpoint, MemoryLimit):
        result = checkpoint.fitting_step(with_regions)
    else:
        result = with_regions(checkpoint)
    return relax.transform.LegalizeOps()(result) if legalize else result


def _check_numbers(
    clip: float | None,
    loss_scale: LossScale | float | None,
    checkpoint: int | MemoryLimit | None,
) -> None:
    is_number = isinstance(checkpoint, int) and not isinstance(checkpoint, bool) and checkpoint > 0
    if not is_number and checkpoint is not None and not isinstance(checkpoint, MemoryLimit):
        raise ValueError(f"checkpoint is {checkpoint!r}, not a number of regions from 1 on")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip is {clip!r}, not a norm above 0")
    scale = loss_scale.initial if isinstance(loss_scale, LossScale) else loss_scale
    if scale is not None and not 0 < scale < float("inf"):
        raise ValueError(f"loss_scale is {scale!r}, not a finite number above 0")


@dataclass(frozen=True)
class _Field:
    """A field of the state.

    Attributes:
        var: Parameter of the step.
        owner: Index of the field with the parameter that it belongs to; -1 for scalars.
    """

    var: relax.Var
    owner: int = -1


class _Builder:
    """Writes one step."""

    def __init__(
        self,
        function: relax.Function,
        func: str,
        trained: Sequence[Param],
        optimizer: Optimizer,
    ) -> None:
        self._function = function
        self._func = func
        self._trained = trained
        self._optimizer = optimizer
        self._builder = relax.BlockBuilder()
        names = {each.name for each in trained}
        self._inputs = [each for each in function.params if str(each.name) not in names]
        self._targets: list[relax.Var] = []

    def _emit(self, value: relax.Expr) -> relax.Var:
        return value if isinstance(value, relax.Var) else self._builder.emit(value)

    def forward(
        self,
        loss: Any,
        targets: Mapping[str, relax.Type] | None,
        loss_scale: LossScale | float | None,
        checkpoint: int | None,
    ) -> None:
        """Writes the function that returns the loss, and differentiates it."""
        builder = self._builder
        bindings = list(bindings_of(self._function.body))
        self._scalars: dict[str, relax.Var] = {}  # fields of the state that the forward pass reads
        if isinstance(loss_scale, LossScale):
            self._scalars[LOSS_SCALE] = _scalar(LOSS_SCALE, "float32")
        self._dropouts = checked_calls(bindings, self._func)
        if self._dropouts:
            self._scalars[DROPOUT_SEED] = _scalar(DROPOUT_SEED, "int64")
            self._scalars[STEP] = _scalar(STEP, "int32")
        for each in bindings:
            if isinstance(each.value, relax.If):
                raise ValueError(
                    f"{self._func} has a branch, {shown(str(each.var.name))}, which has no gradient"
                )
        inputs = [*(each.state for each in self._trained), *self._inputs]
        builder.begin_scope([*inputs, *self._scalars.values()])
        builder._begin_dataflow_block()
        try:
            written = self._written(bindings, loss, targets, loss_scale)
        finally:
            block = builder._end_block()
            builder.end_scope()
        params = [*inputs, *self._targets, *self._scalars.values()]
        values = relax.Tuple(written)
        body = relax.SeqExpr([block], values)
        relax.expr._update_type(body, values.ty)
        forward = relax.Function(params, body, values.ty)
        adjoint, self._results, self._gradients = differentiated(
            forward, {each.name: each.state for each in self._trained}, self._func
        )
        if checkpoint is None:
            marked = {bindings[at].var for at in marked_places(bindings)}
            ends = {each.var for each in (*bindings, *self._trained)}
            places = places_written_for(block.bindings, marked, ends)
        else:
            places = regions(block.bindings, checkpoint, len(self._trained))
        self._adjoint = computed_again(adjoint, places, len(block.bindings)) if places else adjoint
        # It has parameters of its own.
        mine = iter(self._adjoint.params)
        self._trained = [replace(each, state=next(mine)) for each in self._trained]
        self._inputs = [next(mine) for _ in self._inputs]
        self._targets = [next(mine) for _ in self._targets]
        self._scalars = dict(zip(self._scalars, mine, strict=True))

    def _written(
        self,
        bindings: Sequence[relax.Binding],
        loss: Any,
        targets: Mapping[str, relax.Type] | None,
        loss_scale: LossScale | float | None,
    ) -> list[relax.Expr]:
        builder = self._builder
        for each in self._trained:
            value: relax.Expr = each.state
            if each.state.ty.dtype != each.var.ty.dtype:
                value = relax.op.astype(each.state, str(each.var.ty.dtype))
            builder.emit_normalized(relax.VarBinding(each.var, builder.normalize(value)))
        tuples: dict[relax.Var, relax.Expr] = {}
        dropout = None
        if self._dropouts:
            seed, step = self._scalars[DROPOUT_SEED], self._scalars[STEP]
            dropout = Dropout(self._emit, seed, step, self._dropouts)
        for binding in bindings:
            value = without_mark(binding.value)
            if dropout is not None:
                value = dropout.replaced(binding.var, value)
            if value is not binding.value:
                binding = relax.VarBinding(binding.var, value)
            builder.emit_normalized(binding)
            tuples[binding.var] = value
        result: relax.Expr = self._function.body.body
        while isinstance(result, relax.Var) and isinstance(
            tuples.get(result), relax.Tuple | relax.Var
        ):
            result = tuples[result]
        if isinstance(result, relax.Tuple):
            values = [self._emit(field) for field in result.fields]
        elif isinstance(result.ty, relax.TupleType):
            values = [
                builder.emit(relax.TupleGetItem(result, index))
                for index in range(len(result.ty.fields))
            ]
        else:
            values = [self._emit(result)]
        if loss is None:
            found, others = values[0], values[1:]
        else:
            stated = as_loss(loss, values, targets, self._func)
            self._targets = list(stated.targets)
            found = self._emit(builder.normalize(stated.write(self._emit, values)))
            others = values[stated.predictions :] if stated.predictions < len(values) else []
        _check_loss(found, self._func, loss)
        scaled: relax.Expr = found
        factor = self._factor(loss_scale)
        if factor is not None:
            scaled = relax.op.multiply(relax.op.astype(found, "float32"), factor)
        # Gradient wants its target to be no other result.
        first = builder.emit_output(scaled if factor is not None else found)
        return [first, *(builder.emit_output(each) for each in (found, *others))]

    def _factor(self, loss_scale: LossScale | float | None) -> relax.Expr | None:
        if isinstance(loss_scale, LossScale):
            return self._scalars[LOSS_SCALE]
        return None if loss_scale is None else relax.const(float(loss_scale), "float32")

    def step(self, clip: float | None, loss_scale: LossScale | float | None) -> relax.Function:
        """Writes the optimiser behind the gradients."""
        builder = self._builder
        state = self._state(loss_scale)
        rate = relax.Var(LEARNING_RATE, relax.TensorType((), "float32"))
        inputs = [*self._inputs, *self._targets, rate]
        params = [*(field.var for field in state), *inputs]
        _check_names(params, self._func)
        builder.begin_scope(params)
        builder._begin_dataflow_block()
        try:
            new, metrics = self._updates(state, rate, clip, loss_scale)
            results = [builder.emit_output(each) for each in (*new, *metrics)]
        finally:
            block = builder._end_block()
            builder.end_scope()
        others = self._results[2:]
        value = relax.Tuple([*results, *others])
        body = relax.SeqExpr([*self._adjoint.body.blocks, block], value)
        relax.expr._update_type(body, value.ty)
        owners = [field.owner for field in state]
        step = relax.Function(params, body, value.ty).with_attr("global_symbol", "main")
        if isinstance(loss_scale, LossScale):
            step = step.with_attr(LOSS_SCALE_ATTRIBUTE, str(float(loss_scale.initial)))
        return step.with_attr(STATE_ATTRIBUTE, owners)

    def _state(self, loss_scale: LossScale | float | None) -> list[_Field]:
        fields = [_Field(each.state, at) for at, each in enumerate(self._trained)]
        for slot in self._optimizer.slots:
            fields += [
                _Field(relax.Var(f"{STATE}{slot}.{each.name}", each.state.ty), at)
                for at, each in enumerate(self._trained)
            ]
        for name in self._optimizer.scalars:
            fields.append(_Field(_scalar(name, "float32")))
        counters = [STEP, NONFINITE_STEPS]
        if isinstance(loss_scale, LossScale):
            fields.append(_Field(self._scalars[LOSS_SCALE]))
            counters.append("finite_steps")
        if DROPOUT_SEED in self._scalars:
            fields.append(_Field(self._scalars[DROPOUT_SEED]))
        fields += [_Field(self._scalars.get(name, _scalar(name, "int32"))) for name in counters]
        return fields

    def _updates(
        self,
        state: Sequence[_Field],
        rate: relax.Var,
        clip: float | None,
        loss_scale: LossScale | float | None,
    ) -> tuple[list[relax.Expr], list[relax.Expr]]:
        """The new state and the metrics."""
        emit = self._emit
        old = {str(field.var.name)[len(STATE) :]: field.var for field in state}
        gradients = list(self._gradients)
        factor = self._factor(loss_scale)
        if factor is not None:
            inverse = emit(relax.op.divide(relax.const(1.0, "float32"), factor))
            gradients = [
                emit(relax.op.multiply(each, self._as(inverse, each))) for each in gradients
            ]
        wide = max((str(each.ty.dtype) for each in gradients), key=lambda name: name == "float64")
        squares = [
            relax.op.astype(emit(relax.op.sum(emit(relax.op.multiply(each, each)))), wide)
            if str(each.ty.dtype) != wide
            else emit(relax.op.sum(emit(relax.op.multiply(each, each))))
            for each in gradients
        ]
        total = squares[0]
        for each in squares[1:]:
            total = emit(relax.op.add(total, each))
        norm = emit(relax.op.sqrt(total))
        loss = self._results[1]
        finite = emit(
            relax.op.logical_and(
                emit(relax.op.isfinite(norm)),
                emit(relax.op.isfinite(emit(relax.op.astype(loss, "float32")))),
            )
        )
        if clip is not None:
            # As torch.nn.utils.clip_grad_norm_.
            part = relax.op.divide(
                relax.const(clip, wide), relax.op.add(norm, relax.const(1e-6, wide))
            )
            part = emit(relax.op.minimum(part, relax.const(1.0, wide)))
            gradients = [emit(relax.op.multiply(each, self._as(part, each))) for each in gradients]
        scalars = self._optimizer.new_scalars(
            emit, {name: old[name] for name in self._optimizer.scalars}
        )
        new: dict[str, relax.Expr] = dict(scalars)
        for param, gradient in zip(self._trained, gradients, strict=True):
            slots = {slot: old[f"{slot}.{param.name}"] for slot in self._optimizer.slots}
            like = param.state
            cast = {name: self._as(value, like) for name, value in scalars.items()}
            value, kept = self._optimizer.update(
                emit, like, gradient, slots, self._as(rate, like), cast
            )
            new[f"params.{param.name}"] = value
            new.update({f"{slot}.{param.name}": each for slot, each in kept.items()})
        one = relax.const(1, "int32")
        new[STEP] = emit(relax.op.add(old[STEP], one))
        if isinstance(loss_scale, LossScale):
            self._rescale(loss_scale, finite, old, new)
        bad = emit(relax.op.subtract(one, emit(relax.op.astype(finite, "int32"))))
        new[NONFINITE_STEPS] = emit(relax.op.add(old[NONFINITE_STEPS], bad))
        if DROPOUT_SEED in old:
            new[DROPOUT_SEED] = old[DROPOUT_SEED]
        in_order = [new[str(field.var.name)[len(STATE) :]] for field in state]
        return in_order, [loss, norm, new[NONFINITE_STEPS]]

    def _rescale(
        self,
        loss_scale: LossScale,
        finite: relax.Expr,
        old: Mapping[str, relax.Var],
        new: dict[str, relax.Expr],
    ) -> None:
        """Keeps the state of before where a gradient was not finite, and changes the scale."""
        emit = self._emit
        for name, value in new.items():
            new[name] = emit(relax.op.where(finite, value, old[name]))
        zero = relax.const(0, "int32")
        number = emit(relax.op.add(old["finite_steps"], relax.const(1, "int32")))
        full = emit(relax.op.greater_equal(number, relax.const(loss_scale.interval, "int32")))
        scale = old[LOSS_SCALE]
        larger = emit(relax.op.multiply(scale, relax.const(loss_scale.growth, "float32")))
        smaller = emit(relax.op.multiply(scale, relax.const(loss_scale.backoff, "float32")))
        grown = emit(relax.op.where(full, larger, scale))
        new[LOSS_SCALE] = emit(relax.op.where(finite, grown, smaller))
        kept = emit(relax.op.where(full, zero, number))
        new["finite_steps"] = emit(relax.op.where(finite, kept, zero))

    def _as(self, value: relax.Expr, like: relax.Expr) -> relax.Expr:
        if str(value.ty.dtype) == str(like.ty.dtype):
            return value
        return self._emit(relax.op.astype(value, str(like.ty.dtype)))


def _scalar(name: str, dtype: str) -> relax.Var:
    """A field of the state that is one number."""
    return relax.Var(f"{STATE}{name}", relax.TensorType((), dtype))


def _check_loss(loss: relax.Var, func: str, stated: Any) -> None:
    type_ = loss.ty
    is_scalar = (
        isinstance(type_, relax.TensorType) and type_.shape is not None and len(type_.shape) == 0
    )
    if is_scalar and float_of(loss) is not None:
        return
    source = f"the first result of {func}" if stated is None else "the loss"
    raise ValueError(
        f"{source} is {type_}, not a scalar of floats, which gradients are taken of; reduce it "
        "with R.mean or R.sum" + (", or state loss=" if stated is None else "")
    )


def _check_names(params: Sequence[relax.Var], func: str) -> None:
    names = [str(each.name) for each in params]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"the training step of {func} would have several inputs {repeated[0]!r}; rename the "
            f"parameter of {func}, or state targets= with other names"
        )
