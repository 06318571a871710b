"""Saves and loads programs (a module in any phase, its weights) and states (arrays by name)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from distir_ext.native.modules import check_module
from distir_ext.params import safetensors
from distir_ext.params.host_tensor import HostTensor
from distir_ext.saved.module_text import MOST_BYTES, read_module, write_module
from distir_ext.saved.state import STATE, read_state, write_state
from distir_ext.text.errors.tracebacks import short_tracebacks
from distir_ext.text.files.json_file import read_json, require
from distir_ext.text.files.regular_file import beside, read_file
from distir_ext.text.printable import printable_line

__all__ = ["MANIFEST", "SavedProgram", "load", "save"]

MANIFEST = "program.json"
"""The file of a directory that says what it has."""

_FORMAT, _VERSION = "distir_ext program", 1
_MODULE, _WEIGHTS = "module.json", "weights.safetensors"
_MOST_MANIFEST_BYTES = 1 << 16


@dataclass(frozen=True)
class SavedProgram:
    """Program that :func:`load` has read."""

    mod: tvm.IRModule
    """The module, in the phase that it was in."""

    params: Path | None
    """The file of its weights, which ``Session.load(params=...)`` takes; None if it has none."""


@short_tracebacks
def save(
    path: str | os.PathLike[str],
    what: Any,
    params: Mapping[str, Any] | Iterable[tuple[str, Any]] | None = None,
) -> None:
    """Writes a program, or a state, into a directory.

    A program is a module and weights, if any: ``program.json``, ``module.json`` and
    ``weights.safetensors``. The module keeps its annotations, its meshes and the names of their
    axes, and its phase. Commands as ``distir report`` take the directory in place of a file.

    A state is a dict of arrays: results on the workers (:class:`ShardedArray`), and all that a
    function takes as an input; numbers, texts, None, and dicts, lists and tuples of all these. What
    the workers hold is written as they hold it, one file per device, beside ``state.json`` and
    ``shards.json``.

    Args:
        path: The directory. It is made; one that has a program, or a state, already gets this one
            instead.
        what: A module in any phase, which takes at most 100 MB with its constants; or a dict.
        params: Weights of a module by name, or pairs of name and array.

    Raises:
        ValueError: The directory has other files; the module is too large, or has compiled code in
            it; a name is given twice; an array has a dtype that safetensors lack, or is one that
            :func:`load` has found in this directory.
        TypeError: It is neither; a name is no text, or a weight no array; something in a state
            cannot be saved.
        OSError: A file cannot be written.
        RuntimeError: A result was on workers that are gone.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from tvm import relax
        >>> from distir_ext import Mesh, annotate
        >>> builder = relax.BlockBuilder()
        >>> x, w = (relax.Var(name, relax.TensorType((8, 8), "float32")) for name in "xw")
        >>> with builder.function("main", [x, w]):
        ...     result = builder.emit_func_output(builder.emit(relax.op.matmul(x, w)))
        >>> mod = annotate(builder.get(), Mesh(tp=2), {"w": (None, "tp")})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, mod, {"w": np.zeros((8, 8), "float32")})
        ...     found = load(folder)
        >>> found.params.name
        'weights.safetensors'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(folder, {"step": 7, "cache": [np.ones(3, "float32")]})
        ...     found = load(folder)
        ...     print(found["step"], found["cache"][0].numpy())
        7 [1. 1. 1.]
    """
    folder = Path(path)
    if isinstance(what, Mapping):
        if params is not None:
            raise TypeError("params= are the weights of a module, and a dict is a state")
        _check_folder(folder, STATE, "state")
        write_state(folder, what)
        return
    if not isinstance(what, tvm.IRModule | tvm.ir.BaseFunc):
        raise TypeError(f"expected a tvm.IRModule or a dict, got {type(what).__name__}")
    check_module(what)
    _check_folder(folder, MANIFEST, "program")
    _save_program(folder, what, params)


def _check_folder(folder: Path, file: str, what: str) -> None:
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_empty and not (folder / file).exists():
        raise ValueError(f"{folder} exists and has no {what}; a {what} gets its own folder")


def _save_program(
    folder: Path,
    mod: tvm.IRModule,
    params: Mapping[str, Any] | Iterable[tuple[str, Any]] | None,
) -> None:
    manifest = folder / MANIFEST
    text = write_module(mod)
    weights = _weights(params)
    folder.mkdir(parents=True, exist_ok=True)
    manifest.unlink(missing_ok=True)  # whoever is interrupted leaves no half of a program
    for name in (_MODULE, _WEIGHTS):
        (folder / name).unlink(missing_ok=True)  # a link is replaced, not what it leads to
    (folder / _MODULE).write_bytes(text)
    stated: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "tvm": tvm.__version__,
        "module": {
            "file": _MODULE,
            "bytes": len(text),
            "sha256": hashlib.sha256(text).hexdigest(),
        },
    }
    if params is not None:
        safetensors.write_file(folder / _WEIGHTS, weights.items())
        stated["weights"] = {"file": _WEIGHTS, "bytes": (folder / _WEIGHTS).stat().st_size}
    manifest.write_text(json.dumps(stated, indent=2) + "\n")


@short_tracebacks
def load(path: str | os.PathLike[str]) -> Any:
    """Reads the files of :func:`save`.

    Nothing of it is run, and no array is read but the names, types and sizes. What is from
    elsewhere is checked (docs/security.md).

    Args:
        path: The directory.

    Returns:
        A :class:`SavedProgram`; or a state, in which arrays are on disk: they have ``shape``,
        ``dtype`` and ``numpy()``. Functions of any mesh take them as inputs, and each worker reads
        the part that it needs, from files of the same names on its host.

    Raises:
        OSError: The directory or a file of it is not there, or cannot be read.
        ValueError: It is none of a program, or of an unknown version; or is damaged. It names the
            file.
    """
    folder = Path(path)
    try:
        if (folder / STATE).exists() and not (folder / MANIFEST).exists():
            return read_state(folder.absolute())  # workers may have another directory
        return _load(folder / MANIFEST)
    except ValueError as error:
        raise ValueError(printable_line(str(error))) from error  # names in it are the file's


def _load(manifest: Path) -> SavedProgram:
    stated = read_json(read_file(manifest, _MOST_MANIFEST_BYTES), str(manifest))
    require(
        stated.get("format") == _FORMAT,
        f"{manifest} is no program that distir_ext.save wrote",
    )
    version = stated.get("version")
    require(
        type(version) is int and version == _VERSION,
        f"{manifest} has the version {str(version)[:40]}; this package reads {_VERSION}",
    )
    file, size = _file_of(manifest, stated, "module")
    text = read_file(file, MOST_BYTES)
    _check_size(file, len(text), size)
    if hashlib.sha256(text).hexdigest() != stated["module"].get("sha256"):
        raise ValueError(f"{file} is damaged: it has another checksum than {manifest} says")
    try:
        mod = read_module(text, str(file))
    except ValueError as error:
        writer = str(stated.get("tvm"))[:40]
        if writer == tvm.__version__:
            raise
        raise ValueError(
            f"{error} (it was written with TVM {writer}, and this is {tvm.__version__})"
        ) from error
    if "weights" not in stated:
        return SavedProgram(mod, None)
    weights, size = _file_of(manifest, stated, "weights")
    require(weights.suffix == ".safetensors", f"{manifest} is damaged: {weights} is no safetensors")
    safetensors.read_file(weights)
    _check_size(weights, weights.stat().st_size, size)
    return SavedProgram(mod, weights)


def _file_of(manifest: Path, stated: Mapping[str, Any], what: str) -> tuple[Path, int]:
    """A file that the manifest names, and how many bytes it should have."""
    entry = stated.get(what)
    size = entry.get("bytes") if isinstance(entry, dict) else None
    require(
        isinstance(entry, dict) and type(size) is int,
        f"{manifest} is damaged: it does not say which file has the {what}, of how many bytes",
    )
    assert isinstance(entry, dict)
    assert isinstance(size, int)
    return beside(manifest, entry.get("file")), size


def _check_size(file: Path, found: int, stated: int) -> None:
    require(found == stated, f"{file} is damaged: it has {found} bytes, not {str(stated)[:40]}")


def _weights(params: Mapping[str, Any] | Iterable[tuple[str, Any]] | None) -> dict[str, HostTensor]:
    pairs = params.items() if isinstance(params, Mapping) else params or ()
    found: dict[str, HostTensor] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"the name of a weight is a text, not {name!r}")
        if name in found:
            raise ValueError(f"two weights are called {name!r}")
        found[name] = HostTensor(value, f"weight {name!r}")
    return found
