"""Loads TVM's intrinsics for tensor cores in 3 seconds of computing instead of 25.

TVM's schedules import them where they first meet a product of half floats. They are some 250
functions in TVMScript, and for each of them the parser asks ``inspect.stack`` for the source line
of every frame below it, which searches all loaded modules. Here it gets frames without lines. Only
functions inside a class need these, and the intrinsics are none.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.script.parser import entry

# What the schedules for tensor cores take.
_OPERANDS = ("float16", "int8")

_MODULE = "tvm.s_tir.tensor_intrin"

_lock = threading.Lock()


def load_tensor_intrinsics() -> tvm.transform.Pass:
    """A pass that changes nothing; it loads the intrinsics if kernels of a module may use them."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        if _MODULE not in sys.modules and _may_use_them(mod):
            with _lock, _frames_without_lines():
                importlib.import_module(_MODULE)
        return mod

    return tvm.transform.module_pass(apply, opt_level=0, name="LoadTensorIntrinsics")


def _may_use_them(mod: tvm.IRModule) -> bool:
    return any(
        isinstance(function, tirx.PrimFunc)
        and any(str(getattr(param.ty, "dtype", "")) in _OPERANDS for param in function.params)
        for function in mod.functions.values()
    )


@contextlib.contextmanager
def _frames_without_lines() -> Iterator[None]:
    """For this thread; others may parse classes meanwhile."""
    importing = threading.get_ident()

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        if threading.get_ident() != importing:
            return inspect.stack(context)[1:]
        return list(_frames())

    original: Any = getattr(entry, "inspect", None)
    if original is not inspect:  # another version of TVM
        yield
        return
    entry.inspect = SimpleNamespace(**{**vars(inspect), "stack": stack})
    try:
        yield
    finally:
        entry.inspect = original


def _frames() -> Iterator[inspect.FrameInfo]:
    """What ``inspect.stack`` gives its caller's caller, but for source lines."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    while frame is not None:
        code = frame.f_code
        yield inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        frame = frame.f_back
