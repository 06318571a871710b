"""Loggers of this package; names from outside are escaped, so that a message is one line."""

from __future__ import annotations

import logging

from distir_ext.text.printable import message_text


def package_logger(name: str) -> logging.Logger:
    """The logger of this name, whose messages are made fit for a terminal."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape)  # which is there once, however often it is added
    return logger


def _escape(record: logging.LogRecord) -> bool:
    record.msg, record.args = message_text(record.getMessage()), ()
    return True
