"""Reads arrays from ``numpy.savez`` files of untrusted origin."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from distir_ext.params.host_array import numpy_dtype
from distir_ext.signature.specs import TensorSpec
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.files.argument_files import existing
from distir_ext.text.files.json_file import require
from distir_ext.text.files.regular_file import open_file
from distir_ext.text.printable import printable_line

# Exceptions of zipfile and NumPy about damaged files, or files of another kind.
_DAMAGED = (
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
_SUFFIX = ".npy"


def read_arrays(name: str, known: Mapping[str, Sequence[TensorSpec]]) -> dict[str, Any]:
    """The arrays of an ``.npz`` file.

    No array is read before its header says what a parameter of its name takes, so that a small file
    cannot fill the memory.

    Args:
        name: Of the file.
        known: The tensors that an array may be for, by name.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is none, or has an array that no parameter is called after, or that has
            another shape or type than the parameter.
    """
    with open_file(existing(name, "file of arrays")) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                names = [entry.filename.removesuffix(_SUFFIX) for entry in entries]
                _check_names(name, names, known)
                return {
                    array: _read(archive, entry, f"{array!r} of {name}", known[array])
                    for array, entry in zip(names, entries, strict=True)
                }
        except _RefusedError:
            raise
        except _DAMAGED as error:
            raise ValueError(
                f"{name} is no file that numpy.savez writes: {printable_line(str(error))}"
            ) from error


class _RefusedError(ValueError):
    """The file is one, and not for this program."""


def _check_names(
    file: str, names: Sequence[str], known: Mapping[str, Sequence[TensorSpec]]
) -> None:
    for name in names:
        if name not in known:
            raise _RefusedError(
                f"{file} has {name!r}, which no parameter is called; they are "
                f"{', '.join(known)}{did_you_mean(name, known)}"
            )
    require(len(set(names)) == len(names), "it has two arrays of one name")


def _read(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, what: str, specs: Sequence[TensorSpec]
) -> Any:
    with archive.open(entry) as stream:
        shape, dtype = _header(stream)
        require(not dtype.hasobject, f"{what} has pickled objects")
        matching = [spec for spec in specs if _fits(shape, spec)]
        if not matching:
            takes = " or ".join(f"[{', '.join(map(str, spec.shape))}]" for spec in specs)
            raise _RefusedError(f"{what} has the shape {list(shape)}; the parameter takes {takes}")
        # With symbolic sizes any number of elements fits: they have to be there.
        stated = math.prod(shape) * dtype.itemsize
        there = entry.file_size - stream.tell()
        require(stated == there, f"{what} has {there} bytes of elements, not {stated}")
    with archive.open(entry) as stream:
        array = npy.read_array(stream, allow_pickle=False)
    # NumPy writes types that it does not know, such as bfloat16, as bytes without a meaning.
    wanted = numpy_dtype(matching[0].dtype)
    is_opaque = dtype.kind == "V" and dtype.names is None and dtype.itemsize == wanted.itemsize
    return array.view(wanted) if is_opaque else array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = npy.read_magic(stream)
    require(version in ((1, 0), (2, 0)), f"arrays of the version {version} are unknown")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    require(all(size >= 0 for size in shape), f"sizes are not negative: {shape}")
    return shape, dtype


def _fits(shape: Sequence[int], spec: TensorSpec) -> bool:
    return len(shape) == len(spec.shape) and all(
        isinstance(wanted, str) or size == wanted
        for size, wanted in zip(shape, spec.shape, strict=True)
    )
