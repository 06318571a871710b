"""Saves and opens sharded weights: one safetensors file per device, and an index.

The index, ``shards.json``, has for each weight the global shape, into how many pieces each
dimension is cut, and the file of each piece, row-major. A piece that several devices hold is
written once, by the first of them::

    {"format": "distir_ext.shards", "version": 1,
     "weights": {"w": {"shape": [8, 6], "dtype": "float32", "parts": [2, 1],
                       "files": ["device-0.safetensors", "device-1.safetensors"]}}}

Where pieces are larger than they must be, being whole heads, ``"piece"`` is their shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distir_ext.params import safetensors
from distir_ext.params.held_array import HeldArray
from distir_ext.params.host_array import check_shape
from distir_ext.params.stored_array import StoredArray, StoredShards, piece_extent
from distir_ext.text.files.json_file import read_json, require
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, beside, read_file

INDEX_NAME = "shards.json"
FORMAT = "distir_ext.shards"
VERSION = 1


def write_shards(directory: Path, weights: Mapping[str, HeldArray]) -> None:
    """Writes weights; files of the same names are replaced.

    Raises:
        OSError: a file cannot be written.
        ValueError: a weight has a dtype that safetensors files lack.
    """
    directory.mkdir(parents=True, exist_ok=True)
    index = directory / INDEX_NAME
    index.unlink(missing_ok=True)  # no index over files that are half written
    entries = {}
    files: dict[int, list[tuple[str, Any]]] = {}
    for name, weight in weights.items():
        holders = weight.spec.holders(weight.shards)
        for device in holders.values():
            files.setdefault(device, []).append((name, weight.shards[device]))
        entries[name] = {
            "shape": list(weight.shape),
            "dtype": weight.spec.dtype,
            "parts": list(weight.spec.parts),
            "files": [_file_name(holders[block]) for block in sorted(holders)],
        }
        if any(weight.spec.shards):
            entries[name]["piece"] = list(weight.spec.local_shape(weight.shape))
    for device, tensors in files.items():
        safetensors.write_file(directory / _file_name(device), tensors)
    content = {"format": FORMAT, "version": VERSION, "weights": entries}
    index.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _file_name(device: int) -> str:
    return f"device-{device}.safetensors"


def read_index(path: Path) -> dict[str, StoredShards]:
    """The weights that :func:`write_shards` wrote, from their index.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged, or has not what the index says; names it and the weight.
    """
    index = read_json(read_file(path, MOST_INDEX_BYTES), str(path))
    require(
        index.get("format") == FORMAT and index.get("version") == VERSION,
        f"{path} is not an index of shards, of version {VERSION}",
    )
    files: dict[str, dict[str, StoredArray]] = {}
    weights = {}
    try:
        for name, entry in index["weights"].items():
            pieces = []
            for file in entry["files"]:
                if file not in files:
                    files[file] = safetensors.read_file(beside(path, file))
                if name not in files[file]:
                    raise ValueError(f'{path} is damaged: tensor "{name}" is not in {file}')
                pieces.append(files[file][name])
            weights[name] = _assemble(name, path, entry, pieces)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: a weight lacks a valid {error}") from error
    return weights


def _assemble(
    name: str, path: Path, entry: Mapping[str, Any], pieces: list[StoredArray]
) -> StoredShards:
    try:
        shape, parts = check_shape(entry["shape"]), check_shape(entry["parts"])
        stated = check_shape(entry.get("piece", ()))
    except ValueError as error:
        raise ValueError(
            f'{path} is damaged: weight "{name}" has no valid shape or parts'
        ) from error
    what = f'{path} is damaged: weight "{name}"'
    extent = piece_extent(shape, parts, len(pieces), what, stated)
    for piece in pieces:
        require(
            piece.shape == extent and piece.dtype == entry["dtype"],
            f"{piece} is {piece.dtype} {list(piece.shape)}, {path.name} says {entry['dtype']} "
            f"{list(extent)}",
        )
    return StoredShards(name, path, shape, entry["dtype"], parts, tuple(pieces))
