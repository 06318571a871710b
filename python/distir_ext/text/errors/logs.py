"""Makes loggers that escape names from outside, so that each message is one line."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from distir_ext.text.printable import message_text


def package_logger(name: str) -> logging.Logger:
    """The logger of this name, whose messages are made fit for a terminal."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape)  # which is there once, however often it is added
    return logger


@contextlib.contextmanager
def escaped_logs(name: str) -> Iterator[None]:
    """Makes what a logger of another package shows fit for a terminal: its files are others'."""
    handlers = list(logging.getLogger(name).handlers)
    for handler in handlers:
        handler.addFilter(_escape)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = message_text(record.getMessage()), ()
    return True
