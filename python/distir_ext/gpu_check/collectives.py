"""Checks results and bandwidths of collectives over all GPUs.

The bandwidth is that of nccl-tests (doc/PERFORMANCE.md there): bytes per second, times what each
link carries of them: 2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather and a
reduce-scatter, whose bytes are those of the gathered tensor. Of large tensors it has a range, which
follows from what joins the GPUs (links.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm_ffi

from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.links import Link, bus_range, slowest_link
from distir_ext.gpu_check.machine import Machine, as_json_groups
from distir_ext.native.collective_records import builtin, names
from distir_ext.params.host_array import host_array
from distir_ext.session.session import Session

_DTYPES = ("float16", "bfloat16", "float32", "int32")
_REPEATED = 20

# Smaller ones are bound by latency.
_LARGE = 64 << 20


def check_collectives(machine: Machine) -> Iterator[Finding]:
    """Small integers, which are exact in every type; then large tensors, timed."""
    with Session(machine.workers, ccl="nccl") as session:
        bench = _Bench(session, machine)
        for dtype in _DTYPES:
            for name in bench.shapes:
                yield bench.correct(name, dtype)
        link = machine.pick(slowest_link, _no_link)(machine.workers, machine.names)
        yield Finding("the slowest link between them", link if isinstance(link, str) else link.name)
        for kibibytes in machine.pick((64, 1024, 65536, 1 << 20), (64,)):
            for name in bench.shapes:
                yield bench.speed(name, kibibytes << 10, link)


def _no_link(count: int, names: Sequence[str]) -> str:
    del count, names
    return "simulated"


class _Bench:
    def __init__(self, session: Session, machine: Machine) -> None:
        self.workers = session._workers
        self.machine = machine
        self.count = machine.workers
        self.groups = as_json_groups([range(self.count)])
        self.workers.open_groups([self.groups])
        # Elements of operand and result, in those of a shard; share of the bytes on each link.
        n = self.count
        self.shapes = {
            names.all_reduce: (n, n, 2 * (n - 1) / n),
            names.all_gather: (1, n, (n - 1) / n),
            names.reduce_scatter: (n, 1, (n - 1) / n),
        }

    def _function(self, name: str, repeated: int = 1) -> Any:
        run = tvm_ffi.get_global_func(builtin(name))
        arguments = {
            names.all_reduce: [self.groups, "sum"],
            names.all_gather: [self.groups, 0],
            names.reduce_scatter: [self.groups, 0, "sum"],
        }[name]
        repeat = tvm_ffi.get_global_func("distir.runtime.repeated")(run, repeated)
        return tvm_ffi.get_global_func("distir.runtime.synchronized")(repeat), arguments

    def _run(self, name: str, xs: list[Any], outs: list[Any], repeated: int = 1) -> float:
        function, extra = self._function(name, repeated)
        arguments = [[x, *extra, out] for [x], [out] in zip(xs, outs, strict=True)]
        begin = time.perf_counter()
        self.workers.run(name, [function] * self.count, arguments)
        return time.perf_counter() - begin

    def _tensors(self, arrays: list[Any]) -> list[Any]:
        hosts = [host_array(each) for each in arrays]
        return self.workers.hold("x", [[each.shard([0], each.shape)] for each in hosts])

    def correct(self, name: str, dtype: str) -> Finding:
        """Checks the numbers of a collective."""
        before, after, _ = self.shapes[name]
        numpy_dtype = getattr(ml_dtypes, dtype, dtype)
        rng = np.random.default_rng(0)
        values = [rng.integers(0, 4, 24 * before).astype(numpy_dtype) for _ in range(self.count)]
        outs = self._tensors([np.zeros(24 * after, numpy_dtype)] * self.count)
        self._run(name, self._tensors(values), outs)
        total = np.sum([each.astype("float64") for each in values], axis=0)
        wrong = 0
        for rank, [out] in enumerate(outs):
            actual = host_array(tvm_ffi.get_global_func("distir.runtime.copy_to_host")(out))
            expected = {
                names.all_reduce: total,
                names.all_gather: np.concatenate(values).astype("float64"),
                names.reduce_scatter: total[24 * rank : 24 * (rank + 1)],
            }[name]
            found = _numpy(actual, dtype)
            wrong += int((found != expected).sum())
        what = f"{name} of {dtype} over {self.count} GPUs"
        return Finding(what, f"{wrong} wrong numbers", "0", wrong == 0)

    def speed(self, name: str, num_bytes: int, link: Link | str) -> Finding:
        """The time of one, from the difference of one and many in a step.

        Args:
            name: Name of the collective.
            num_bytes: Of the larger tensor.
            link: The slowest between the GPUs, or why it is not known.
        """
        before, after, share = self.shapes[name]
        elements = max(num_bytes // 4 // self.count, 1)
        xs = self._tensors([np.zeros(elements * before, "float32")] * self.count)
        outs = self._tensors([np.zeros(elements * after, "float32")] * self.count)
        self._run(name, xs, outs)
        one = min(self._run(name, xs, outs) for _ in range(3))
        many = min(self._run(name, xs, outs, _REPEATED + 1) for _ in range(3))
        each = max((many - one) / _REPEATED, 1e-9)
        algorithm = elements * self.count * 4 / each / 1e9
        bus = algorithm * share
        what = f"{name}, {num_bytes >> 10} KiB over {self.count} GPUs"
        found = f"{each * 1e6:.1f} us, {algorithm:.2f} GB/s, bus {bus:.2f} GB/s"
        if num_bytes < _LARGE or isinstance(link, str):
            return Finding(what, found)
        least, most = bus_range(link, name, self.count)
        wanted = f"bus {least:.0f} to {most:.0f} GB/s: {link.name}"
        return Finding(what, found, wanted, least <= bus <= most)


def _numpy(array: Any, dtype: str) -> Any:
    raw = np.from_dlpack(array.owner) if dtype != "bfloat16" else _bfloat16(array.owner)
    return raw.astype("float64")


def _bfloat16(tensor: Any) -> Any:
    return tensor.numpy().view(ml_dtypes.bfloat16)
