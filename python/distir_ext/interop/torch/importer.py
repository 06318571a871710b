"""Imports a torch model as a Relax module, with its parameters."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import tvm

from distir_ext.interop.torch.export import as_arguments, decompose, export
from distir_ext.interop.torch.frontend import import_decomposed
from distir_ext.interop.torch.marks import Marker, ModuleValue
from distir_ext.text.errors.tracebacks import short_tracebacks


class Imported(NamedTuple):
    """A model in Relax."""

    mod: tvm.IRModule
    """Function "main" takes the inputs and then the parameters; its attribute ``num_input`` says
    how many are inputs."""

    params: dict[str, torch.Tensor]
    """The model's own parameters, as ``Session.load(params=)`` takes them: by the names that they
    have in the function, in its order."""


@short_tracebacks
def import_model(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    dynamic_shapes: Any = None,
    training: bool = False,
) -> Imported:
    """A model in Relax, with its parameters as parameters of the function.

    ``torch.export`` exports it, and TVM's frontend imports it. Models of transformers need no
    masks, positions or settings: what they compute of the shape of their inputs is a constant of
    the module, attention is computed operator by operator, experts by products of batches, and
    nothing is cached. The model is as before afterwards.

    Args:
        model: In evaluation mode (``model.eval()``), unless ``training``.
        example_inputs: A tensor, tensors in order, or by name. With them the model is exported: the
            sizes of the module are theirs.
        dynamic_shapes: The sizes that stay open, as for ``torch.export.export``.
        training: Whether the model is in training mode (``model.train()``): dropout is
            ``R.nn.dropout``, which drops in a step of :func:`distir_ext.train_step`.

    Returns:
        The module and the parameters. Parameters are called as ``torch.export`` calls them:
        ``layers.0.up.weight`` is ``p_layers_0_up_weight``.

    Raises:
        TypeError: It is no model, or inputs are no tensors.
        ValueError: The model is in the other mode, or does not take these inputs; it changes
            buffers in training, as batch norms do; ``torch.export`` cannot export it; or TVM's
            frontend lacks an operator. Says which, and of which module.

    Example:
        >>> class Scale(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.factor = torch.nn.Parameter(torch.ones(3))
        ...     def forward(self, x):
        ...         return x * self.factor
        >>> mod, params = import_model(Scale().eval(), torch.ones(2, 3))
        >>> [param.name for param in mod["main"].params], list(params)
        (['x', 'p_factor'], ['p_factor'])
    """
    imported = import_with_names(model, example_inputs, dynamic_shapes, {}, training=training)
    return Imported(imported.mod, imported.params)


@short_tracebacks
def import_program(program: torch.export.ExportedProgram) -> Imported:
    """An exported program in Relax, as :func:`import_model` has the model that it is of.

    Args:
        program: Result of ``torch.export.export``, or of ``torch.export.load``.

    Returns:
        The module and the parameters.

    Raises:
        TypeError: It is no exported program.
        ValueError: TVM's frontend lacks an operator; says which, and of which module.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(
            f"the program is a {type(program).__name__}, not a torch.export.ExportedProgram; "
            "import_model exports a torch.nn.Module"
        )
    decomposed = decompose(program)
    mod, _ = import_decomposed(decomposed)
    return Imported(mod, _params(decomposed))


def check_model(model: Any, *, training: bool = False) -> None:
    """Raises an error if the model cannot be imported as it is.

    Raises:
        TypeError: It is no model.
        ValueError: It is in training mode, and ``training`` is false, or the other way round.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    if model.training and not training:
        raise ValueError(
            f"{type(model).__name__} is in training mode, in which dropout and batch norms do what "
            "inference must not; call model.eval() first, or for a training step "
            "import_model(.., training=True)"
        )
    if training and not model.training:
        raise ValueError(
            f"{type(model).__name__} is in evaluation mode, in which nothing is dropped; call "
            "model.train() first"
        )


@dataclass(frozen=True)
class ImportedModel:
    """Model in Relax, with the correspondence of its values to those of the torch model."""

    mod: tvm.IRModule

    params: dict[str, torch.Tensor]
    """By the names that they have in the function."""

    names: dict[str, str]
    """From these names to the model's, with dots."""

    inputs: tuple[str, ...]
    """The names of the inputs in the function."""

    variables: dict[ModuleValue, list[list[str]]]
    """The variables of each marked value, for each mark that it has."""

    program: torch.export.ExportedProgram
    """Program of ``torch.export``, before it was decomposed."""

    open_sizes: dict[str, int]
    """The sizes that stay open, by name, as the example inputs have them."""


def import_with_names(
    model: Any,
    example_inputs: Any,
    dynamic_shapes: Any,
    layouts: Mapping[ModuleValue, Sequence[Hashable]],
    *,
    training: bool = False,
) -> ImportedModel:
    """Imports a model like :func:`import_model`, with marks on values of modules.

    Args:
        model: The model.
        example_inputs: Its inputs.
        dynamic_shapes: The sizes that stay open.
        layouts: Layouts that are stated, by value.
        training: As :func:`import_model`.

    Raises:
        TypeError: As :func:`import_model`.
        ValueError: As :func:`import_model`; or no module takes or returns a marked value.
    """
    check_model(model, training=training)
    given, named = as_arguments(model, example_inputs)
    marker = Marker(layouts)
    with marker.on(model):
        program = export(model, given, named, dynamic_shapes)
    if missing := marker.missing():
        raise ValueError(
            "the plan states tensors that no module takes or returns: "
            f"{'; '.join(value.label for value in missing)}"
        )
    decomposed = decompose(program)
    if training and (changed := sorted(decomposed.graph_signature.buffers_to_mutate.values())):
        raise ValueError(
            f"{type(model).__name__} changes its buffer {changed[0]} in training, as batch norms "
            "do, which a training step has no state for; put these modules into evaluation mode"
        )
    mod, variables = import_decomposed(decomposed)
    count = int(mod["main"].attrs["num_input"])
    return ImportedModel(
        mod,
        _params(decomposed),
        dict(decomposed.graph_signature.inputs_to_parameters),
        tuple(str(param.name) for param in mod["main"].params[:count]),
        {
            value: [variables.get(name, []) for name in names]
            for value, names in marker.names.items()
        },
        program,
        _open_sizes(mod, decomposed),
    )


def _params(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """The values of the parameters, by their names in the function."""
    targets = program.graph_signature.inputs_to_parameters
    return {name: program.state_dict[target].detach() for name, target in targets.items()}


def _open_sizes(mod: tvm.IRModule, program: torch.export.ExportedProgram) -> dict[str, int]:
    """The symbolic sizes of the function by name, as the example inputs have them."""
    shapes = {str(param.name): param.ty.shape for param in mod["main"].params}
    found = {}
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in shapes:
            continue
        for size, example in zip(shapes[node.name], node.meta["val"].shape, strict=True):
            if isinstance(size, tvm.tirx.Var):
                found[str(size.name)] = int(example.node.hint)
    return found
