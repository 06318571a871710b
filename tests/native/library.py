"""Functions of the native library that have no use in the product, called by tests.

The files of this folder are built into the library wherever it is built from a checkout
(`CMakeLists.txt`); wheels do not have them.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi

import distir_ext  # noqa: F401  (loads the native library)


def call(name: str, *args: Any) -> Any:
    """Calls ``distir.test.<name>``; arrays come back as tuples."""
    function = tvm_ffi.get_global_func(f"distir.test.{name}", allow_missing=True)
    assert function is not None, (
        f"this build of the native library has no distir.test.{name}: tests need one that is made "
        "from a checkout (make test), and wheels have no functions of tests"
    )
    return plain(function(*args))


def plain(value: Any) -> Any:
    """Arrays as tuples, text as Python's."""
    if isinstance(value, tvm_ffi.Array):
        return tuple(plain(item) for item in value)
    return str(value) if isinstance(value, str) else value
