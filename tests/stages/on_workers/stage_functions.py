"""Functions of pipeline stages; imported by the tests, and by workers that are processes."""

from __future__ import annotations

import os
import signal
import time

import tvm
import tvm_ffi


@tvm_ffi.register_global_func("distir_test.stages.sleep", override=True)
def sleep(seconds, x, out):
    """Copies x, and takes so many seconds."""
    time.sleep(seconds)
    out.copyfrom(x)


def _is_marked(x):
    return x.numpy().ravel()[0] == 2


@tvm_ffi.register_global_func("distir_test.stages.raise", override=True)
def raise_at_two(_, x, out):
    """Raises for the microbatch that begins with 2."""
    if _is_marked(x):
        raise ValueError("a microbatch that fails")
    out.copyfrom(x)


@tvm_ffi.register_global_func("distir_test.stages.stall", override=True)
def stall_at_two(_, x, out):
    """Does not end for this microbatch."""
    time.sleep(60 if _is_marked(x) else 0)
    out.copyfrom(x)


@tvm_ffi.register_global_func("distir_test.stages.kill", override=True)
def kill_at_two(_, x, out):
    """Ends the process at this microbatch."""
    if _is_marked(x):
        os.kill(os.getpid(), signal.SIGKILL)
    out.copyfrom(x)


@tvm_ffi.register_global_func("distir_test.stages.box", override=True)
def box(x):
    """An object that holds a copy of x."""
    return tvm_ffi.convert([tvm.runtime.tensor(x.numpy())])


@tvm_ffi.register_global_func("distir_test.stages.unbox", override=True)
def unbox(held):
    """Returns the content of a box."""
    return held[0]
