"""Models of transformers from folders: built without weights, which workers read from the files.

A folder is data: no code of it is run, nothing in it is unpickled, and only regular files are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from distir_ext.params.checkpoint import open_params
from distir_ext.text.errors.logs import escaped_logs
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.files.json_file import require, some_of
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, check_link
from distir_ext.text.printable import shown

_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")

# Of transformers: no code of a folder, and nothing of a network.
_DATA_ONLY = {"trust_remote_code": False, "local_files_only": True}

_TYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


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
        ValueError: The configuration names no class of transformers, or transformers cannot make a
            model of it; weights are missing or damaged; there is no such type.
    """
    path = Path(folder)
    wanted = _dtype(dtype) if dtype else None
    if not (path / "config.json").is_file():
        raise FileNotFoundError(f"{path} has no config.json, as a model of transformers has")
    _check_files(path)
    with _one_error(path, "a model"):
        return _model(path, wanted)


@short_tracebacks
def tokenizer_of_folder(folder: str | os.PathLike[str]) -> Any:
    """The tokenizer of a folder; None if it has none.

    Raises:
        ValueError: Transformers cannot read its files.
    """
    path = Path(folder)
    if not any((path / name).is_file() for name in _TOKENIZERS):
        return None
    _check_files(path)
    import transformers

    with _one_error(path, "a tokenizer"):
        return transformers.AutoTokenizer.from_pretrained(path, **_DATA_ONLY)


def _check_files(folder: Path) -> None:
    """Refuses what is no regular file of the folder, and JSON that is longer than any model's."""
    for file in sorted(folder.iterdir()):
        if not file.is_dir():
            check_link(file)
            require(file.is_file(), f"{file} is not a regular file")
            is_long = file.suffix == ".json" and file.stat().st_size > MOST_INDEX_BYTES
            require(not is_long, f"{file} has more than {MOST_INDEX_BYTES} bytes")


@contextlib.contextmanager
def _one_error(folder: Path, what: str) -> Iterator[None]:
    """Has what transformers raises of a folder, which is of many types, name the folder."""
    try:
        with escaped_logs("transformers"):
            yield
    except Exception as error:
        if isinstance(error, ValueError) and str(folder) in str(error):
            raise
        said = f"{type(error).__name__}: {shown(str(error))}"
        raise ValueError(f"transformers cannot make {what} of {folder}: {said}") from error


def _model(path: Path, dtype: torch.dtype | None) -> FolderModel:
    import transformers
    from transformers.initialization import no_init_weights

    config = transformers.AutoConfig.from_pretrained(path, **_DATA_ONLY)
    kind = _class_of(config, path / "config.json")
    wanted = dtype or config.dtype or torch.float32
    with no_init_weights():
        model = kind._from_config(config, dtype=wanted).eval()
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    _check_tokens(model.generation_config, path)
    if _fits(model, path):
        return FolderModel(model, str(path))
    model, found = kind.from_pretrained(
        path, dtype=wanted, use_safetensors=True, output_loading_info=True, **_DATA_ONLY
    )
    missing = some_of(map(str, found["missing_keys"]))  # which transformers fills with noise
    require(not found["missing_keys"], f"{path} lacks weights of the model: {missing}")
    return FolderModel(model.eval(), None)


def _check_tokens(settings: Any, folder: Path) -> None:
    """Refuses tokens that are none; transformers compares them with others when it generates."""
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"):
        value = getattr(settings, name, None)
        tokens = value if isinstance(value, list) else [value]
        are_tokens = value is None or all(type(each) is int for each in tokens)
        require(are_tokens, f"{folder} has {name} {shown(repr(value))}, which is no token's number")


def _class_of(config: Any, file: Path) -> Any:
    """The class of a model that a configuration names."""
    import transformers

    names = getattr(config, "architectures", None) or []
    for name in names if isinstance(names, list) else []:
        found = getattr(transformers, name, None) if isinstance(name, str) else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    raise ValueError(
        f"{file} names no class of transformers in 'architectures': {shown(str(names))}"
    )


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{name!r} is no type of weights, as 'float32' or 'bfloat16' is")
    return found


def _fits(model: torch.nn.Module, folder: Path) -> bool:
    """Returns whether files have each weight of a model, under its name and of its type."""
    held = open_params(folder)
    named = dict(model.named_parameters(remove_duplicate=False))
    found: set[int] = set()
    for name, parameter in named.items():
        if name in held:
            stated = held[name]
            if tuple(stated.shape) != tuple(parameter.shape):
                return False
            if _TYPES.get(stated.dtype) != parameter.dtype:
                return False
            found.add(id(parameter))
    return bool(held) and all(id(each) in found for each in named.values())
