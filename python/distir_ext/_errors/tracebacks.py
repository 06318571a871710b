"""Tracebacks of errors that end where the user's program called this package.

What is below says nothing to whoever made a mistake, and in a notebook fills the page. Frames stay
where a function of the user is among them, and where the environment asks for all
(``_full_tracebacks``).
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

import tvm
import tvm_ffi

from distir_ext._errors.full_tracebacks import are_tracebacks_full
from distir_ext._text.printable import TextLines, printable_line

_PACKAGE = Path(__file__).resolve().parents[1]
_OURS = tuple(
    f"{Path(module).resolve().parent}{os.sep}"
    for module in (_PACKAGE / "__init__.py", str(tvm.__file__), str(tvm_ffi.__file__))
)
_STANDARD = f"{Path(sysconfig.get_path('stdlib')).resolve()}{os.sep}"
_PACKAGES = f"{os.sep}site-packages{os.sep}"

# Those that this package raises; TVM's own have lines that say where.
_ERRORS = (ImportError, KeyError, NotImplementedError, OSError, RuntimeError, TypeError, ValueError)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def short_tracebacks(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Has what a function raises look as if it was raised by the function itself.

    What an error says has names of files and other programs, which terminals would obey, or which
    would begin lines: they are escaped, unless the message is a :class:`TextLines`.
    """

    @functools.wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if not _is_internal(error.__traceback__):
                raise
            _make_printable(error)
            if are_tracebacks_full():
                raise
            raise error.with_traceback(None) from error.__cause__

    return called


def _make_printable(error: BaseException) -> None:
    text = error.args[0] if len(error.args) == 1 else None
    if isinstance(text, str) and not isinstance(text, TextLines) and type(error) in _ERRORS:
        error.args = (printable_line(text),)


def _is_internal(traceback: TracebackType | None) -> bool:
    """Whether no frame is of the user's program."""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        # Frames of C++ and Cython are TVM's.
        if (file.endswith(".py") or file.startswith("<")) and not _is_known(file):
            return False
        traceback = traceback.tb_next
    return True


def _is_known(file: str) -> bool:
    if file.startswith("<frozen") or file == "<unknown>":
        return True
    path = str(Path(file).resolve())
    return path.startswith(_OURS) or (path.startswith(_STANDARD) and _PACKAGES not in path)
