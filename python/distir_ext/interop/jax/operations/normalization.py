"""Translates batch normalisation, forward and backward, by StableHLO's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op as relax_op

from distir_ext.interop.jax.known import Known
from distir_ext.interop.jax.stablehlo import Operation, float_of, integer, numpy_dtype, rank_of
from distir_ext.interop.jax.table import translates
from distir_ext.interop.jax.writer import Writer


class _Features:
    """Arithmetic of a tensor and of vectors along its features.

    Args:
        writer: Writes it.
        op: A batch normalisation.
    """

    def __init__(self, writer: Writer, op: Operation) -> None:
        feature = integer(op, "feature_index")
        self._writer = writer
        self._others = [dim for dim in range(rank_of(op.operands[0])) if dim != feature]
        self._epsilon = float_of(op, "epsilon")

    def made(self, build: Callable[..., relax.Expr], *operands: relax.Expr) -> relax.Expr:
        return self._writer.emit(build(*operands))

    def along(self, vector: relax.Expr) -> relax.Expr:
        """A vector as a tensor that broadcasts along all other dimensions."""
        return self._writer.emit(relax_op.expand_dims(vector, self._others))

    def sum(self, x: relax.Expr) -> relax.Expr:
        return self._writer.emit(relax_op.sum(x, self._others))

    def mean(self, x: relax.Expr) -> relax.Expr:
        return self._writer.emit(relax_op.mean(x, self._others))

    def normal(self, x: relax.Expr, mean: relax.Expr, variance: relax.Expr) -> relax.Expr:
        """The tensor with a mean of 0 and a variance of 1."""
        centred = self.made(relax_op.subtract, x, self.along(mean))
        return self.made(relax_op.multiply, centred, self.along(self.inverse(variance)))

    def inverse(self, variance: relax.Expr) -> relax.Expr:
        """1 / the standard deviation."""
        dtype = str(variance.ty.dtype)
        epsilon = relax.const(np.asarray(self._epsilon).astype(numpy_dtype(dtype)), dtype)
        return self.made(relax_op.rsqrt, self.made(relax_op.add, variance, epsilon))

    def scaled(self, x: relax.Expr, scale: relax.Expr, offset: relax.Expr) -> relax.Expr:
        product = self.made(relax_op.multiply, x, self.along(scale))
        return self.made(relax_op.add, product, self.along(offset))


@translates("stablehlo.batch_norm_inference")
def _inference(writer: Writer, op: Operation) -> Known:
    features = _Features(writer, op)
    x, scale, offset, mean, variance = (writer.full(each) for each in op.operands)
    return features.scaled(features.normal(x, mean, variance), scale, offset)


@translates("stablehlo.batch_norm_training")
def _training(writer: Writer, op: Operation) -> list[Known]:
    features = _Features(writer, op)
    x, scale, offset = (writer.full(each) for each in op.operands)
    mean = features.mean(x)
    centred = features.made(relax_op.subtract, x, features.along(mean))
    variance = features.mean(features.made(relax_op.multiply, centred, centred))
    normal = features.normal(x, mean, variance)
    return [features.scaled(normal, scale, offset), mean, variance]


@translates("stablehlo.batch_norm_grad")
def _gradient(writer: Writer, op: Operation) -> list[Known]:
    """Gradients of the tensor, the scale and the offset."""
    features = _Features(writer, op)
    x, scale, mean, variance, given = (writer.full(each) for each in op.operands)
    normal = features.normal(x, mean, variance)
    product = features.made(relax_op.multiply, given, normal)
    along: Any = features.along(features.mean(product))
    rest = features.made(relax_op.subtract, given, features.along(features.mean(given)))
    rest = features.made(relax_op.subtract, rest, features.made(relax_op.multiply, normal, along))
    factor = features.made(relax_op.multiply, scale, features.inverse(variance))
    of_x = features.made(relax_op.multiply, rest, features.along(factor))
    return [of_x, features.sum(product), features.sum(given)]
