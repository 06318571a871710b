"""Prepared calls: inputs are checked and cut into shards once, then the call runs many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm_ffi

from distir_ext.session.function_calls import FunctionCalls, PreparedCall
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.signature.specs import unflatten
from distir_ext.text.display import Shown
from distir_ext.text.errors.spelling import counted
from distir_ext.text.errors.tracebacks import short_tracebacks


class PreparedFunction(Shown):
    """A function with its inputs. Calling it runs it on all workers.

    Inputs were checked and cut when this was made (``ModelFunction.prepare``), which takes most of
    the time of a small call. Arrays of the host are read in each call, so new values are written
    into them; what had to be converted for that, as a list, was read once. Arrays on the workers
    are those that were given.

    Example::

        step = model["main"].prepare(x)
        logits = np.empty((8, 100), "float32")
        for x[:] in batches:
            step(out=logits)
    """

    def __init__(self, calls: FunctionCalls, call: PreparedCall) -> None:
        self._calls = calls
        self._call = call  # keeps the memory of the inputs
        self._spec = calls.spec
        self._order = [(index, 0) for index in range(self._spec.virtual_stages)]
        steps = calls.steps([call], self._order)
        self._run = call.held.workers.repeated(self._spec.name, steps)
        # Programs that all devices share give the leaves of the result in one order.
        parts = [part for stage in call.held.parts for part in stage]
        self._leaves = list(parts[0].program.results) if len(parts) == 1 else None
        self._last: list[Any] = []

    @short_tracebacks
    def __call__(self, *, out: Any = None) -> Any:
        """Runs the function.

        Args:
            out: NumPy arrays that get the result, row-major and of its shapes and dtypes: one array
                for a tensor, else one for each tensor of the result in order. None: the result
                stays with the workers.

        Returns:
            As ``ModelFunction.__call__``; ``out`` if it is given.

        Raises:
            TypeError: ``out`` is no array, or has another dtype.
            ValueError: ``out`` has another number of arrays, another shape, or cannot be written.
            WorkerError: a worker failed; the session is closed.
            RuntimeError: the session is closed, or was restarted since.
        """
        found = self._run()
        leaves = self._joined_as_before(found)
        if leaves is None:
            outcomes = dict(zip(self._order, found, strict=True))
            leaves = self._calls.assemble(0, self._call, outcomes)
        self._last = leaves
        if out is None:
            return unflatten(self._spec.result, iter(leaves))
        self._write(leaves, out)
        return out

    def _joined_as_before(self, found: Sequence[Any]) -> list[Any] | None:
        """The leaves of the result, if they have the sizes that the last ones had."""
        if self._leaves is None or not self._last:
            return None
        joined: list[Any] = [None] * len(self._last)
        (values,) = found[0].leaves
        if len(values) != len(self._leaves):
            return None
        for leaf, value in zip(self._leaves, values, strict=True):
            last = self._last[leaf]
            if not isinstance(last, ShardedArray):
                joined[leaf] = self._calls.join_leaf(leaf, self._call, value)
                continue
            joined[leaf] = last.with_shards(value)
            if joined[leaf] is None:
                return None
        return joined

    def _write(self, leaves: Sequence[Any], out: Any) -> None:
        arrays = [out] if isinstance(out, np.ndarray) else out
        where = f'out of "{self._spec.name}"'
        if not isinstance(arrays, Sequence):
            raise TypeError(f"{where} is {type(out).__name__}, expected NumPy arrays")
        tensors = [each for each in leaves if isinstance(each, ShardedArray)]
        if len(arrays) != len(tensors):
            has = counted(len(tensors), "tensor")
            raise ValueError(f"{where} is {counted(len(arrays), 'array')}, the result has {has}")
        for index, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
            _check(array, tensor, f"{where}[{index}]")
        for array, tensor in zip(arrays, tensors, strict=True):
            try:
                target = tvm_ffi.from_dlpack(array)
            except (BufferError, RuntimeError):  # a dtype that NumPy does not pass on
                array[...] = tensor.numpy()
            else:
                tensor.gather_into(target)

    def __repr__(self) -> str:
        return f"<PreparedFunction {self._spec}>"


def _check(array: Any, tensor: ShardedArray, where: str) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{where} is {type(array).__name__}, expected a NumPy array")
    if array.dtype != tensor.dtype:
        raise TypeError(f"{where} has dtype {array.dtype}, expected {tensor.dtype}")
    if array.shape != tensor.shape:
        raise ValueError(f"{where} has shape {array.shape}, expected {tensor.shape}")
    if not array.flags.c_contiguous or not array.flags.writeable:
        lacks = "writable" if array.flags.c_contiguous else "row-major"
        raise ValueError(f"{where} is not {lacks}")
