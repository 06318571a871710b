"""Sends messages of the native library to Python's logging, logger ``distir_ext``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import tvm_ffi

from distir_ext.text.errors.logs import package_logger

_heard: ContextVar[tuple[list[str], ...]] = ContextVar("distir_ext_warnings", default=())


def install() -> None:
    """Registers the sink that the native library looks up."""
    tvm_ffi.register_global_func("distir.warn", warn)


def warn(message: str) -> None:
    """Logs a message of the native library."""
    for each in _heard.get():
        each.append(str(message))
    # Without a handler, Python prints the message alone, among those of other libraries.
    package_logger("distir_ext").warning("distir_ext: %s", message)


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collects the messages of the native library within the block."""
    messages: list[str] = []
    token = _heard.set((*_heard.get(), messages))
    try:
        yield messages
    finally:
        _heard.reset(token)


@contextmanager
def silenced() -> Iterator[None]:
    """Drops what the native library says to this thread meanwhile: trials repeat what is known."""
    logger, here = logging.getLogger("distir_ext"), threading.get_ident()

    def drop(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(drop)
    try:
        yield
    finally:
        logger.removeFilter(drop)
