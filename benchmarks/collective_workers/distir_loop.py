"""Runs one of this project's collectives many times on a worker; imported by worker processes.

The loop is a program of the virtual machine, as compiled programs are: a call after the other.
"""

from __future__ import annotations

import functools
import json
import threading
import time

import tvm
import tvm_ffi
from tvm import relax

from collective_workers.cases import COPY, check


def _ring(num_workers: int) -> str:
    """The plan by which each worker sends its tensor to the next one, as LowerCCL states it."""
    ranks = list(range(num_workers))

    def layout(device_ids: list[int]) -> dict:
        """One block of the only dimension on each of the devices, in their order."""
        return {
            "devices": [[device, 1, 1] for device in device_ids],
            "dims": [[[1, num_workers]]],
        }

    source, target = layout(ranks), layout(ranks[1:] + ranks[:1])
    return json.dumps({"channel": 0, "shape": [0], "source": source, "target": target})


def _call(collective: str, num_workers: int) -> tuple[str, list]:
    """The builtin, and its arguments between operand and result."""
    everybody = json.dumps([list(range(num_workers))])
    alone = json.dumps([[rank] for rank in range(num_workers)])
    return {
        "all_reduce": ("all_reduce", [everybody, "sum"]),
        "all_gather": ("all_gather", [everybody, 0]),
        "reduce_scatter": ("reduce_scatter", [everybody, 0, "sum"]),
        "all_to_all": ("all_to_all", [everybody, 0, 0]),
        "permute": ("transfer", [_ring(num_workers)]),
        COPY: ("slice", [alone, 0]),
    }[collective]


@functools.lru_cache
def _machine(collective: str, num_workers: int, calls: int, thread: int):
    """Returns a program of (operand, result) with `calls` collectives, cached by thread."""
    builder = relax.ExecBuilder()
    name, constants = _call(collective, num_workers)
    with builder.function("main", num_inputs=2):
        middle = [
            builder.imm(each) if isinstance(each, int) else builder.convert_constant(each)
            for each in constants
        ]
        for _ in range(calls):
            builder.emit_call(
                f"distir.runtime.{name}", [builder.r(0), *middle, builder.r(1)], builder.r(2)
            )
        builder.emit_ret(builder.r(1))
    return relax.VirtualMachine(builder.get(), tvm.cpu())["main"]


@tvm_ffi.register_global_func("distir.benchmark.check", override=True)
def check_result(x, out, collective, size, num_workers, rank):
    """Raises ValueError where one call does not give the right result."""
    _machine(collective, num_workers, 1, threading.get_ident())(x, out)
    check(out.numpy(), collective, size, num_workers, rank)


@tvm_ffi.register_global_func("distir.benchmark.seconds", override=True)
def seconds(x, out, collective, num_workers, calls):
    """Times this many calls, after a first call on which all workers meet."""
    first, rest = (_machine(collective, num_workers, n, threading.get_ident()) for n in (1, calls))
    first(x, out)
    start = time.perf_counter()
    rest(x, out)
    return time.perf_counter() - start
