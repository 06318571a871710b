"""Functions that worker processes run during the check: all-reduce, fail, be killed, sleep."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from distir_ext.native.collective_records import builtin, names


@tvm_ffi.register_global_func("distir.gpu_check.all_reduce", override=True)
def all_reduce(x: Any, groups: Any) -> Any:
    """Computes the sum over groups of workers, and waits for it."""
    out = tvm.runtime.tensor(np.zeros(tuple(x.shape), "float32"), x.device)
    complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
    complete(tvm_ffi.get_global_func(builtin(names.all_reduce)))(x, groups, "sum", out)
    return out


@tvm_ffi.register_global_func("distir.gpu_check.fail", override=True)
def fail(seconds: float) -> None:
    """Fails after some time."""
    time.sleep(seconds)
    raise ValueError("this worker fails on purpose")


@tvm_ffi.register_global_func("distir.gpu_check.kill", override=True)
def kill(seconds: float) -> None:
    """Ends the process after some time."""
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@tvm_ffi.register_global_func("distir.gpu_check.sleep", override=True)
def sleep(seconds: float) -> None:
    """Sleeps, so that other workers wait for this one in a collective."""
    time.sleep(seconds)
