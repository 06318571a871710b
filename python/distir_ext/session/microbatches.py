"""Cuts the inputs of a function into microbatches, and joins their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distir_ext.params.host_array import copied_to_numpy
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.signature.signature import FunctionSpec, ParamSpec
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.errors.spelling import counted

BatchDims = Mapping[str, int | None]


class JoinedArray:
    """A global array in pieces along one dimension, one per microbatch, on the workers.

    Nothing is gathered before :meth:`numpy` is called. As an input of a pipeline that cuts it
    into as many microbatches along the same dimension, its pieces are used where they are.

    Attributes:
        parts: The result of each microbatch.
        dim: The dimension along which they follow each other.
    """

    def __init__(self, parts: Sequence[ShardedArray], dim: int) -> None:
        self.parts = tuple(parts)
        self.dim = dim

    @property
    def shape(self) -> tuple[int, ...]:
        """The global sizes."""
        shape = list(self.parts[0].shape)
        shape[self.dim] = sum(part.shape[self.dim] for part in self.parts)
        return tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type; equal to its name, ``"float32"``."""
        return self.parts[0].dtype

    def numpy(self) -> Any:
        """The global array as a new NumPy array."""
        return np.concatenate([part.numpy() for part in self.parts], axis=self.dim)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return copied_to_numpy(self, dtype, copy, "an array in pieces")

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<JoinedArray {self.dtype}{list(self.shape)} of {len(self.parts)} along {self.dim}>"


def check_batch_dims(spec: FunctionSpec, batch_dims: BatchDims | None) -> dict[str, int | None]:
    """Checks the batch dimensions that a user states for inputs of a function, and returns them.

    Raises:
        ValueError: a name that is no input, one that is no tensor, or a dimension that it lacks.
    """
    stated = dict(batch_dims or {})
    inputs = {param.name: param for param in spec.inputs}
    for name, dim in stated.items():
        if name not in inputs:
            known = ", ".join(inputs)
            raise ValueError(f'batch_dims: "{spec.name}" has no input "{name}"; it has {known}')
        if dim is None:
            continue
        leaf = inputs[name].spec
        if not isinstance(leaf, TensorSpec):
            raise ValueError(f'batch_dims: input "{name}" of "{spec.name}" is no tensor: {leaf}')
        if not 0 <= dim < len(leaf.shape):
            raise ValueError(
                f'batch_dims: input "{name}" of "{spec.name}" has no dimension {dim}: {leaf}'
            )
    return stated


def check_result_dims(
    spec: FunctionSpec, result_dims: int | Sequence[int | None] | None
) -> list[int | None]:
    """Per leaf of the result the dimension along which microbatches are joined.

    Raises:
        ValueError: not one entry per leaf, or a dimension that a leaf lacks.
    """
    leaves = spec.result_leaves
    if isinstance(result_dims, Sequence):
        dims = list(result_dims)
    else:
        dims = [result_dims if isinstance(leaf, TensorSpec) else None for leaf in leaves]
    if len(dims) != len(leaves):
        raise ValueError(
            f'result_dims has {counted(len(dims), "entry", "entries")}, "{spec.name}" has '
            f"{counted(len(leaves), 'result')}"
        )
    for index, (dim, leaf) in enumerate(zip(dims, leaves, strict=True)):
        if dim is None:
            continue
        if not isinstance(leaf, TensorSpec) or not 0 <= dim < len(leaf.shape):
            raise ValueError(
                f'result {index} of "{spec.name}" is {leaf}, which cannot be joined along '
                f"dimension {dim}; state result_dims, with None for a result per microbatch"
            )
    return dims


def cut_input(
    value: Any, param: ParamSpec, stated: BatchDims, microbatches: int, where: str
) -> list[Any]:
    """An input's value for each microbatch.

    Raises:
        ValueError: it cannot be cut into that many.
    """
    leaf = param.spec
    if not isinstance(leaf, TensorSpec):
        return [value] * microbatches
    if param.name in stated and stated[param.name] is None:
        return [value] * microbatches
    dim = stated.get(param.name)
    if isinstance(value, JoinedArray):
        if len(value.parts) == microbatches and value.dim == (dim or 0):
            return list(value.parts)
        value = value.numpy()
    shape = tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    if dim is None:
        # Not stated: what has the size of one microbatch is the same for all of them.
        if not shape or not leaf.shape or shape[0] == leaf.shape[0]:
            return [value] * microbatches
        dim = 0
    size = shape[dim] if dim < len(shape) else 0
    if size == 0 or size % microbatches != 0:
        raise ValueError(
            f"dimension {dim} of {where} has size {size}, which does not divide into "
            f"{microbatches} microbatches"
        )
    expected = leaf.shape[dim]
    if isinstance(expected, int) and size != expected * microbatches:
        raise ValueError(
            f"dimension {dim} of {where} has size {size}, expected {expected * microbatches}: "
            f"{microbatches} microbatches of {expected}"
        )
    array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
    pieces: list[Any] = np.split(array, microbatches, axis=dim)
    return pieces


def join_results(results: Sequence[Sequence[Any]], dims: Sequence[int | None]) -> list[Any]:
    """Per leaf of the result the array that the microbatches' make up, or a tuple of them."""
    return [
        tuple(parts) if dim is None else JoinedArray(parts, dim)
        for parts, dim in zip(zip(*results, strict=True), dims, strict=True)
    ]
