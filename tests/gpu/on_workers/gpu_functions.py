"""Functions that tests run on workers with GPUs; imported by the tests, and by processes."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import numpy as np
import tvm
import tvm_ffi

from distir_ext.params.host_array import host_array


def unwritten(shape, dtype):
    """A tensor on the host with bytes that no test expects."""
    tensor = tvm.runtime.empty(tuple(shape), dtype)
    size = int(np.prod(tuple(shape))) * np.dtype(host_array(tensor).dtype).itemsize
    ctypes.memset(tensor.data_ptr(), 0xA5, size)
    return tensor


@tvm_ffi.register_global_func("distir.test.on_gpu", override=True)
def on_gpu(name, x, *arguments):
    """A builtin of the runtime on a tensor of this worker; its output, once it is there.

    The last of the arguments is the output's shape.
    """
    *arguments, shape = arguments
    output = unwritten(shape, x.dtype).copyto(x.device)
    complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
    complete(tvm_ffi.get_global_func(f"distir.runtime.{name}"))(x, *arguments, output)
    return output


@tvm_ffi.register_global_func("distir.test.fail_on_gpu", override=True)
def fail_on_gpu(seconds):
    time.sleep(seconds)
    raise ValueError("boom")


@tvm_ffi.register_global_func("distir.test.kill_on_gpu", override=True)
def kill_on_gpu(seconds):
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


@tvm_ffi.register_global_func("distir.test.sleep_on_gpu", override=True)
def sleep_on_gpu(seconds):
    time.sleep(seconds)
