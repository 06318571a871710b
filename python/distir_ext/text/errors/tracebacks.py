"""Shortens tracebacks to the frames of the user's program.

Internal frames tell users nothing about their mistake, and fill the page of a notebook. All frames
stay if a function of the user is among the internal ones, or if the environment asks for them
(``full_tracebacks``).
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

from distir_ext.text.errors.full_tracebacks import are_tracebacks_full
from distir_ext.text.printable import message_text, printable, with_short_words

_PACKAGE = Path(__file__).resolve().parents[2]
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}{os.sep}"
_PACKAGES = f"{os.sep}site-packages{os.sep}"

# Those that this package raises, with its own classes; others' have lines that say where.
_ERRORS = (ImportError, KeyError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)

# A path of the system has fewer characters.
_LONGEST_PATH = 4096

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def short_tracebacks(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cuts internal frames from errors that a function raises.

    What an error says has names of files and other programs, which terminals would obey, which
    would begin lines, or which are long: :func:`make_printable` makes text of them.
    """

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            make_printable(error)
            if are_tracebacks_full() or not _is_internal(error.__traceback__):
                raise
            raise error.with_traceback(None) from error.__cause__

    return called


def make_printable(error: BaseException) -> None:
    """Escapes and shortens names of others in an error, its notes and the errors that led to it.

    What a function of the user has raised stays as it is. Of what other packages have raised, lines
    stay.
    """
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        last = _last(following.__traceback__)
        if last is None or _is_inside(last):
            _escape(following, is_ours=_is_error_of_package(following))
        elif _PACKAGES in last.tb_frame.f_code.co_filename:
            _escape(following, is_ours=False)
        following = following.__cause__ or following.__context__


def _is_error_of_package(error: BaseException) -> bool:
    return type(error) in _ERRORS or type(error).__module__.startswith("distir_ext.")


def _escape(error: BaseException, is_ours: bool) -> None:
    escaped = message_text if is_ours else _lines_text
    if len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (escaped(error.args[0]),)
    if isinstance(error, OSError) and len(str(error.filename)) > _LONGEST_PATH:
        error.filename = message_text(os.fsdecode(error.filename))
    if notes := getattr(error, "__notes__", None):
        notes[:] = [_lines_text(str(note)) for note in notes]


def _lines_text(text: str) -> str:
    return printable(with_short_words(text))


def _last(traceback: TracebackType | None) -> TracebackType | None:
    """The frame that raised the error."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback


def _is_internal(traceback: TracebackType | None) -> bool:
    """Returns whether no frame is of the user's program."""
    while traceback is not None:
        if not _is_inside(traceback):
            return False
        traceback = traceback.tb_next
    return True


def _is_inside(traceback: TracebackType) -> bool:
    """Returns whether a frame is of this package or of what it calls (C++ and Cython are TVM's)."""
    file = traceback.tb_frame.f_code.co_filename
    return (not file.endswith(".py") and not file.startswith("<")) or _is_known(file)


@functools.cache
def _ours() -> tuple[str, ...]:
    """Folders of this package, and of TVM, which commands import late."""
    specs = (importlib.util.find_spec(name) for name in ("tvm", "tvm_ffi"))
    origins = [Path(spec.origin) for spec in specs if spec is not None and spec.origin]
    folders = [_PACKAGE, *(origin.resolve().parent for origin in origins)]
    return tuple(f"{folder}{os.sep}" for folder in folders)


def _is_known(file: str) -> bool:
    if file.startswith("<frozen") or file == "<unknown>":
        return True
    path = str(Path(file).resolve())
    return path.startswith(_ours()) or (path.startswith(_STANDARD) and _PACKAGES not in path)
