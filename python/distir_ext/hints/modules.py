"""Detects layer hints of a transformers model in its modules, which are made without weights.

The model is made without weights, layers that are alike are kept once, and what is left is exported
and looked at as any program is:

    40 layers, of which 1, 3, 5, .. have experts  ->  2 layers  ->  hints of 40
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any

from distir_ext.annotate.annotations import relax_function
from distir_ext.hints.verification.models import CHUNK, chunks_of
from distir_ext.hints.vocabulary import Hints, LayerHint, WeightHint
from distir_ext.structure.layers.detected import Layer, find_layers
from distir_ext.structure.layers.modes import Mode

_ROWS, _COLUMNS = 2, 8
"""Of the ids that the model is exported with."""

_SUFFIX = ".weight"


def model_class(config: Any) -> Any:
    """The class for causal language models of a configuration; None where there is none."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    except ImportError:
        return None
    is_known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)] if is_known else None


def hints_of_modules(cls: Any, config: Any, prefix: str | None) -> Hints:
    """The hints of all layers of a model.

    Args:
        cls: The model's class.
        config: Its configuration.
        prefix: Prefix of the list of layers in names; None: as in the class.

    Raises:
        ValueError: The class refuses the configuration; torch.export cannot export the model, or
            TVM's frontend lacks an operator.
        ImportError: PyTorch is not installed.
    """
    import torch

    from distir_ext.interop.torch.export import decompose, export
    from distir_ext.interop.torch.frontend import import_decomposed

    ids = torch.ones(_ROWS, _COLUMNS, dtype=torch.int64)

    def exported(model: Any) -> torch.export.ExportedProgram:
        _give_memory(model)
        with chunks_of(CHUNK, model):
            return decompose(export(model, (), {"input_ids": ids}, None))

    model = _without_weights(cls, config)
    alike = _keep_one_of_each(model)
    try:
        program = exported(model)
    except ValueError:
        if not alike:
            raise
        # Its layers are not independent of each other: some share modules, or count themselves.
        alike, program = {}, exported(_without_weights(cls, config))
    names = dict(program.graph_signature.inputs_to_parameters)
    mod, _ = import_decomposed(program)
    layers: dict[str, LayerHint] = {}
    for layer in find_layers(relax_function(mod, "main")):
        if layer.layer_type == "unknown":
            continue
        for name, hint in _hints(layer, names, alike, prefix, config):
            layers.setdefault(name, hint)
    return Hints(dict(sorted(layers.items(), key=lambda item: _numbers(item[0]))))


def _without_weights(cls: Any, config: Any) -> Any:
    """The model, whose tensors have shapes alone."""
    import torch

    try:
        with torch.device("meta"), torch.no_grad():
            return cls(copy.deepcopy(config)).eval()
    except Exception as error:  # each class checks its fields in its own way
        raise ValueError(
            f"{cls.__name__} refuses the configuration: {type(error).__name__}: {error}"
        ) from error


def _keep_one_of_each(model: Any) -> dict[str, list[list[int]]]:
    """Leaves one of the layers that are alike, and all that share weights with others.

    Returns:
        By name of a list of layers, for each layer that is left, which layers were like it.
    """
    import torch

    found: dict[str, list[list[int]]] = {}
    for name, module in list(model.named_modules()):
        is_list = isinstance(module, torch.nn.ModuleList) and len(module) > 1
        if not is_list or any(name.startswith(f"{other}.") for other in found):
            continue
        alike: dict[Any, list[int]] = {}
        uses = Counter(id(each) for child in module for each in child.parameters())
        for index, child in enumerate(module):
            shares = any(uses[id(each)] > 1 for each in child.parameters())
            alike.setdefault(index if shares else _signature(child), []).append(index)
        found[name] = list(alike.values())
        kept = [module[indices[0]] for indices in alike.values()]
        parent = model.get_submodule(name.rpartition(".")[0])
        setattr(parent, name.rpartition(".")[2], torch.nn.ModuleList(kept))
    return found


def _give_memory(model: Any) -> None:
    """Parameters get memory that nobody reads or writes, so that none is used; buffers are zero."""
    import torch

    model.to_empty(device="cpu")
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.zero_()


def _signature(module: Any) -> Any:
    """Equal for modules of the same classes, with parameters of the same shapes."""
    kinds = tuple((name, type(each)) for name, each in module.named_modules())
    shapes = tuple((name, tuple(each.shape)) for name, each in module.named_parameters())
    return kinds, shapes


def _hints(
    layer: Layer,
    names: Mapping[str, str],
    alike: Mapping[str, list[list[int]]],
    prefix: str | None,
    config: Any,
) -> list[tuple[str, LayerHint]]:
    """The hint of a layer, for each of the layers that are like it."""
    modes = {names[str(mode.param.name)].removesuffix(_SUFFIX): mode for mode in layer.modes}
    paths = [name.split(".")[:-1] for name in modes]
    common = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    path = ".".join(common)
    start = len(path) + 1 if path else 0
    weights = {name[start:]: _weight(mode) for name, mode in modes.items()}
    why = f"the configuration of {getattr(config, 'model_type', type(config).__name__)}"
    hint = LayerHint(layer.layer_type, weights, why=why)
    return [(name, hint) for name in _names(path, alike, prefix)]


def _names(path: str, alike: Mapping[str, list[list[int]]], prefix: str | None) -> list[str]:
    """The names of a layer and of those like it."""
    for listed, groups in alike.items():
        rest = path.removeprefix(f"{listed}.").split(".")
        if path.startswith(f"{listed}.") and rest[0].isdecimal():
            short = listed.rpartition(".")[2]
            before = listed if prefix is None else ".".join(filter(None, (prefix, short)))
            return [".".join([before, str(index), *rest[1:]]) for index in groups[int(rest[0])]]
    return [path]


def _weight(mode: Mode) -> WeightHint:
    units = mode.units
    return WeightHint(
        mode.tp_mode,
        mode.output_sizes,
        units[0] if len(set(units)) == 1 else units,
        size=mode.size,
        why=mode.why,
    )


def _numbers(name: str) -> list[int]:
    """The numbers of a name's parts: which layer it is."""
    return [int(part) for part in name.split(".") if part.isdecimal()]
