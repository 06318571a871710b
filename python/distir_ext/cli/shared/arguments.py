"""Makes arrays for the parameters of an executable, from a file or at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distir_ext.params.host_array import numpy_dtype
from distir_ext.signature.signature import FunctionSpec, Signature
from distir_ext.signature.specs import Spec, TensorSpec, TupleSpec

# Standard deviations: products of such inputs and weights neither overflow float16 nor vanish.
_OF_INPUTS = 1.0
_OF_WEIGHTS = 0.02


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
        """Returns an array for each input of a function, nested tuples of arrays for tuples."""
        params = function.params[: function.num_input]
        return [self._value(each.name, each.spec, _OF_INPUTS) for each in params]

    def weights(self, signature: Signature) -> dict[str, Any]:
        """Returns the weights of all functions by name: given ones, and random ones for the rest.

        A fused weight that is not given is returned as its blocks.
        """
        functions = signature.functions.values()
        specs = {param.name: param.spec for each in functions for param in each.weights}
        for each in functions:
            for fused in each.fused:
                if fused.name in self.given:
                    specs = {name: of for name, of in specs.items() if name not in fused.blocks}
                    specs[fused.name] = each.fused_specs[fused.name]
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


def arrays_taken(signature: Signature) -> dict[str, list[TensorSpec]]:
    """The tensors of all functions' parameters, by name; a field of a tuple is ``"weights.0"``.

    A fused weight is there as it is, and in blocks.
    """
    found: dict[str, list[TensorSpec]] = {}
    for function in signature.functions.values():
        for param in function.params:
            for name, spec in _tensors(param.name, param.spec):
                found.setdefault(name, []).append(spec)
        for name, whole in function.fused_specs.items():
            found.setdefault(name, []).append(whole)
    return found


def _tensors(name: str, spec: Spec) -> Iterator[tuple[str, TensorSpec]]:
    if isinstance(spec, TupleSpec):
        for index, each in enumerate(spec.fields):
            yield from _tensors(f"{name}.{index}", each)
    elif isinstance(spec, TensorSpec):
        yield name, spec
