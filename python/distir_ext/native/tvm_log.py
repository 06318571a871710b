"""Forwards warnings of TVM's C++ code to Python's logging while a program compiles."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterable, Iterator

import tvm_ffi

from distir_ext.text.errors.logs import package_logger

_LOGGER = "distir_ext.tvm"

# What says nothing about the user's program, or nothing that the user could change: each is logged
# at level INFO.
_NOISE = (
    # Every R.take of the default mode; indices out of bounds are the program's own mistake.
    "Fast mode segfaults when there are out-of-bounds indices",
    # Loops that are unrolled already keep the annotation that asked for it.
    "Unknown pragma",
    # A Target("cuda") without a GPU; what is compiled for is decided behind it.
    "Unable to detect CUDA version",
)


_heard: contextvars.ContextVar[tuple[list[str], ...]] = contextvars.ContextVar(
    "distir_ext_tvm_log", default=()
)


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Collects the warnings of :func:`captured` blocks that end within this one."""
    lines: list[str] = []
    token = _heard.set((*_heard.get(), lines))
    try:
        yield lines
    finally:
        _heard.reset(token)


@contextlib.contextmanager
def captured() -> Iterator[None]:
    """Sends TVM's warnings to the logger ``distir_ext.tvm`` instead of the standard error stream.

    Other text on that stream passes through.
    """
    tvm_ffi.get_global_func("distir.support.BeginLogCapture")()
    try:
        yield
    finally:
        lines = tvm_ffi.get_global_func("distir.support.EndLogCapture")()
        log(dict.fromkeys(str(each).partition(": Warning: ")[2] for each in lines))


@contextlib.contextmanager
def dropped() -> Iterator[None]:
    """Keeps off the standard error stream what TVM warns of in every load of an executable."""
    tvm_ffi.get_global_func("distir.support.BeginLogCapture")()
    try:
        yield
    finally:
        tvm_ffi.get_global_func("distir.support.EndLogCapture")()


def log(lines: Iterable[str]) -> None:
    """Logs warnings of TVM.

    Args:
        lines: Texts of the warnings.
    """
    logger = package_logger(_LOGGER)
    for line in lines:
        for each in _heard.get():
            each.append(line)
        is_noise = line.startswith(_NOISE)
        logger.log(logging.INFO if is_noise else logging.WARNING, "TVM: %s", line)
