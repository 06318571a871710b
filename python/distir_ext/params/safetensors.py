"""Reads and writes safetensors files, and checkpoints of several files.

A file is a header's length (8 bytes, little-endian), the header (JSON: dtype, shape and offsets of
each tensor) and the tensors; see https://github.com/huggingface/safetensors. It is read here, not
by the package of that name, because its NumPy side copies whole tensors and lacks float8 types.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from distir_ext.params.host_array import check_counts, check_shape
from distir_ext.params.stored_array import StoredArray
from distir_ext.text.files.json_file import read_json, require, some_of
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, beside, open_file
from distir_ext.text.files.regular_file import read_file as read_bytes

# TVM's names by those of the format.
DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

CHECKPOINT_FILE = "model.safetensors"
CHECKPOINT_INDEX = "model.safetensors.index.json"

# Hugging Face's transformers reads no file that does not say this.
_METADATA = {"format": "pt"}

# One of several files.
_IN_SERIES = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{1,9})-of-(?P<count>[0-9]{1,9})\.safetensors", re.ASCII
)

# What writers align the tensors to.
_ALIGNMENT = 8


def read_file(path: Path) -> dict[str, StoredArray]:
    """The tensors of one file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or has a dtype that is not in :data:`DTYPES`; names the file and
            the tensor.
    """
    header, start, size = _read_header(path)
    arrays = {}
    spans = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        where = f'{path} is damaged: tensor "{name}"'
        array, begin, end = _parse_entry(name, entry, path, start, where)
        require(end <= size - start, f"{where} ends at byte {start + end} of {size}")
        arrays[name] = array
        spans.append((begin, end, name))
    last, before = 0, "the header"
    for begin, end, name in sorted(spans):
        require(
            begin == last,
            f'{path} is damaged: tensor "{name}" does not begin where {before} ends '
            f"(bytes {start + begin} and {start + last})",
        )
        last, before = end, f'tensor "{name}"'
    require(start + last == size, f"{path} is damaged: {size - start - last} bytes follow {before}")
    return arrays


def _read_header(path: Path) -> tuple[Mapping[str, Any], int, int]:
    """The header, where the tensors begin, and the size of the file."""
    with open_file(path) as file:
        size = file.seek(0, 2)
        require(size >= 8, f"{path} is damaged: it has {size} bytes, fewer than a header's length")
        file.seek(0)
        (length,) = struct.unpack("<Q", file.read(8))
        require(
            length <= min(size - 8, MOST_INDEX_BYTES),
            f"{path} is damaged: its header has {length} bytes, the file {size}",
        )
        return read_json(file.read(length), f"the header of {path}"), 8 + length, size


def _parse_entry(
    name: str, entry: Any, path: Path, start: int, where: str
) -> tuple[StoredArray, int, int]:
    try:
        dtype_name, (begin, end) = entry["dtype"], check_counts(entry["data_offsets"])
        shape = check_shape(entry["shape"])
        valid = True
    except (TypeError, KeyError, ValueError):
        valid = False
    require(valid, f"{where} lacks a valid dtype, shape or data_offsets")
    dtype = DTYPES.get(str(dtype_name))
    if dtype is None:
        raise ValueError(
            f'tensor "{name}" of {path} has dtype {str(dtype_name)[:40]}, which cannot be loaded; '
            f"known are {', '.join(DTYPES)}"
        )
    expected = prod(shape) * np.dtype(dtype).itemsize
    require(
        end - begin == expected,
        f"{where} has {end - begin} bytes; {dtype} {list(shape)} takes {expected}",
    )
    return StoredArray(name, path, start + begin, shape, dtype, dtype), begin, end


def read_index(path: Path) -> dict[str, StoredArray]:
    """The tensors of a checkpoint in several files, from its ``*.safetensors.index.json``.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged, has a tensor that another one has too, or has not what the
            index says.
    """
    index = read_json(read_bytes(path, MOST_INDEX_BYTES), str(path))
    weight_map: Any = index.get("weight_map")
    require(
        isinstance(weight_map, dict) and all(isinstance(each, str) for each in weight_map.values()),
        f"{path} is damaged: it has no weight_map from names to files",
    )
    arrays = _read_files(beside(path, file) for file in sorted(set(weight_map.values())))
    for name, file in weight_map.items():
        found = arrays.get(name)
        if found is None or found.path != beside(path, file):
            raise ValueError(f'{path} is damaged: tensor "{name}" is not in {file}')
    unlisted = set(arrays) - set(weight_map)
    if unlisted:
        raise ValueError(f"{path} is damaged: it lacks {some_of(unlisted)}, which its files have")
    return arrays


def series_of(path: Path) -> tuple[str, int] | None:
    """Returns the series that a file is of, by its name: the stem, and the number of files.

    Example:
        >>> series_of(Path("model-00002-of-00003.safetensors"))
        ('model', 3)
    """
    match = _IN_SERIES.fullmatch(path.name)
    return None if match is None else (match["stem"], int(match["count"]))


def read_series(directory: Path, stem: str, count: int) -> dict[str, StoredArray]:
    """The tensors of a checkpoint in several files that has no index.

    Raises:
        OSError: a file cannot be read.
        ValueError: files are missing or damaged, or two have a tensor.
    """
    by_number: dict[int, Path] = {}
    for path in sorted(directory.glob("*.safetensors")):
        match = _IN_SERIES.fullmatch(path.name)
        if match is not None and series_of(path) == (stem, count):
            by_number[int(match["number"])] = path
    # As many are looked for as there are files: the count is only what a name says.
    missing = [n for n in range(1, min(count, len(by_number) + 1) + 1) if n not in by_number]
    require(
        not missing,
        f"{directory} has {len(by_number)} of the {count} files of {stem}-*.safetensors and no "
        f"index; number {missing[0] if missing else ''} is missing",
    )
    return _read_files(by_number[number] for number in sorted(by_number))


def _read_files(paths: Iterable[Path]) -> dict[str, StoredArray]:
    arrays: dict[str, StoredArray] = {}
    for path in paths:
        for name, array in read_file(path).items():
            if name in arrays:
                raise ValueError(
                    f'tensor "{name}" is in two files, {arrays[name].path} and {array.path}'
                )
            arrays[name] = array
    return arrays


def write_file(
    path: Path, tensors: Iterable[tuple[str, Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors, each brought to the host when its turn comes.

    Args:
        path: The file; it is replaced.
        tensors: Names and tensors, with ``shape``, ``dtype`` and ``numpy()``.
        metadata: Texts for the header.

    Raises:
        ValueError: the format has no such dtype; names the tensor.
    """
    items = list(tensors)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in items:
        begin, end = end, end + num_bytes(name, tensor)
        header[name] = {
            "dtype": _NAMES[str(tensor.dtype)],
            "shape": [int(size) for size in tensor.shape],
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for _, tensor in items:
            file.write(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)


def check_dtype(dtype: str, where: str) -> None:
    """Raises ValueError, with what messages call the tensor, if the format has no such dtype."""
    if dtype not in _NAMES:
        raise ValueError(f"{where} has dtype {dtype}, which safetensors files lack")


def num_bytes(name: str, tensor: Any) -> int:
    """Returns the number of bytes that a tensor takes in a file.

    Raises:
        ValueError: the format has no such dtype; names the tensor.
    """
    dtype = str(tensor.dtype)
    check_dtype(dtype, f'tensor "{name}"')
    return prod(int(size) for size in tensor.shape) * np.dtype(dtype).itemsize


def write_checkpoint(directory: Path, tensors: Mapping[str, Any], most_bytes: int) -> None:
    """Writes tensors as Hugging Face lays them out: one file, or several with an index.

    Files of the same names are replaced, and those of a checkpoint that was there do not count.

    Args:
        directory: It is made.
        tensors: By name, as for :func:`write_file`.
        most_bytes: Of one file, unless one tensor alone is larger.

    Raises:
        ValueError: the format has no such dtype; names the tensor.
    """
    files: list[dict[str, Any]] = []
    total = free = 0
    for name, tensor in tensors.items():
        size = num_bytes(name, tensor)
        if size > free or not files:
            files.append({})
            free = most_bytes
        files[-1][name] = tensor
        free -= size
        total += size
    directory.mkdir(parents=True, exist_ok=True)
    index = directory / CHECKPOINT_INDEX
    index.unlink(missing_ok=True)  # no index over files that are half written
    (directory / CHECKPOINT_FILE).unlink(missing_ok=True)  # readers would take it for the whole
    if len(files) <= 1:
        write_file(directory / CHECKPOINT_FILE, tensors.items(), _METADATA)
        return
    weight_map = {}
    for number, part in enumerate(files, start=1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors"
        write_file(directory / file, part.items(), _METADATA)
        weight_map.update(dict.fromkeys(part, file))
    content = {"metadata": {"total_size": total}, "weight_map": weight_map}
    index.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
