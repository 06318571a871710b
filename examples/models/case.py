"""Examples: an imported model, its numbers, and plans by parameter names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

import distir_ext as dx
from distir_ext.annotate import Plan

Array = npt.NDArray[Any]

BATCH = 4
"""Rows of inputs, unless another number is asked for."""

TENSOR = "tensor"
DATA_TENSOR = "data x tensor"
FULLY_SHARDED = "fully sharded"


@dataclass(frozen=True)
class Partition:
    """The axes of a mesh, and which of them shard which parameters."""

    axes: tuple[str, ...]
    patterns: Plan

    def mesh(self, workers: int) -> dx.Mesh:
        """A mesh of workers; of two axes, the first has the smallest factor, 1 for primes."""
        if len(self.axes) == 1:
            return dx.Mesh((workers,), self.axes)
        first = next((n for n in range(2, workers) if workers % n == 0), 1)
        return dx.Mesh((first, workers // first), self.axes)


@dataclass(frozen=True)
class Model:
    """An imported model with the function ``main``."""

    name: str
    """One word, as on the command line."""

    module: tvm.IRModule
    """The unpartitioned program; its first parameters are the inputs, the others the weights."""

    inputs: Mapping[str, Array]
    """Global values of the inputs, in order."""

    weights: Mapping[str, Array]
    """Global values of the weights, in order."""

    expected: Array
    """Results of the framework that the model comes from."""

    partitions: Mapping[str, Partition]
    """By the name of the plan."""


def partitions(inputs: Mapping[str, Array], tensor: Plan, sharded: Plan) -> dict[str, Partition]:
    """The plans that are tried on every model.

    Args:
        inputs: The model's inputs; dimension 0 of each is the batch.
        tensor: From patterns on weights to dims over the axis "tp".
        sharded: From patterns on weights to dims over the axis "fsdp".
    """

    def batch(axis: str) -> Plan:
        return {name: (axis, *[None] * (value.ndim - 1)) for name, value in inputs.items()}

    return {
        TENSOR: Partition(("tp",), tensor),
        DATA_TENSOR: Partition(("dp", "tp"), {**batch("dp"), **tensor}),
        FULLY_SHARDED: Partition(("fsdp",), {**batch("fsdp"), **sharded}),
    }


def imported(
    name: str,
    module: tvm.IRModule,
    weights: Mapping[str, Any],
    inputs: Mapping[str, Array],
    expected: Array,
    tensor: Plan,
    sharded: Plan,
) -> Model:
    """A model from what a frontend returned, with its weights by name."""
    names = [param.name for param in module["main"].params]
    if names != [*inputs, *weights]:
        raise ValueError(f"{name}: inputs are {list(inputs)}, but the program has {names}")
    values = {key: np.asarray(value.numpy()) for key, value in weights.items()}
    return Model(name, module, inputs, values, expected, partitions(inputs, tensor, sharded))
