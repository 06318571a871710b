"""Sends messages of the native library to Python's logging, logger ``distir_ext``."""

from __future__ import annotations

import logging

import tvm_ffi


def install() -> None:
    """Registers the sinks that the native library looks up."""
    logger = logging.getLogger("distir_ext")
    tvm_ffi.register_global_func("distir.warn", logger.warning)
    tvm_ffi.register_global_func("distir.inform", logger.info)
