"""Distributions of initial weights, by the names of ``torch.nn.init`` and ``jax.nn.initializers``.

An initializer says how the numbers of a weight are distributed; ``dx.training.initialize`` has the
workers make them. Fans are those of weights ``(.., in, out)``, as of ``R.matmul`` and of flax; for
those of torch's layers, ``(out, in, ..)``, ``in_dim=1, out_dim=0``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import relax
from tvm.relax import op

from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.training.random_numbers import Emit, normal_between, uniform_between

__all__ = [
    "Initializer",
    "constant",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "ones",
    "truncated_normal",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


@dataclass(frozen=True)
class Initializer:
    """A distribution of the numbers of a weight.

    Attributes:
        name: Its function, with its arguments, as messages have it.
        write: Writes a weight in float32, by what binds values, a key and a shape.
    """

    name: str
    write: Callable[[Emit, relax.Expr, Sequence[int]], relax.Expr]


@short_tracebacks
def constant(value: float) -> Initializer:
    """All numbers are one number."""
    return Initializer(
        f"constant({value})",
        lambda emit, key, shape: emit(op.full(list(shape), relax.const(value, "float32"))),
    )


@short_tracebacks
def zeros() -> Initializer:
    """All numbers are 0."""
    return constant(0.0)


@short_tracebacks
def ones() -> Initializer:
    """All numbers are 1."""
    return constant(1.0)


@short_tracebacks
def uniform(low: float = 0.0, high: float = 1.0) -> Initializer:
    """Numbers in ``[low, high)``.

    Raises:
        ValueError: They are not finite, or ``low`` is not below ``high``.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"uniform has low={low!r} and high={high!r}, which has to be above it")
    return Initializer(
        f"uniform({low}, {high})",
        lambda emit, key, shape: uniform_between(emit, key, shape, low, high),
    )


@short_tracebacks
def normal(std: float = 1.0, mean: float = 0.0) -> Initializer:
    """Numbers of a normal distribution.

    Raises:
        ValueError: ``std`` is not positive and finite, or ``mean`` is not finite.
    """
    return _truncated("normal", std, mean, -math.inf, math.inf)


@short_tracebacks
def truncated_normal(
    std: float = 1.0, mean: float = 0.0, low: float = -2.0, high: float = 2.0
) -> Initializer:
    """Numbers of a normal distribution, without those outside of ``[low, high]``.

    Args:
        std: Standard deviation of the distribution before it is cut.
        mean: Of that distribution.
        low: The least number, in standard deviations from the mean (as in JAX).
        high: The highest number.

    Raises:
        ValueError: A number is not finite, ``std`` not positive, or ``low`` not below ``high``.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"truncated_normal has low={low!r} and high={high!r}, which has to be above it"
        )
    return _truncated("truncated_normal", std, mean, low, high)


def _truncated(name: str, std: float, mean: float, low: float, high: float) -> Initializer:
    if not (0 < std < math.inf and math.isfinite(mean)):
        raise ValueError(f"{name} has std={std!r} and mean={mean!r}; std has to be above 0")

    def write(emit: Emit, key: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        found = normal_between(emit, key, shape, low, high)
        return _moved(emit, found, std, mean)

    return Initializer(f"{name}(std={std}, mean={mean})", write)


def _moved(emit: Emit, x: relax.Expr, scale: float, offset: float) -> relax.Expr:
    found = emit(op.multiply(x, relax.const(scale, "float32"))) if scale != 1 else x
    return emit(op.add(found, relax.const(offset, "float32"))) if offset else found


@short_tracebacks
def xavier_uniform(gain: float = 1.0, *, in_dim: int = -2, out_dim: int = -1) -> Initializer:
    """Numbers in ``+- gain sqrt(6 / (fan_in + fan_out))``; ``glorot_uniform`` of JAX."""
    return _by_fans("xavier_uniform", "uniform", "sum", gain * gain, in_dim, out_dim)


@short_tracebacks
def xavier_normal(gain: float = 1.0, *, in_dim: int = -2, out_dim: int = -1) -> Initializer:
    """The deviation is ``gain sqrt(2 / (fan_in + fan_out))``."""
    return _by_fans("xavier_normal", "normal", "sum", gain * gain, in_dim, out_dim)


@short_tracebacks
def kaiming_uniform(
    gain: float = math.sqrt(2), mode: str = "fan_in", *, in_dim: int = -2, out_dim: int = -1
) -> Initializer:
    """Numbers in ``+- gain sqrt(3 / fan)``; ``he_uniform`` of JAX.

    Args:
        gain: That of torch's ``calculate_gain``; the root of 2 for ReLU.
        mode: ``"fan_in"`` or ``"fan_out"``.
        in_dim: The dimension of the layer's inputs.
        out_dim: The dimension of its outputs. All others are of a window.
    """
    return _by_fans("kaiming_uniform", "uniform", mode, gain * gain, in_dim, out_dim)


@short_tracebacks
def kaiming_normal(
    gain: float = math.sqrt(2), mode: str = "fan_in", *, in_dim: int = -2, out_dim: int = -1
) -> Initializer:
    """The deviation is ``gain / sqrt(fan)``; arguments as :func:`kaiming_uniform`."""
    return _by_fans("kaiming_normal", "normal", mode, gain * gain, in_dim, out_dim)


def _by_fans(
    name: str, kind: str, mode: str, variance: float, in_dim: int, out_dim: int
) -> Initializer:
    if mode not in ("fan_in", "fan_out", "sum"):
        raise ValueError(f"{name} has mode={mode!r}, which is 'fan_in' or 'fan_out'")
    if not 0 < variance < math.inf:
        raise ValueError(f"{name} has a gain that is not above 0")

    def write(emit: Emit, key: relax.Expr, shape: Sequence[int]) -> relax.Expr:
        fan_in, fan_out = _fans(name, shape, in_dim, out_dim)
        fan = {"fan_in": fan_in, "fan_out": fan_out, "sum": (fan_in + fan_out) / 2}[mode]
        deviation = math.sqrt(variance / max(fan, 1))
        if kind == "normal":
            return normal(deviation).write(emit, key, shape)
        bound = math.sqrt(3) * deviation
        return uniform(-bound, bound).write(emit, key, shape)

    return Initializer(f"{name}()", write)


def _fans(name: str, shape: Sequence[int], in_dim: int, out_dim: int) -> tuple[int, int]:
    rank = len(shape)
    if rank < 2 or not (-rank <= in_dim < rank and -rank <= out_dim < rank):
        raise ValueError(
            f"{name} needs a dimension {in_dim} of inputs and a dimension {out_dim} of outputs, "
            f"and the shape is {list(shape)}"
        )
    if in_dim % rank == out_dim % rank:
        raise ValueError(f"{name} has one dimension, {in_dim}, for inputs and outputs")
    ins, outs = int(shape[in_dim]), int(shape[out_dim])
    window = math.prod(shape) // max(ins * outs, 1)
    return ins * window, outs * window
