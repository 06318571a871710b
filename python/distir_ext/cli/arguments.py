"""Arrays for the parameters of an executable: from a file, the others random."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distir_ext._runtime.host_array import numpy_dtype
from distir_ext._signature import FunctionSpec, Signature, Spec, TensorSpec, TupleSpec
from distir_ext._spelling import did_you_mean
from distir_ext.cli.files import existing

# Standard deviations: products of such inputs and weights neither overflow float16 nor vanish.
_OF_INPUTS = 1.0
_OF_WEIGHTS = 0.02

# What numpy.load raises of files that are no arrays, or damaged; pickled objects are refused.
_NO_ARRAYS = (AttributeError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass
class Arguments:
    """Makes the arrays; the same seed gives the same ones.

    Floats are normal with the standard deviation 1, those of weights 0.02. Integers are from 0 up
    to a bound: as indices they have to fit the table that they are looked up in, which nothing
    in a type says.
    """

    given: Mapping[str, Any]
    """By name of a parameter; a field of a tuple is ``"weights.0"``."""

    seed: int
    """Of the random numbers."""

    integers_below: int
    """The bound of integers."""

    random_integers: dict[str, None] = field(default_factory=dict)
    """Names of the parameters that got random integers so far."""

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(self.seed)

    def inputs(self, function: FunctionSpec) -> list[Any]:
        """For each input of a function an array, nested tuples of them for tuples."""
        params = function.params[: function.num_input]
        return [self._value(each.name, each.spec, _OF_INPUTS) for each in params]

    def weights(self, signature: Signature) -> dict[str, Any]:
        """The same for the weights of all functions, by name."""
        specs = {
            param.name: param.spec
            for function in signature.functions.values()
            for param in function.weights
        }
        return {name: self._value(name, spec, _OF_WEIGHTS) for name, spec in specs.items()}

    def _value(self, name: str, spec: Spec, deviation: float) -> Any:
        if isinstance(spec, TupleSpec):
            return tuple(
                self._value(f"{name}.{index}", each, deviation)
                for index, each in enumerate(spec.fields)
            )
        if name in self.given:
            return self.given[name]
        if not isinstance(spec, TensorSpec):
            raise ValueError(f"{name!r} is a {spec}, not a tensor: there are no random ones")
        shape, dtype = [int(size) for size in spec.shape], numpy_dtype(spec.dtype)
        if dtype.kind == "b":
            return self._generator.integers(0, 2, shape).astype(dtype)
        if dtype.kind in "iu":
            self.random_integers[name] = None
            below = min(self.integers_below, np.iinfo(dtype).max)
            return self._generator.integers(0, below, shape, dtype)
        return (self._generator.standard_normal(shape, np.float32) * deviation).astype(dtype)


def read_arrays(file: str, signature: Signature) -> dict[str, Any]:
    """The arrays of an ``.npz`` file, by the names of parameters.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is none, or has an array that no parameter is called after.
    """
    path = existing(file, "file of arrays")
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except _NO_ARRAYS as error:
        raise ValueError(f"{file} is no file that numpy.savez writes: {error}") from error
    known = {
        name: None
        for function in signature.functions.values()
        for param in function.params
        for name in _names(param.name, param.spec)
    }
    for name in arrays:
        if name not in known:
            raise ValueError(
                f"{file} has {name!r}, which no parameter is called; they are "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )
    return arrays


def _names(name: str, spec: Spec) -> list[str]:
    if not isinstance(spec, TupleSpec):
        return [name]
    return [
        found for index, each in enumerate(spec.fields) for found in _names(f"{name}.{index}", each)
    ]
