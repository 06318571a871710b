"""Detects layer hints from the structure of a program: attention, feed-forward, experts."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import relax

from distir_ext.annotate.annotations import relax_function
from distir_ext.annotate.patterns import annotate
from distir_ext.hints.vocabulary import Hints, LayerHint, WeightHint
from distir_ext.mesh.mesh import Mesh
from distir_ext.structure.annotated_function import bindings_of
from distir_ext.structure.layers.detected import Layer, find_layers
from distir_ext.structure.layers.modes import Mode
from distir_ext.text.errors.tracebacks import short_tracebacks


@short_tracebacks
def detect(mod: tvm.IRModule, func: str = "main", inputs: Sequence[str] | None = None) -> Hints:
    """Finds the layers of a function by their computation.

    A layer is what is computed between two values of the residual stream. Its type follows from
    its operators: attention has a softmax between two products of activations, a mixture of
    experts looks its weights up, and so on; :attr:`LayerHint.why` says which. Names of weights
    decide nothing; a layer is called by what the names of its weights have in common.

    Args:
        mod: A module without annotations; models of torch, as TVM's frontend imports them, and
            programs of one's own.
        func: The name of the function. Other functions that it calls are not looked into.
        inputs: As in :func:`distir_ext.annotate`: all parameters but these are weights.

    Raises:
        TypeError: ``mod`` is no module.
        ValueError: The function does not exist, or does not say which parameters are weights.
    """
    function = relax_function(with_inputs(mod, func, inputs), func)
    return Hints({layer.name: as_hint(layer) for layer in find_layers(function)})


def with_inputs(mod: tvm.IRModule, func: str, inputs: Sequence[str] | None) -> tvm.IRModule:
    """A module whose function says how many inputs it has.

    Raises:
        ValueError: It does not.
    """
    if inputs is not None:
        mod = annotate(mod, Mesh((1,), ("all",)), {}, func, inputs)
    function = relax_function(mod, func)
    if function.attrs is None or "num_input" not in function.attrs:
        raise ValueError(
            f"{func} does not say which of its parameters are weights: name the others, inputs=[..]"
        )
    for binding in bindings_of(function.body):
        if isinstance(binding.value, relax.If):
            raise ValueError(
                f"{func} has a branch, {binding.var.name}; hints are for functions without branches"
            )
    return mod


def as_hint(layer: Layer) -> LayerHint:
    """Returns a detected layer as a hint."""
    weights = {layer.below(mode.param): _weight(mode) for mode in layer.modes}
    return LayerHint(layer.layer_type, weights, why=layer.why)


def _weight(mode: Mode) -> WeightHint:
    units = mode.units
    unit = units[0] if len(set(units)) == 1 else units
    return WeightHint(mode.tp_mode, mode.output_sizes, unit, why=mode.why)
