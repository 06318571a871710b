"""Checks how much GPU memory a session takes, with one and with eight groups of devices."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import numpy as np
import tvm_ffi

from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import Machine, as_json_groups
from distir_ext.native.collective_records import builtin, names
from distir_ext.params.host_array import host_array
from distir_ext.session.session import Session

_NUM_GROUPS = 8
_MOST_SHARE = 0.05  # of a GPU's memory, for eight groups


def check_memory(machine: Machine) -> Iterator[Finding]:
    """Free memory of the first GPU: before a session, with one group, with eight."""
    count = machine.workers
    before, total = _memory(machine)
    with Session(count, ccl="nccl") as session:
        ranks = list(range(count))
        orders = list(itertools.islice(itertools.permutations(ranks), _NUM_GROUPS))
        groups = [as_json_groups([order]) for order in orders]
        _all_reduce(session, groups[0])
        one, _ = _memory(machine)
        session._workers.open_groups(groups)
        for each in groups:
            _all_reduce(session, each)
        eight, _ = _memory(machine)
    yield Finding("a session with one group", _mebibytes(before - one))
    share = (before - eight) / total
    yield Finding(
        f"a session with {len(groups)} groups",
        f"{_mebibytes(before - eight)}, {share:.1%} of the GPU",
        f"at most {_MOST_SHARE:.0%} of the GPU",
        share <= _MOST_SHARE,
    )


def _all_reduce(session: Session, groups: str) -> None:
    workers = session._workers
    workers.open_groups([groups])
    x = host_array(np.ones(1024, "float32"))
    shard = x.shard([0], x.shape)
    complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
    reduce = complete(tvm_ffi.get_global_func(builtin(names.all_reduce)))
    outs = workers.hold("out", [[shard]] * workers.num_workers)
    arguments = [[shard, groups, "sum", out] for [out] in outs]
    workers.run(names.all_reduce, [reduce] * workers.num_workers, arguments)


def _memory(machine: Machine) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    machine.runtime.cudaSetDevice(0)
    machine.runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
