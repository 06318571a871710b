"""Sends messages of the native library to Python's logging, logger ``distir_ext``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import tvm_ffi

from distir_ext.text.logs import package_logger


def install() -> None:
    """Registers the sink that the native library looks up."""
    logger = package_logger("distir_ext")

    # Without a handler, Python prints the message alone, among those of other libraries.
    def warn(message: str) -> None:
        logger.warning("distir_ext: %s", message)

    tvm_ffi.register_global_func("distir.warn", warn)


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
