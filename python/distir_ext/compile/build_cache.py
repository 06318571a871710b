"""Caches built programs on disk, in the folder that DISTIR_EXT_CACHE names.

A program's key is a digest of all that it is made of: the module, the target, the options, the
rules of users, the versions of TVM and of this package with its sources. What cannot be told from
text, as the passes of others, is built each time; the logger ``distir_ext.cache`` says why.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import relax

from distir_ext._version import __version__
from distir_ext.compile.building import PartitionedExecutable
from distir_ext.compile.cache_folder import CacheFolder
from distir_ext.native import reports, tvm_log, warnings
from distir_ext.native.executables import bitcode_of, from_bitcode
from distir_ext.native.library import library_path
from distir_ext.native.machine import blas_library, cpu_target
from distir_ext.passes.pass_checks import CheckPasses
from distir_ext.pipelines.package_passes import SOURCE
from distir_ext.pipelines.pipeline import PassPipeline
from distir_ext.text.errors.logs import package_logger
from distir_ext.text.printable import shown

if TYPE_CHECKING:
    from distir_ext.mesh.cluster import Cluster

FOLDER_VARIABLE = "DISTIR_EXT_CACHE"
SIZE_VARIABLE = "DISTIR_EXT_CACHE_BYTES"
DEFAULT_BYTES = 4 << 30
"""Largest sum of the sizes of all files where ``DISTIR_EXT_CACHE_BYTES`` says nothing."""

_LOGGER = package_logger("distir_ext.cache")
_FORM = 1  # of entries; another number leaves older ones unread
_SPAN = re.compile(r'(\{"type":"ir.Span","data":)\{[^{}]*\}')
_LENGTH = struct.Struct("<Q")


class _NotKnownError(Exception):
    """The program depends on what no text says."""


def built(make: Callable[[], Any], mod: tvm.IRModule, dump_dir: Any, **parts: Any) -> Any:
    """Returns what ``make`` builds, from the cache if it was built before.

    Args:
        make: Builds the executable.
        mod: The module.
        dump_dir: As for :func:`distir_ext.build`; a dump needs the passes to run.
        **parts: What else the program depends on, as :func:`program_key` takes it.

    Raises:
        OSError: The folder cannot be made or read.
        ValueError: Others may write to the folder, or its size is no number of bytes.
    """
    folder = _folder()
    if folder is None:
        return make()
    try:
        if dump_dir is not None:
            raise _NotKnownError("a dump of its passes is asked for")
        key = program_key(mod, **parts)
    except _NotKnownError as reason:
        _LOGGER.info("not cached: %s", reason)
        return make()
    try:
        content = folder.read(key)
    except OSError as error:
        why = f"{FOLDER_VARIABLE} is '{shown(str(folder.path))}': {error.strerror or error}"
        raise OSError(error.errno, why) from error
    if content is not None:
        executable = _restored(content)
        if executable is not None:
            _LOGGER.info("program %s is from %s", key, folder.path)
            return executable
    with reports.pass_reports() as passes, warnings.heard() as said, tvm_log.heard() as lines:
        executable = make()
    notes = {
        "signature": executable.distir_signature,
        "reports": [[each.name, each.done, each.skipped, each.seconds] for each in passes],
        "warnings": said,
        "tvm": lines,
    }
    _store(folder, key, executable, notes)
    return executable


def _folder() -> CacheFolder | None:
    path = os.environ.get(FOLDER_VARIABLE, "")
    if not path:
        return None
    size = os.environ.get(SIZE_VARIABLE, "") or str(DEFAULT_BYTES)
    if not re.fullmatch("[0-9]{1,18}", size):
        raise ValueError(f"{SIZE_VARIABLE} is '{shown(size)}', not a number of bytes")
    return CacheFolder(Path(os.path.expanduser(path)).absolute(), int(size))  # noqa: PTH111


def program_key(
    mod: tvm.IRModule,
    *,
    target: str | Mapping[str, Any] | tvm.target.Target,
    cluster: Cluster | None,
    pipeline: PassPipeline,
    options: Mapping[str, Any],
    stated: Mapping[str, Any],
) -> str:
    """The digest of everything that a program follows from.

    Args:
        mod: The module.
        target: As for :func:`distir_ext.build`.
        cluster: As for :func:`distir_ext.build`.
        pipeline: The passes.
        options: Of ``tvm.compile``.
        stated: Further arguments, plain values.
    """
    if not cpu_target.is_cpu("llvm" if target == "llvm" else _known_target(target)):
        raise _NotKnownError("programs of GPUs are not")
    others = [
        each.name for each in pipeline if each.is_enabled and each.registered.source != SOURCE
    ]
    if others:
        raise _NotKnownError(f"the pass {others[0]!r} is not one of {SOURCE}")
    for name in options:
        raise _NotKnownError(f"the option {name!r} of tvm.compile is stated")
    context = tvm.transform.PassContext.current()
    seeing = [each.name for each in context.instruments or () if each.name != CheckPasses.__name__]
    if seeing:
        raise _NotKnownError(f"the PassContext has the instrument {seeing[0]}, which sees passes")
    parts = {
        "form": _FORM,
        "versions": [__version__, tvm.__version__, tvm_ffi.__version__, _compiler_version()],
        "sources": _sources(),
        "target": str(cpu_target.host_target() if target == "llvm" else _known_target(target)),
        "scope": str(tvm.target.Target.current(allow_none=True)),
        "cluster": None if cluster is None else [cluster.as_data(), repr(cluster.device)],
        "passes": [[each.name, each.is_enabled, repr(each.options)] for each in pipeline],
        "rules": dict(tvm_ffi.get_global_func("distir.rules.Registered")()),
        "stated": dict(stated),
        "context": [
            context.opt_level,
            [str(each) for each in context.required_pass],
            [str(each) for each in context.disabled_pass],
            sorted((str(name), str(value)) for name, value in context.config.items()),
        ],
        "blas": blas_library.LIBRARY is not None,
    }
    digest = hashlib.blake2b(digest_size=32)
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    digest.update(_text_of(mod))
    return digest.hexdigest()


def _known_target(target: str | Mapping[str, Any] | tvm.target.Target) -> tvm.target.Target:
    return tvm.target.Target(dict(target) if isinstance(target, Mapping) else target)


def _text_of(mod: tvm.IRModule) -> bytes:
    """A module as text, without where its lines stand in a file."""
    try:
        text = str(tvm.ir.save_json(mod))
    except Exception as error:  # of many kinds
        raise _NotKnownError("the module has what TVM cannot write as text") from error
    own = [name for name in _operators() - _OPERATORS if json.dumps(name) in text]
    if own:
        raise _NotKnownError(f"the operator {own[0]!r} is defined in this process")
    return _SPAN.sub(r"\1{}", text).encode()


def _operators() -> set[str]:
    return {str(name) for name in tvm.ir.Op.list_op_names()}


# Those of TVM and of this package: their kernels are known by the versions.
_OPERATORS = _operators()


def _compiler_version() -> int:
    return int(tvm_ffi.get_global_func("target.llvm_version_major")())


@functools.cache
def _sources() -> str:
    """The digest of the native library and of the sources of this package."""
    root = Path(__file__).parents[1]
    digest = hashlib.blake2b(library_path().read_bytes(), digest_size=32)
    for folder, names, files in os.walk(root):
        names[:] = sorted(each for each in names if each != "__pycache__")
        for name in sorted(files):
            if not name.endswith((".so", ".pyc")):
                path = Path(folder, name)
                digest.update(str(path.relative_to(root)).encode() + b"\0")
                digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def _store(folder: CacheFolder, key: str, executable: Any, notes: Mapping[str, Any]) -> None:
    """Writes a program; an error is a warning, since the program is there."""
    files = bitcode_of(executable.mod)
    if files is None:
        _LOGGER.info("not cached: the program has more than code of LLVM")
        return
    content = b"".join(
        part
        for each in (json.dumps(notes).encode(), *files)
        for part in (_LENGTH.pack(len(each)), each)
    )
    try:
        if not folder.write(key, content):
            _LOGGER.info("not cached: the program has %d bytes", len(content))
    except OSError as error:
        _LOGGER.warning("program %s cannot be written to %s: %s", key, folder.path, error)


def _restored(content: bytes) -> Any:
    """The program of an entry, whose reports and warnings are said again; None if it is none."""
    parts, at = [], 0
    try:
        while at < len(content):
            (size,) = _LENGTH.unpack_from(content, at)
            at += _LENGTH.size
            parts.append(content[at : at + size])
            at += size
        notes, files = json.loads(parts[0]), parts[1:]
        executable = relax.VMExecutable(from_bitcode(files))
        said = [notes[name] for name in ("reports", "warnings", "tvm")]
        executable.distir_signature = notes["signature"]
    except Exception as error:  # whatever a reader of TVM says of it
        _LOGGER.info("an entry cannot be read: %s", error)
        return None
    executable.__class__ = PartitionedExecutable
    for each in said[0]:
        reports.record(*each)
    for message in said[1]:
        warnings.warn(message)
    tvm_log.log(said[2])
    return executable
