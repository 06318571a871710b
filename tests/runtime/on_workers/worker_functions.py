"""Functions that tests run on workers; imported by the tests, and by workers that are processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np
import tvm_ffi  # and not TVM, which would take seconds of processor time in each worker

from distir_ext.params.host_array import host_array, numpy_view


def new_tensor(shape, dtype):
    """Of memory that no other process sees."""
    make = tvm_ffi.get_global_func("distir.runtime.new_host_tensor")
    return make(tvm_ffi.Shape(tuple(shape)), str(dtype))


def poison(tensor):
    """Fills a tensor with bytes that no test expects, so that unwritten elements show."""
    size = numpy_view(tensor).nbytes
    ctypes.memset(host_array(tensor).source.data_ptr(), 0xA5, size)


@tvm_ffi.register_global_func("distir.test.run_builtin", override=True)
def run_builtin(name, *arguments):
    """A builtin of the runtime on this worker; its outputs are allocated here and returned.

    The last two arguments are the shape of the output (None if there is none, a list if there are
    several) and its dtype.
    """
    *arguments, shapes, dtype = arguments
    several = isinstance(shapes, list | tvm_ffi.Array)
    outputs = []
    for shape in shapes if several else [] if shapes is None else [shapes]:
        outputs.append(new_tensor(shape, dtype))
        poison(outputs[-1])
    tvm_ffi.get_global_func(f"distir.runtime.{name}")(*arguments, *outputs)
    return outputs if several else next(iter(outputs), None)


@tvm_ffi.register_global_func("distir.test.run_builtins", override=True)
def run_builtins(calls):
    """One builtin after the other; their outputs."""
    return [run_builtin(*call) for call in calls]


@tvm_ffi.register_global_func("distir.test.all_reduce_in_place", override=True)
def all_reduce_in_place(x, groups, reduction):
    tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, groups, reduction, x)
    return x


@tvm_ffi.register_global_func("distir.test.write_to_all", override=True)
def write_to_all(text):
    """Writes to the standard streams; the numbers of those that are there."""
    there = [number for number in range(3) if Path(f"/proc/self/fd/{number}").exists()]
    for number in there[1:]:
        os.write(number, text.encode())
    return tvm_ffi.Shape(tuple(there))


@tvm_ffi.register_global_func("distir.test.fail_with", override=True)
def fail_with(length):
    """Fails with a text of so many characters."""
    raise ValueError("x" * length)


@tvm_ffi.register_global_func("distir.test.fail_saying", override=True)
def fail_saying(text):
    raise ValueError(text)


@tvm_ffi.register_global_func("distir.test.sleep_and_fail", override=True)
def sleep_and_fail(seconds):
    time.sleep(seconds)
    raise ValueError("boom")


@tvm_ffi.register_global_func("distir.test.sleep", override=True)
def sleep(seconds):
    time.sleep(seconds)


@tvm_ffi.register_global_func("distir.test.kill_after", override=True)
def kill_after(seconds, number):
    """The worker's process gets a signal while it is in this function."""
    time.sleep(seconds)
    os.kill(os.getpid(), number)
    time.sleep(60)


@tvm_ffi.register_global_func("distir.test.exit_with", override=True)
def exit_with(status):
    os._exit(status)


@tvm_ffi.register_global_func("distir.test.multiply", override=True)
def multiply(x, w, out):
    numpy_view(out)[...] = numpy_view(x) * numpy_view(w)


@tvm_ffi.register_global_func("distir.test.kill_self", override=True)
def kill_self(x, w, out):
    os.kill(os.getpid(), signal.SIGKILL)


@tvm_ffi.register_global_func("distir.test.stall", override=True)
def stall(x, w, out):
    time.sleep(60)


@tvm_ffi.register_global_func("distir.test.process", override=True)
def process():
    """The worker's process, its parent, its group and its session of processes."""
    return tvm_ffi.Shape((os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0)))


@tvm_ffi.register_global_func("distir.test.not_a_value", override=True)
def not_a_value():
    return tvm_ffi.get_global_func("distir.test.process")


@tvm_ffi.register_global_func("distir.test.kill_other", override=True)
def kill_other(pid):
    os.kill(pid, signal.SIGKILL)
    time.sleep(60)


@tvm_ffi.register_global_func("distir.test.cut_off", override=True)
def cut_off():
    """Ends the worker's connections to other hosts, but not that to the controller."""
    for descriptor in json.loads(sys.argv[1])["peers"].values():
        with socket.socket(fileno=os.dup(descriptor)) as stream:
            stream.shutdown(socket.SHUT_RDWR)
    time.sleep(60)


@tvm_ffi.register_global_func("distir.test.run_shared", override=True)
def run_shared(calls):
    """Collectives, one after the other, whose results stay: the results, and where they lie."""
    results = [tvm_ffi.get_global_func(f"distir.runtime.{name}")(*rest) for name, *rest in calls]
    return [results, [str(host_array(each).source.data_ptr()) for each in results]]


@tvm_ffi.register_global_func("distir.test.run_seen", override=True)
def run_seen(name, x, arguments, shape, x_is_seen, out_is_seen):
    """A builtin on an operand, and with a result, that other processes see or do not see."""

    def new(shape, is_seen):
        if is_seen:
            make = tvm_ffi.get_global_func("distir.runtime.new_tensor")
            return make(tvm_ffi.Shape(tuple(shape)), str(x.dtype))
        return new_tensor(shape, x.dtype)

    operand = new(x.shape, x_is_seen)
    numpy_view(operand)[...] = numpy_view(x)
    out = new(shape, out_is_seen)
    poison(out)
    tvm_ffi.get_global_func(f"distir.runtime.{name}")(operand, *arguments, out)
    after = numpy_view(operand).copy()
    poison(operand)  # nobody reads it any more
    return [out, bool((after == numpy_view(x)).all())]


@tvm_ffi.register_global_func("distir.test.variable", override=True)
def variable(name):
    """Of the worker's environment."""
    return os.environ.get(name, "")


@tvm_ffi.register_global_func("distir.test.reduce_ones", override=True)
def reduce_ones(count):
    """The sum of ones of two workers."""
    x = tvm_ffi.from_dlpack(np.ones(count, "float32"))
    out = new_tensor((count,), "float32")
    tvm_ffi.get_global_func("distir.runtime.all_reduce")(x, "[[0,1]]", "sum", out)
    return float(numpy_view(out)[0])


@tvm_ffi.register_global_func("distir.test.say", override=True)
def say(content):
    """Writes to the controller what the worker itself would not."""
    descriptor = json.loads(sys.argv[1])["channel"]
    with socket.socket(fileno=os.dup(descriptor)) as stream:
        stream.sendall(content.encode("latin-1"))
