"""Loads programs: TVMScript files, exports of other frameworks, ``distir_ext.save`` folders."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import tvm

from distir_ext.saved.saving import MANIFEST, load
from distir_ext.text.errors.full_tracebacks import are_tracebacks_full
from distir_ext.text.errors.spelling import did_you_mean
from distir_ext.text.files.argument_files import existing, split_program

# Place in errors of TVMScript.
_DIAGNOSTIC = re.compile(r"error: (.*)\n\s*--> (.*):(\d+):\d+$", re.MULTILINE)


def read_program(
    text: str, annotated: bool = True, configuration: str | None = None
) -> tvm.IRModule:
    """The module that an argument names: ``model.py``, ``model.py:MLP``, ``model.onnx``, a folder..

    A Python file is run. What it prints goes to standard error, so that standard output has what
    the command prints alone.

    Args:
        text: The argument.
        annotated: Whether an ONNX file's own device configuration is read, too.
        configuration: The name of this configuration, if the file has several.

    Raises:
        ValueError: It has no module, or several and none is named; or it is of no known kind.
        FileNotFoundError: There is no such file.
        ImportError: The package that reads such a file is not installed.
        RuntimeError: The file cannot be read, or raised an error.
    """
    file, name = split_program(text)
    path = existing(file)
    if path.suffix == ".py" and not path.is_dir():
        return _module_of(path, run_file(path), name)
    reader = _read_saved if path.is_dir() else _READERS.get(path.suffix)
    if reader is None:
        raise ValueError(f"{path} is of no known kind; a program is {_known()}")
    if name:
        raise ValueError(f"{path} has one program, so it is named without {':' + name!r}")
    if configuration is not None and path.suffix != ".onnx":
        raise ValueError(f"{path} has no device configurations; ONNX files have some")
    with contextlib.redirect_stdout(sys.stderr):
        return reader(path, annotated, configuration)


def _known() -> str:
    return (
        f"a .py file with TVMScript, {', '.join(_READERS)} or a folder that distir_ext.save wrote"
    )


def run_file(path: Path) -> ModuleType:
    """Runs a file, which is not the main program of the process, beside its own modules.

    Raises:
        RuntimeError: It raised an error; says where.
    """
    name = f"_distir_program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # TVMScript looks for its source there
    sys.path.insert(0, str(path.resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if are_tracebacks_full():
            raise
        raise RuntimeError(_failure(path, error)) from error
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the list
            sys.path.remove(str(path.resolve().parent))
    return module


def _failure(path: Path, error: BaseException) -> str:
    """Formats an error with the place in a file that raised it: ``model.py:3: NameError: ..``."""
    shown = _DIAGNOSTIC.match(str(error))
    if shown is not None and shown[2] == str(path.resolve()):
        return f"{path}:{shown[3]}: {shown[1]}"
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == str(path.resolve()):
        return f"{path}:{error.lineno}: {kind}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.resolve())]
    at = f":{lines[-1]}" if lines else ""
    return f"{path}{at}: {kind}: {error}"


def _module_of(path: Path, program: ModuleType, name: str) -> tvm.IRModule:
    modules = {
        key: value for key, value in vars(program).items() if isinstance(value, tvm.IRModule)
    }
    if name:
        if name in modules:
            return modules[name]
        other = getattr(program, name, None)
        kind = f"{name!r} is of type {type(other).__name__}" if other is not None else ""
        listed = f"its modules are {', '.join(modules)}" if modules else "it has no IRModule"
        raise ValueError(
            f"{path} has no IRModule {name!r}; {kind or listed}{did_you_mean(name, modules)}"
        )
    public = {key: value for key, value in modules.items() if not key.startswith("_")}
    distinct: dict[int, str] = {}
    for key, value in public.items():
        distinct.setdefault(id(value), key)
    if len(distinct) == 1:
        return public[next(iter(distinct.values()))]
    if not distinct:
        raise ValueError(
            f"{path} has no IRModule at its top level, as a class under @I.ir_module is one"
        )
    names = [f"{path}:{key}" for key in distinct.values()]
    raise ValueError(f"{path} has several modules; name one: {', '.join(names)}")


def _read_saved(path: Path, annotated: bool, configuration: str | None) -> tvm.IRModule:
    del annotated, configuration  # it has none of its own
    if not (path / MANIFEST).exists():
        raise ValueError(f"{path} is a folder without {MANIFEST}; a program is {_known()}")
    return load(path).mod


def _read_onnx(path: Path, annotated: bool, configuration: str | None) -> tvm.IRModule:
    onnx = _imported("onnx", path)
    from distir_ext.interop.onnx import from_onnx

    model = _loaded(onnx.load, path)
    try:
        return from_onnx(model, configuration, annotated=annotated).mod
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _read_export(path: Path, annotated: bool, configuration: str | None) -> tvm.IRModule:
    del annotated, configuration  # it has none of its own
    torch = _imported("torch", path)
    from distir_ext.interop.torch import import_program

    exported = _loaded(torch.export.load, path)
    try:
        return import_program(exported).mod
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


_READERS: Mapping[str, Callable[[Path, bool, str | None], tvm.IRModule]] = {
    ".onnx": _read_onnx,
    ".pt2": _read_export,
}


def _imported(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # An extra is called as the package that it has.
        install = f"pip install 'distir-ext[{name}]'"
        raise ImportError(f"reading {path} needs {name}: {install} ({error})") from error


def _loaded(load: Callable[[str], Any], path: Path) -> Any:
    try:
        return load(str(path))
    except Exception as error:  # their readers raise errors of many kinds
        if are_tracebacks_full():
            raise
        raise RuntimeError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
