"""One demonstration as data: its module, annotations, meshes, inputs and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

from distir_ext.mesh.mesh import Mesh

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A program, its numbers, and how its tensors are to be sharded."""

    name: str
    """One word, as on the command line."""

    title: str
    """One line that says what is shown."""

    module: tvm.IRModule
    """The unpartitioned program."""

    function: str
    """The function of the program that is run."""

    annotate: Callable[[tvm.IRModule], tvm.IRModule]
    """Marks the program with shardings."""

    meshes: tuple[Mesh, ...]
    """The meshes that the annotations use; together they have all devices."""

    inputs: Mapping[str, Array]
    """Global values of the first parameters, in order."""

    weights: Mapping[str, Array]
    """Global values of the other parameters, in order; they are sharded once."""

    @property
    def arguments(self) -> list[Array]:
        """The value of every parameter, in order."""
        return [*self.inputs.values(), *self.weights.values()]

    @property
    def workers(self) -> int:
        """The number of workers: one per device of any mesh."""
        return 1 + max(device for mesh in self.meshes for device in mesh.device_ids)


def normal_weights(
    shapes: Mapping[str, tuple[int, ...]], generator: np.random.Generator
) -> dict[str, Array]:
    """Float32 weights: near one for vectors, and so scaled that matrices keep the variance.

    Args:
        shapes: From name to shape; the last dimension of a matrix counts as its fan-in.
        generator: Source of the numbers.
    """
    weights = {}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape)
        scaled = 1 + 0.1 * values if len(shape) == 1 else values / np.sqrt(shape[-1])
        weights[name] = scaled.astype(np.float32)
    return weights
