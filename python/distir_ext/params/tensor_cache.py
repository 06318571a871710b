"""Reads TVM's tensor caches, which ``tvm.contrib.tvmjs.dump_tensor_cache`` writes.

A cache is a directory with an index, ``tensor-cache.json`` (``ndarray-cache.json`` in earlier
versions of TVM), and files of raw elements. Tensors of the format ``f32-to-bf16`` are float32 of
which the upper half is stored. The index has checksums, which loading does not verify: it would
have to read all of every file.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from distir_ext.params.host_array import check_counts, check_shape
from distir_ext.params.stored_array import StoredArray, stored_dtype
from distir_ext.text.files.json_file import read_json, require
from distir_ext.text.files.regular_file import MOST_INDEX_BYTES, beside, open_file, read_file

INDEX_NAMES = ("tensor-cache.json", "ndarray-cache.json")


def read_index(path: Path) -> dict[str, StoredArray]:
    """The tensors of a cache, from its index.

    Raises:
        OSError: a file cannot be read.
        ValueError: the index is damaged, does not fit its files, or has a format or dtype that is
            not known; names the file and the tensor.
    """
    arrays: dict[str, StoredArray] = {}
    try:
        for file in read_json(read_file(path, MOST_INDEX_BYTES), str(path))["records"]:
            data = beside(path, file["dataPath"])
            with open_file(data) as opened:
                size = opened.seek(0, 2)
            require(
                file["nbytes"] == size,
                f"{data} is damaged: it has {size} bytes, {path.name} says {file['nbytes']}",
            )
            for record in file["records"]:
                array = _parse_record(record, data, size)
                if array.name in arrays:
                    raise ValueError(f'{path} is damaged: it has tensor "{array.name}" twice')
                arrays[array.name] = array
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: a record lacks a valid {error}") from error
    return arrays


def _parse_record(record: Mapping[str, Any], path: Path, size: int) -> StoredArray:
    name, dtype, form = record["name"], record["dtype"], record["format"]
    where = f'tensor "{str(name)[:80]}" of {path}'
    require(isinstance(name, str), f"{path} is damaged: {where} has a name that is not text")
    if form not in ("raw", "f32-to-bf16"):
        raise ValueError(f"{where} has the format {form!r}; known are 'raw' and 'f32-to-bf16'")
    form_dtype = "bfloat16" if form == "f32-to-bf16" and dtype == "float32" else dtype
    try:
        element_bytes = stored_dtype(form_dtype).itemsize
        stored_dtype(dtype)
    except ValueError as error:
        raise ValueError(f"{where} has dtype {dtype}, which cannot be loaded") from error
    try:
        shape = check_shape(record["shape"])
        begin, num_bytes = check_counts([record["byteOffset"], record["nbytes"]])
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged: {where} lacks a valid shape, byteOffset or nbytes"
        ) from error
    require(
        num_bytes == prod(shape) * element_bytes,
        f"{path} is damaged: {where} has {num_bytes} bytes for {form_dtype} {list(shape)}",
    )
    require(
        begin + num_bytes <= size,
        f"{path} is damaged: {where} ends at byte {begin + num_bytes} of {size}",
    )
    return StoredArray(name, path, begin, shape, dtype, form_dtype)
