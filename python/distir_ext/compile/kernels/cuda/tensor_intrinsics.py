"""Loads TVM's intrinsics for tensor cores in 3 seconds of computing instead of 25.

TVM's schedules import them where they first meet a product of half floats. They are some 250
functions in TVMScript, and for each of them the parser asks ``inspect.stack`` for the source line
of every frame below it, which searches all loaded modules. Here it gets frames without lines. Only
functions inside a class need these, and the intrinsics are none.

TVM makes them for float16, int8 and int4. The same makers give those for bfloat16, which its
schedules do not ask for (bfloat16_products.py).
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
from tvm import s_tir, tirx
from tvm.tirx.script.parser import entry

# What the schedules for tensor cores take.
_OPERANDS = ("float16", "bfloat16", "int8")

_MODULE = "tvm.s_tir.tensor_intrin"

# Rows and columns of the result, and terms, of one operation of a warp.
_TILE = (16, 16, 16)

_lock = threading.Lock()
_is_loaded = False


def load_tensor_intrinsics() -> tvm.transform.Pass:
    """A pass that changes nothing; it loads the intrinsics if kernels of a module may use them."""

    def apply(mod: tvm.IRModule, context: tvm.transform.PassContext) -> tvm.IRModule:
        del context
        if not _is_loaded and _may_use_them(mod):
            with _lock, _frames_without_lines():
                _load()
        return mod

    return tvm.transform.module_pass(apply, opt_level=0, name="LoadTensorIntrinsics")


def _load() -> None:
    """TVM's own, and what its schedule for products takes, with bfloat16 in place of float16."""
    global _is_loaded
    importlib.import_module(_MODULE)
    cuda = importlib.import_module(_MODULE + ".cuda")
    load, multiply = cuda.get_wmma_load_intrin, cuda.get_wmma_sync_intrin
    made = {
        "load_16x16x16_bf16_a_shared_dyn": load(*_TILE, "bfloat16", "shared.dyn", False, False),
        "load_16x16x16_bf16_b_trans_shared_dyn": load(*_TILE, "bfloat16", "shared.dyn", True, True),
        "sync_16x16x16_bf16bf16f32_trans": multiply(*_TILE, "bfloat16", "float32", True),
    }
    for name, (description, implementation) in made.items():
        s_tir.TensorIntrin.register(f"wmma_{name}", description, implementation, override=True)
    _is_loaded = True


def _may_use_them(mod: tvm.IRModule) -> bool:
    return any(
        isinstance(function, tirx.PrimFunc)
        and any(str(getattr(param.ty, "dtype", "")) in _OPERANDS for param in function.params)
        for function in mod.functions.values()
    )


@contextlib.contextmanager
def _frames_without_lines() -> Iterator[None]:
    """Gives this thread stack frames without source lines; others may parse classes meanwhile."""
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
    """Yields the frames of ``inspect.stack`` outside this module, without source lines."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    while frame is not None:
        code = frame.f_code
        yield inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        frame = frame.f_back
