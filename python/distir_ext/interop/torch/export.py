"""Exports a torch model by torch.export, with the settings that transformers models need.

In these, attention is computed operator by operator ("eager"), experts by batched products, and
nothing is cached, whatever the model is configured for; afterwards it is configured as before.
Masks and positions are then computed by the model itself from the shape of its inputs.
"""

from __future__ import annotations

import contextlib
import inspect
import keyword
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Settings for the export of a transformers model: (attribute of its configuration, value).
_SETTINGS = {
    "_attn_implementation_internal": "eager",
    "_experts_implementation_internal": "batched_mm",
    "use_cache": False,
}

_KEPT = (torch.ops.aten.linear.default, torch.ops.aten.matmul.default)


def as_arguments(
    model: torch.nn.Module, example_inputs: Any
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Positional and named arguments of a model, from what users give as its inputs.

    Args:
        model: The model.
        example_inputs: A tensor, a sequence of tensors in order, or tensors by name.

    Raises:
        TypeError: It is none of these, or there are none.
        ValueError: The model takes no input of a name.
    """
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    if isinstance(example_inputs, Mapping):
        named = {str(name): value for name, value in example_inputs.items()}
        given: tuple[Any, ...] = ()
    elif isinstance(example_inputs, Sequence) and not isinstance(example_inputs, str):
        given, named = tuple(example_inputs), {}
    else:
        raise TypeError(
            "example inputs are a tensor, several in order, or tensors by name, not "
            f"{type(example_inputs).__name__}"
        )
    for where, value in [*enumerate(given), *named.items()]:
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"example input {where!r} is a {type(value).__name__}; inputs are tensors, and all "
                "else is part of the model"
            )
    if not given and not named:
        raise TypeError("a model is exported with at least one example input")
    given, named = _distinct(model, given, named)
    try:
        inspect.signature(model.forward).bind(*given, **named)
    except TypeError as error:
        raise ValueError(f"{type(model).__name__} does not take these inputs: {error}") from error
    return given, named


def _distinct(
    model: torch.nn.Module, given: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]
) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Inputs each of which is a tensor of its own.

    Of one tensor for two inputs, or for an input and a parameter, torch.export makes one.
    """
    seen = {id(each) for each in (*model.parameters(), *model.buffers())}

    def own(value: torch.Tensor) -> torch.Tensor:
        if id(value) in seen:
            value = value.detach().clone()
        seen.add(id(value))
        return value

    return tuple(map(own, given)), {name: own(value) for name, value in named.items()}


def export(
    model: torch.nn.Module,
    given: tuple[torch.Tensor, ...],
    named: Mapping[str, torch.Tensor],
    dynamic_shapes: Any,
) -> torch.export.ExportedProgram:
    """The program of a model, before it is decomposed.

    Args:
        model: In evaluation mode.
        given: Positional arguments.
        named: Named ones.
        dynamic_shapes: As for ``torch.export.export``.

    Raises:
        ValueError: torch.export cannot export the model; says why.
    """
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)  # torch's, of itself
            if not is_from_transformers(model):
                return torch.export.export(
                    model, given, dict(named), dynamic_shapes=dynamic_shapes, strict=False
                )
            with as_exports_need(model):
                return _export_transformers(model, given, named, dynamic_shapes)
    except Exception as error:
        raise ValueError(
            f"torch.export cannot export {type(model).__name__}: {type(error).__name__}: {error}"
        ) from error


def decompose(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """A program of operators that TVM's frontend has.

    Products stay what they are: decomposed, they would merge the batch with other dimensions, which
    can then no longer be sharded apart.

    Raises:
        ValueError: torch would read the name of a weight's module as code.
    """
    for name in (*program.state_dict, *program.constants):
        if any(map(_is_code, name.split("."))):
            raise ValueError(
                f"torch writes the name of the weight {name!r} into a program that it runs; "
                "names of modules have no quotes, backslashes or control characters, and are no "
                "keywords of Python"
            )
    table = torch.export.default_decompositions()
    for operator in _KEPT:
        table.pop(operator, None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        return program.run_decompositions(table)


def _is_code(name: str) -> bool:
    return keyword.iskeyword(name) or not name.isprintable() or not {*'"\\'}.isdisjoint(name)


def is_from_transformers(model: torch.nn.Module) -> bool:
    """Returns whether a model is a ``PreTrainedModel``; imports nothing."""
    modeling = sys.modules.get("transformers.modeling_utils")
    return modeling is not None and isinstance(model, modeling.PreTrainedModel)


def _export_transformers(
    model: torch.nn.Module,
    given: tuple[torch.Tensor, ...],
    named: Mapping[str, torch.Tensor],
    dynamic_shapes: Any,
) -> torch.export.ExportedProgram:
    from transformers.exporters.exporter_dynamo import DynamoConfig, DynamoExporter

    inputs = inspect.signature(model.forward).bind(*given, **named).arguments
    inputs.update(inputs.pop("kwargs", {}))
    config = DynamoConfig(dynamic_shapes=dynamic_shapes)
    # Its warning that it is experimental is dropped.
    with _silenced("transformers.exporters.utils"), _unpacked("position_ids" in inputs):
        program, _ = DynamoExporter().export_program(model, dict(inputs), config)
    return program


@contextlib.contextmanager
def _silenced(logger_name: str) -> Iterator[None]:
    """Drops warnings of a logger, until the block ends."""
    logger = logging.getLogger(logger_name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _unpacked(has_positions: bool) -> Iterator[None]:
    """Has masks not look for several sequences in one row, unless positions are an input.

    Positions that the model counts itself are those of one sequence; while it is traced, the model
    looks for others all the same.
    """
    from transformers import masking_utils

    find = masking_utils.find_packed_sequence_indices
    if not has_positions:
        masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


@contextlib.contextmanager
def as_exports_need(model: torch.nn.Module) -> Iterator[None]:
    """Configures a model of transformers for its export, until the block ends."""
    before = [
        (config, name, getattr(config, name))
        for config in _configurations(model)
        for name in _SETTINGS
        if hasattr(config, name)
    ]
    try:
        for config, name, _ in before:
            setattr(config, name, _SETTINGS[name])
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)


def _configurations(model: torch.nn.Module) -> list[Any]:
    """The configurations of a model and of the models in it, each once."""
    found: dict[int, Any] = {}

    def add(config: Any) -> None:
        if config is not None and id(config) not in found:
            found[id(config)] = config
            for name in getattr(config, "sub_configs", ()):
                add(getattr(config, name, None))

    for module in model.modules():
        if is_from_transformers(module):
            add(getattr(module, "config", None))
    return list(found.values())
