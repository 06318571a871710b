"""Saves and loads states: nested dicts, lists and tuples of arrays and plain values.

Arrays are shards (``_params.shards``), as the workers hold them. ``state.json`` says where each of
them is in the state, by its name there::

    {"format": "distir_ext.state", "version": 1, "state": {"dict": {
        "step": {"value": 7}, "cache": {"list": [{"array": "cache.0"}, {"array": "cache.1"}]}}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distir_ext.params import safetensors
from distir_ext.params.held_array import HeldArray
from distir_ext.params.host_tensor import HostTensor
from distir_ext.params.shards import INDEX_NAME, read_index, write_shards
from distir_ext.params.stored_array import StoredArray, StoredShards
from distir_ext.session.sharded_array import ShardedArray
from distir_ext.session.worker_value import WorkerValue
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.errors.spelling import counted
from distir_ext.text.files.json_file import read_json, require
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, read_file

STATE = "state.json"
"""The file of a directory that says what its state is."""

_FORMAT, _VERSION = "distir_ext.state", 1
_PLAIN = (bool, int, float, str, type(None))
_MOST_LEVELS = 100


def write_state(folder: Path, state: Any) -> None:
    """Writes a state; files of the same names are replaced.

    Raises:
        TypeError: something in it is no array, plain value, dict, list or tuple; names it.
        ValueError: an array has a dtype that safetensors lack, or is in the files that would be
            replaced.
        OSError: a file cannot be written.
    """
    arrays: dict[str, HeldArray] = {}
    text = json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "state": _described(state, (), folder.absolute(), arrays),
        },
        indent=1,
    )
    require(len(text) <= MOST_INDEX_BYTES, f"the plain values take more than {MOST_INDEX_BYTES} B")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE).unlink(missing_ok=True)  # whoever is interrupted leaves no half of a state
    write_shards(folder, arrays)
    (folder / STATE).write_text(text + "\n", encoding="utf-8")


def read_state(folder: Path) -> Any:
    """The state of a directory, in which arrays stay on disk.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged, or of another version; names it.
    """
    file = folder / STATE
    stated = read_json(read_file(file, MOST_INDEX_BYTES), str(file))
    require(
        stated.get("format") == _FORMAT and stated.get("version") == _VERSION,
        f"{file} is no state that this package reads, of version {_VERSION}",
    )
    return _built(stated.get("state"), read_index(folder / INDEX_NAME), file, 0)


def _described(
    value: Any, path: tuple[str, ...], folder: Path, arrays: dict[str, HeldArray]
) -> dict[str, Any]:
    """Describes a part of a state for the file, and adds its arrays to ``arrays``."""
    name = ".".join(path)
    where = f'"{name}" of the state' if path else "the state"
    require(len(path) <= _MOST_LEVELS, f"{where} has more than {_MOST_LEVELS} levels around it")
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; keys are texts")
        entries = value.items()
        return {
            "dict": {key: _described(each, (*path, key), folder, arrays) for key, each in entries}
        }
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        parts = enumerate(value)
        return {kind: [_described(each, (*path, str(at)), folder, arrays) for at, each in parts]}
    if name in arrays:
        raise ValueError(f"two arrays of the state are called {name!r}")
    arrays[name] = _held(value, where, folder)
    return {"array": name}


def _held(value: Any, where: str, folder: Path) -> HeldArray:
    if isinstance(value, WorkerValue):
        raise TypeError(f"{where} is one object per worker, which cannot be saved")
    if isinstance(value, StoredArray | StoredShards):
        if folder in value.path.absolute().parents:
            raise ValueError(f"{where} is in {folder} itself; save to another directory")
        value = value.numpy()
    if isinstance(value, ShardedArray) and value.held is not None:
        safetensors.check_dtype(value.held.spec.dtype, where)
        return value.held
    tensor = HostTensor(value, where)
    spec = TensorSpec(tensor.shape, tensor.dtype, (1,), (0,), (-1,))
    return HeldArray(spec, tensor.shape, {0: tensor})


def _built(stated: Any, arrays: Mapping[str, StoredShards], file: Path, level: int) -> Any:
    damaged = f"{file} is damaged"
    require(level <= _MOST_LEVELS, f"{damaged}: it has more than {_MOST_LEVELS} levels")
    require(isinstance(stated, dict) and len(stated) == 1, f"{damaged}: a part has no one kind")
    ((kind, content),) = stated.items()
    if kind == "value":
        require(isinstance(content, _PLAIN), f"{damaged}: a plain value is none")
        return content
    if kind == "array":
        require(
            isinstance(content, str) and content in arrays,
            f"{damaged}: {str(content)[:80]!r} is none of its {counted(len(arrays), 'array')}",
        )
        return arrays[content]
    if kind == "dict":
        require(isinstance(content, dict), f"{damaged}: a dict is none")
        return {key: _built(each, arrays, file, level + 1) for key, each in content.items()}
    require(kind in ("list", "tuple") and isinstance(content, list), f"{damaged}: unknown part")
    parts = [_built(each, arrays, file, level + 1) for each in content]
    return tuple(parts) if kind == "tuple" else parts
