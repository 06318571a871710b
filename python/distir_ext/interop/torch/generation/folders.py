"""Models of transformers from folders: built without weights, which workers read from the files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from distir_ext.text.tracebacks import short_tracebacks


class FolderModel(NamedTuple):
    """A model of a folder."""

    model: torch.nn.Module
    """In evaluation mode."""

    weights: str | None
    """The folder, if its files have the weights as the model has them; its memory is never
    touched then. None if the model holds its weights."""


@short_tracebacks
def model_of_folder(folder: str | os.PathLike[str], dtype: str | None = None) -> FolderModel:
    """The model that a folder of transformers has: ``config.json`` and safetensors.

    Weights whose names or types in the files are not those of the model, such as experts one by
    one, are loaded by transformers.

    Args:
        folder: Its path.
        dtype: Type of the weights, as ``"float32"``; None for that of the configuration.

    Raises:
        FileNotFoundError: There is no folder, or no ``config.json`` in it.
        ValueError: The configuration names no class of transformers, or there is no such type.
    """
    import transformers
    from transformers.initialization import no_init_weights

    path = Path(folder)
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json, as a model of transformers has")
    config = transformers.AutoConfig.from_pretrained(path)
    names = getattr(config, "architectures", None) or []
    kind: Any = next(
        (found for name in names if (found := getattr(transformers, name, None)) is not None), None
    )
    if kind is None:
        raise ValueError(
            f"{path / 'config.json'} names no class of transformers in 'architectures': {names}"
        )
    wanted = _dtype(dtype) if dtype else (config.dtype or torch.float32)
    with no_init_weights():
        model = kind._from_config(config, dtype=wanted).eval()
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    if _fits(model, path):
        return FolderModel(model, str(path))
    return FolderModel(kind.from_pretrained(path, dtype=wanted).eval(), None)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{name!r} is no type of weights, as 'float32' or 'bfloat16' is")
    return found


def _fits(model: torch.nn.Module, folder: Path) -> bool:
    """Returns whether files have each weight of a model, under its name and of its type."""
    held = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            held.update(json.loads(stream.read(size)))
    held.pop("__metadata__", None)
    named = dict(model.named_parameters(remove_duplicate=False))
    found: set[int] = set()
    for name, parameter in named.items():
        if name in held:
            stated = held[name]
            if stated["shape"] != list(parameter.shape):
                return False
            if _TYPES.get(stated["dtype"]) != parameter.dtype:
                return False
            found.add(id(parameter))
    return bool(held) and all(id(each) in found for each in named.values())


_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
