"""How fast collectives are: printed, and recorded in the report (--junitxml)."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from distir_ext._workers.threads import ThreadWorkers

MEBIBYTE = 2**20


def chain(collective, arguments, length, shape, target):
    """A program that runs a collective several times, each on what the one before gave."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        value = x
        for _ in range(length):
            call = relax.call_dps_packed(
                f"distir.runtime.{collective}",
                [value, *[tvm.ir.StringImm(each) for each in arguments]],
                out_ty=relax.TensorType(shape, "float32"),
            )
            value = builder.emit(call)
        builder.emit_func_output(value)
    return tvm.compile(builder.get(), target=tvm.target.Target(target))


SIZES = [1] if "CUDA_ON_HOST" in os.environ else [1, 64]


@pytest.mark.parametrize("mebibytes", SIZES)
@pytest.mark.parametrize("collective", ["all_reduce", "permute"])
def test_bandwidth(target, record_property, collective, mebibytes):
    devices = [device for device in range(8) if tvm.cuda(device).exist]
    count = len(devices)
    groups = json.dumps([devices])
    pairs = json.dumps([[i, (i + 1) % count] for i in devices])
    arguments = {"all_reduce": [groups, "max"], "permute": [groups, pairs]}[collective]
    shape = (mebibytes * MEBIBYTE // 4,)
    workers = ThreadWorkers(devices, "nccl")
    load = tvm_ffi.get_global_func("distir.runtime.load_virtual_machine")
    complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
    xs = [[tvm.runtime.tensor(np.full(shape, i, "float32"), tvm.cuda(i))] for i in devices]
    seconds = {}
    for length in (1, 41):
        program = chain(collective, arguments, length, shape, target).jit()
        machines = workers.run("load", [load] * count, [[program, None]] * count)
        functions = [complete(machine["main"]) for machine in machines]
        workers.run("warm up", functions, xs)
        begin = time.perf_counter()
        outs = workers.run("measure", functions, xs)
        seconds[length] = time.perf_counter() - begin
    expected = count - 1 if collective == "all_reduce" else -41 % count
    np.testing.assert_array_equal(outs[0].numpy()[:100], expected)
    each = max((seconds[41] - seconds[1]) / 40, 1e-9)
    workers.close()
    # What each link carries: a ring all-reduce sends everything twice, less one part.
    moved = mebibytes * MEBIBYTE * (2 * (count - 1) / count if collective == "all_reduce" else 1)
    line = f"{collective}, {count} GPUs, {mebibytes} MiB: {each * 1e6:.1f} us, "
    line += f"{moved / each / 1e9:.1f} GB/s"
    record_property("bandwidth", line)
    print(line)
