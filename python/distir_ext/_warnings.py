"""Sends warnings of the native library to Python's logging, logger ``distir_ext``."""

from __future__ import annotations

import logging

import tvm_ffi


def install() -> None:
    """Registers the sink that the native library looks up."""
    tvm_ffi.register_global_func("distir.warn", logging.getLogger("distir_ext").warning)
