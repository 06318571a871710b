"""Opens weight files, whose format is found from the path."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from distir_ext.params import param_dict, safetensors, shards, tensor_cache
from distir_ext.params.stored_array import Stored
from distir_ext.text.files.json_file import read_json, require, some_of
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, check_link, read_file
from distir_ext.text.printable import printable_line


def open_params(path: str | os.PathLike[str]) -> Mapping[str, Stored]:
    """The tensors of a file or directory, by name; no element is read.

    Args:
        path: A safetensors file; a directory of a checkpoint in the safetensors format or its
            ``*.safetensors.index.json``, without which all of ``*-00001-of-00003.safetensors`` and
            so on are read; a directory that ``Model.save_shards`` wrote or its
            ``shards.json``; a tensor cache of TVM (a directory or its ``tensor-cache.json``); or
            a file of ``tvm.runtime.save_param_dict_to_file``.

    Raises:
        OSError: a file does not exist or cannot be read.
        ValueError: none of these formats, or damaged; names the file, and the tensor if it is one.
    """
    try:
        found = _open(Path(path))
        for name in found:  # all that comes later may say it
            is_printable = printable_line(name) == name
            require(is_printable, f'{path} is damaged: tensor "{name}" has a control character')
        return found
    except ValueError as error:
        raise ValueError(printable_line(str(error))) from error  # names in it are the file's


def _open(found: Path) -> Mapping[str, Stored]:
    if found.is_dir():
        found = _index_of(found)
        check_link(found)
        if (series := safetensors.series_of(found)) is not None:
            return safetensors.read_series(found.parent, *series)
    if found.suffix == ".safetensors":
        return safetensors.read_file(found)
    if found.suffix == ".json":
        index = read_json(read_file(found, MOST_INDEX_BYTES), str(found))
        if "weight_map" in index:
            return safetensors.read_index(found)
        if "records" in index:
            return tensor_cache.read_index(found)
        if index.get("format") == shards.FORMAT:
            return shards.read_index(found)
    elif param_dict.is_param_dict(found):
        return param_dict.read_file(found)
    raise ValueError(
        f"{found} has none of the formats that are known: safetensors, its index, TVM's tensor "
        "cache and parameter file, and shards that a model saved"
    )


def _index_of(directory: Path) -> Path:
    """The file of a directory that says what it has."""
    for name in (shards.INDEX_NAME, *tensor_cache.INDEX_NAMES):
        if (directory / name).is_file():
            return directory / name
    for pattern in ("*.safetensors.index.json", "*.safetensors"):
        found = sorted(directory.glob(pattern))
        series = {safetensors.series_of(each) for each in found}
        if len(found) > 1 and (None in series or len(series) > 1):
            names = some_of(each.name for each in found)
            raise ValueError(f"{directory} has several of {pattern} {names}; pass one of them")
        if found:
            return found[0]
    raise ValueError(
        f"{directory} has no weights: no {shards.INDEX_NAME}, {tensor_cache.INDEX_NAMES[0]}, "
        "*.safetensors.index.json or *.safetensors"
    )
