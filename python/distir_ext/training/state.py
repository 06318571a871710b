"""Makes the state of a training step from weights, and runs steps with the state on workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax

from distir_ext.annotate.annotations import function_to_annotate
from distir_ext.params.host_array import numpy_dtype
from distir_ext.session.model import Model
from distir_ext.structure.training_state import STATE, STATE_ATTRIBUTE
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.errors.tracebacks import short_tracebacks

PARAMS = f"{STATE}params."
"""Begin of the names of the fields with the parameters."""

LEARNING_RATE = "learning_rate"
"""The last input of a training step, a float32 scalar."""

NONFINITE_STEPS = "nonfinite_steps"
"""Field of the state that counts the steps with a loss or gradient that was not finite."""

LOSS_SCALE = "loss_scale"
"""Field of the state: the loss is multiplied by it."""

STEP = "step"
"""Field of the state that counts steps."""

DROPOUT_SEED = "dropout_seed"
"""Field of the state: the seed of the masks of dropout, an int64."""

LOSS_SCALE_ATTRIBUTE = "distir.loss_scale"
"""Attribute of a step: the loss scale at first."""

METRICS = ("loss", "gradient_norm", NONFINITE_STEPS)
"""Results behind the state, in order."""


@short_tracebacks
def initial_state(
    step: tvm.IRModule, params: Mapping[str, Any], *, dropout_seed: int = 0, func: str = "main"
) -> dict[str, Any]:
    """The state before the first step.

    Args:
        step: What :func:`distir_ext.train_step` returned, annotated or not.
        params: Global arrays, anything that ``numpy.asarray`` takes, by the name of the
            parameter in the forward function.
        dropout_seed: Seed of the masks of dropout, if the forward function has any.
        func: Name of the step.

    Returns:
        By name (``state.params.<name>``, ...) a NumPy array: the parameters as given, in the dtype
        of the state, the loss scale, the seed, and zeros for all else.

    Raises:
        ValueError: ``func`` is no training step, its shapes are symbolic, or ``params`` lacks one,
            has another one, or one of another shape.
    """
    function = function_to_annotate(step, func)
    fields = fields_of_state(function, func)
    names = [name[len(PARAMS) :] for name in fields if name.startswith(PARAMS)]
    _check_keys("params", params, names)
    state: dict[str, Any] = {}
    for name, (shape, of_state) in fields.items():
        dtype = numpy_dtype(of_state)
        if name.startswith(PARAMS):
            value = np.asarray(params[name[len(PARAMS) :]])
            if value.shape != shape:
                raise ValueError(
                    f"params has {name[len(PARAMS) :]!r} of shape {list(value.shape)}, "
                    f"the step takes {list(shape)}"
                )
            state[name] = value.astype(dtype)
        elif name == f"{STATE}{LOSS_SCALE}":
            state[name] = np.asarray(initial_loss_scale(function), dtype)
        elif name == f"{STATE}{DROPOUT_SEED}":
            state[name] = np.asarray(dropout_seed, dtype)
        else:
            state[name] = np.zeros(shape, dtype)
    return state


def fields_of_state(function: relax.Function, func: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the dtype of each field of the state of a step, by name.

    Args:
        function: The step.
        func: Its name.

    Raises:
        ValueError: It is no training step, or a size is symbolic.
    """
    if function.attrs is None or STATE_ATTRIBUTE not in function.attrs:
        raise ValueError(f"{func} is no training step, which dx.train_step makes")
    count = len(function.attrs[STATE_ATTRIBUTE])
    return {
        str(each.name): (
            tuple(_size(size, str(each.name)) for size in each.ty.shape),
            str(each.ty.dtype),
        )
        for each in function.params[:count]
    }


def initial_loss_scale(function: relax.Function) -> float:
    """The loss scale of a step before it runs; 1 if it has none."""
    return float(function.attrs.get(LOSS_SCALE_ATTRIBUTE, 1.0))


def _size(size: Any, name: str) -> int:
    if not isinstance(size, tvm.tirx.IntImm):
        raise ValueError(
            f"{name} has the symbolic size {size}; relax.transform.BindSymbolicVars states it"
        )
    return int(size)


def _check_keys(what: str, given: Mapping[str, Any], names: list[str]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown:
        raise ValueError(
            f"{what} has {unknown[0]!r}, which the step does not have"
            f"{did_you_mean(unknown[0], names)}"
        )
    missing = [name for name in names if name not in given]
    if missing:
        raise ValueError(f"{what} lacks {', '.join(map(repr, missing))}")


class Trainer:
    """A training step on the workers of a session: ``(state, batch) -> (state, metrics)``.

    Example::

        train = dx.training.Trainer(session.load(dx.build(mod)))
        state = dx.training.initial_state(step, weights)
        for x, target in batches:
            batch = {"x": x, "target": target, "learning_rate": 1e-3}
            state, metrics = train(state, batch)

    The state stays on the workers between steps; a field is fetched when it is read.

    Args:
        model: What ``Session.load`` returned.
        func: Name of the step.

    Raises:
        ValueError: ``func`` is no training step.
    """

    @short_tracebacks
    def __init__(self, model: Model, func: str = "main") -> None:
        self._function = model[func]
        inputs = self._function.input_names
        self._state = [name for name in inputs if name.startswith(STATE)]
        self._batch = [name for name in inputs if not name.startswith(STATE)]
        if not self._state or LEARNING_RATE not in self._batch:
            raise ValueError(f"{func} is no training step, which dx.train_step makes")

    @property
    def state_names(self) -> tuple[str, ...]:
        """Fields of the state."""
        return tuple(self._state)

    @property
    def batch_names(self) -> tuple[str, ...]:
        """Fields of a batch."""
        return tuple(self._batch)

    @short_tracebacks
    def __call__(
        self, state: Mapping[str, Any], batch: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runs one step.

        Args:
            state: By name global arrays, on the host or on the workers.
            batch: By name the inputs of the forward function, the targets and ``learning_rate``.

        Returns:
            The new state, and the metrics: ``loss``, ``gradient_norm``, ``nonfinite_steps``, and
            ``output.0`` ... for further results of the forward function. All are on the workers.

        Raises:
            ValueError: A field is missing or unknown, or has another shape.
            TypeError: A field has another dtype.
            WorkerError: A worker failed.
            RuntimeError: The session is closed.
        """
        _check_keys("the state", state, self._state)
        _check_keys("the batch", batch, self._batch)
        rate = batch[LEARNING_RATE]
        values = {**state, **batch}
        if isinstance(rate, int | float):
            values[LEARNING_RATE] = np.asarray(rate, "float32")
        results = list(self._function(**values))
        new = dict(zip(self._state, results, strict=False))
        rest = results[len(self._state) :]
        names = [*METRICS, *(f"output.{at}" for at in range(len(rest) - len(METRICS)))]
        return new, dict(zip(names, rest, strict=True))
