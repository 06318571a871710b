"""Optimisers, as Relax operators that a training step ends with.

Each keeps slots, arrays of the shape of a parameter, and says how a gradient changes both. The
learning rate is an input of every step, so schedules are the caller's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tvm import relax
from tvm.relax.training import optimizer as tvm_optimizers

from distir_ext.training.gradients import scalar_like

Emit = Callable[[relax.Expr], relax.Var]
"""Binds a value in the step that is being written."""


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base of optimisers.

    Attributes:
        slots: Names of the arrays that it keeps for each parameter, all zero at first.
        scalars: Names of the float32 scalars that it keeps, all zero at first.
    """

    slots: ClassVar[Sequence[str]] = ()
    scalars: ClassVar[Sequence[str]] = ()

    def new_scalars(self, emit: Emit, scalars: Mapping[str, relax.Expr]) -> dict[str, relax.Expr]:
        """The scalars of this step, of those of the step before."""
        return {}

    @abstractmethod
    def update(
        self,
        emit: Emit,
        param: relax.Expr,
        gradient: relax.Expr,
        slots: Mapping[str, relax.Expr],
        learning_rate: relax.Expr,
        scalars: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """Emits the update of one parameter.

        Args:
            emit: Binds a value.
            param: The parameter.
            gradient: Its gradient, of its shape and dtype.
            slots: By name, of its shape and dtype.
            learning_rate: A scalar of its dtype.
            scalars: Those of this step, of its dtype.

        Returns:
            The new parameter and the new slots.
        """


def _mixed(emit: Emit, old: relax.Expr, weight: float, new: relax.Expr) -> relax.Var:
    """``weight * old + (1 - weight) * new``."""
    kept = relax.op.multiply(old, scalar_like(weight, old))
    return emit(relax.op.add(kept, relax.op.multiply(new, scalar_like(1 - weight, old))))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent: ``p -= learning_rate * (g + weight_decay * p)``.

    Attributes:
        weight_decay: Factor of the parameter that is added to its gradient.
    """

    weight_decay: float = 0.0

    def update(
        self,
        emit: Emit,
        param: relax.Expr,
        gradient: relax.Expr,
        slots: Mapping[str, relax.Expr],
        learning_rate: relax.Expr,
        scalars: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """Emits the update; see :class:`Optimizer`."""
        gradient = _decayed(emit, param, gradient, self.weight_decay)
        return emit(relax.op.subtract(param, relax.op.multiply(gradient, learning_rate))), {}


@dataclass(frozen=True)
class Momentum(Optimizer):
    """SGD with momentum, as ``torch.optim.SGD(momentum=...)`` and TVM's ``MomentumSGD``.

    Attributes:
        momentum: Factor of the velocity of the step before.
        dampening: Part of the gradient that is not added to the velocity. (torch adds all of the
            first gradient; this does not.)
        weight_decay: Factor of the parameter that is added to its gradient.
        nesterov: Whether the parameter moves by the velocity of the next step.
    """

    momentum: float = 0.9
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    slots: ClassVar[Sequence[str]] = ("velocity",)

    def update(
        self,
        emit: Emit,
        param: relax.Expr,
        gradient: relax.Expr,
        slots: Mapping[str, relax.Expr],
        learning_rate: relax.Expr,
        scalars: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """Emits the update; see :class:`Optimizer`."""
        gradient = _decayed(emit, param, gradient, self.weight_decay)
        added = gradient
        if self.dampening:
            added = emit(relax.op.multiply(gradient, scalar_like(1 - self.dampening, param)))
        kept = relax.op.multiply(slots["velocity"], scalar_like(self.momentum, param))
        velocity = emit(relax.op.add(kept, added))
        moved = velocity
        if self.nesterov:
            ahead = relax.op.multiply(velocity, scalar_like(self.momentum, param))
            moved = emit(relax.op.add(gradient, ahead))
        new = emit(relax.op.subtract(param, relax.op.multiply(moved, learning_rate)))
        return new, {"velocity": velocity}


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), as ``torch.optim.Adam``.

    The bias corrections ``1 - beta ** t`` are kept as scalars, ``c = (1 - beta) + beta * c``, which
    has no cancellation: ``1 - 0.999 ** 1`` in float32 is wrong in its fifth digit.

    Attributes:
        betas: Factors of the means of gradients and of their squares.
        eps: Added to the root of the mean of squares.
        weight_decay: Factor of the parameter that is added to its gradient.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    slots: ClassVar[Sequence[str]] = ("mean", "square")
    scalars: ClassVar[Sequence[str]] = ("mean_correction", "square_correction")

    def new_scalars(self, emit: Emit, scalars: Mapping[str, relax.Expr]) -> dict[str, relax.Expr]:
        """The corrections of this step."""
        return {
            name: emit(
                relax.op.add(
                    relax.op.multiply(scalars[name], relax.const(beta, "float32")),
                    relax.const(1 - beta, "float32"),
                )
            )
            for name, beta in zip(self.scalars, self.betas, strict=True)
        }

    def update(
        self,
        emit: Emit,
        param: relax.Expr,
        gradient: relax.Expr,
        slots: Mapping[str, relax.Expr],
        learning_rate: relax.Expr,
        scalars: Mapping[str, relax.Expr],
    ) -> tuple[relax.Expr, dict[str, relax.Expr]]:
        """Emits the update; see :class:`Optimizer`."""
        param, gradient = self._decay(emit, param, gradient, learning_rate)
        mean = _mixed(emit, slots["mean"], self.betas[0], gradient)
        squared = emit(relax.op.multiply(gradient, gradient))
        square = _mixed(emit, slots["square"], self.betas[1], squared)
        root = relax.op.sqrt(relax.op.divide(square, scalars["square_correction"]))
        below = emit(relax.op.add(root, scalar_like(self.eps, param)))
        rate = emit(relax.op.divide(learning_rate, scalars["mean_correction"]))
        moved = emit(relax.op.multiply(relax.op.divide(mean, below), rate))
        return emit(relax.op.subtract(param, moved)), {"mean": mean, "square": square}

    def _decay(
        self, emit: Emit, param: relax.Expr, gradient: relax.Expr, learning_rate: relax.Expr
    ) -> tuple[relax.Expr, relax.Expr]:
        return param, _decayed(emit, param, gradient, self.weight_decay)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as ``torch.optim.AdamW``.

    Attributes:
        weight_decay: Part of the parameter, times the learning rate, that is taken away.
    """

    weight_decay: float = 0.01

    def _decay(
        self, emit: Emit, param: relax.Expr, gradient: relax.Expr, learning_rate: relax.Expr
    ) -> tuple[relax.Expr, relax.Expr]:
        if not self.weight_decay:
            return param, gradient
        part = emit(relax.op.multiply(learning_rate, scalar_like(self.weight_decay, param)))
        kept = emit(relax.op.subtract(scalar_like(1.0, param), part))
        return emit(relax.op.multiply(param, kept)), gradient


def _decayed(
    emit: Emit, param: relax.Expr, gradient: relax.Expr, weight_decay: float
) -> relax.Expr:
    if not weight_decay:
        return gradient
    decay = relax.op.multiply(param, scalar_like(weight_decay, param))
    return emit(relax.op.add(gradient, decay))


_NAMES: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": AdamW,
}


def as_optimizer(value: Any) -> Optimizer:
    """An optimiser, given as one, by name, or as one of ``tvm.relax.training``.

    Of TVM's, which need not be initialised, the numbers are taken except for the learning rate,
    which is an input.

    Raises:
        TypeError: It is none of these.
        ValueError: There is none of that name.
    """
    if isinstance(value, Optimizer):
        return value
    if isinstance(value, str):
        if value.lower() not in _NAMES:
            raise ValueError(f"there is no optimiser {value!r}; known are {sorted(_NAMES)}")
        return _NAMES[value.lower()]()
    if isinstance(value, tvm_optimizers.MomentumSGD):
        return Momentum(
            float(value.momentum),
            float(value.dampening),
            float(value.weight_decay),
            bool(value.nesterov),
        )
    if isinstance(value, tvm_optimizers.SGD):
        return SGD(float(value.weight_decay))
    if isinstance(value, tvm_optimizers.Adam):
        betas = float(value.beta1), float(value.beta2)
        return Adam(betas, float(value.eps), float(value.weight_decay))
    raise TypeError(
        f"the optimiser is a {type(value).__name__}, not one of distir_ext.training, "
        "of tvm.relax.training, or a name"
    )
