"""Measures the bandwidth of collectives: prints it and records it in the report (--junitxml)."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest
import tvm
from tests.abi.plans import layout, transfer_plan
from tvm import relax

from distir_ext.params.host_array import host_array
from distir_ext.workers.base import ProgramPart, ProgramStep

# How often a program runs a collective.
REPEATED = 41


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


def run(workers, program, xs):
    """Runs a program on all workers; returns the first worker's result, left on its device."""
    part = ProgramPart(program, [dict(zip(workers.device_ids, xs, strict=True))], None, False)
    [outcome] = workers.run_programs("measure", [ProgramStep([part], 0, {})])
    return outcome.leaves[0][0][workers.device_ids[0]]


ON_HOST = "CUDA_ON_HOST" in os.environ
KIBIBYTES = [64] if ON_HOST else [1024, 65536]
# All GPUs with a thread each; two and four processes, on one GPU if there are no more.
WORKERS = [("threads", None), ("processes", 2), *([] if ON_HOST else [("processes", 4)])]


@pytest.mark.parametrize(("kind", "count"), WORKERS)
def test_bandwidth(target, start, num_devices, record_property, kind, count):
    count = count or num_devices
    workers = start(kind, count)
    where = f"{count} {kind} on {min(count, num_devices)} GPUs"
    ranks = list(range(count))
    groups = json.dumps([ranks])
    ring = transfer_plan(layout(ranks, [count]), layout(ranks[1:] + ranks[:1], [count]))
    cases = {
        "all_reduce": ([groups, "max"], count - 1),
        "transfer": ([ring], -REPEATED % count),
    }
    for kibibytes in KIBIBYTES:
        arrays = [host_array(np.full(kibibytes * 256, rank, "float32")) for rank in ranks]
        held = workers.hold("x", [[each.shard([0], each.shape)] for each in arrays])
        xs = [each for (each,) in held]
        for collective, (arguments, expected) in cases.items():
            seconds = {}
            for length in (1, REPEATED):
                exe = chain(collective, arguments, length, arrays[0].shape, target)
                machine = workers.load(exe, exe.jit())
                program = workers.bind(machine, "main", workers.device_ids, [0])
                run(workers, program, xs)  # warms up
                begin = time.perf_counter()
                out = run(workers, program, xs)
                seconds[length] = time.perf_counter() - begin
            np.testing.assert_array_equal(out.numpy()[:100], expected)
            each = max((seconds[REPEATED] - seconds[1]) / (REPEATED - 1), 1e-9)
            # What each link carries: a ring all-reduce sends everything twice, less one part.
            share = 2 * (count - 1) / count if collective == "all_reduce" else 1
            speed = share * kibibytes * 1024 / each / 1e9
            line = f"{collective}, {where}, {kibibytes} KiB: {each * 1e6:.1f} us, {speed:.1f} GB/s"
            record_property("bandwidth", line)
            print(line)
