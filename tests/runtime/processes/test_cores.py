"""Assignment of cores to workers; hosts on one machine share its cores."""

from __future__ import annotations

import os

import psutil
import pytest
import tvm_ffi

import distir_ext as dx
from distir_ext.native.machine import cores


@pytest.fixture
def machine(monkeypatch):
    """A machine of 8 cores, of which this process may use some."""

    def make(allowed, threads=None):
        for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        if threads is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        monkeypatch.setattr(os, "cpu_count", lambda: 8)
        monkeypatch.setattr(cores.psutil, "cpu_count", lambda logical: 8)
        monkeypatch.setattr(cores, "allowed_cores", lambda: list(allowed))

    return make


def cores_of(rank, neighbours, ranks, hosts):
    _, count, ids = cores.cores_of_worker(rank, neighbours, ranks, hosts)
    assert count == len(ids)
    return [int(each) for each in ids]


def test_one_host(machine):
    machine(range(8))
    assert [cores_of(rank, [0, 1], [0, 1], 1) for rank in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_copies_on_one_machine_share_its_cores(machine):
    machine(range(8))
    found = [cores_of(rank, [rank], [0, 1, 2, 3], 4) for rank in range(4)]
    assert found == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_copies_that_have_cores_of_their_own(machine):
    machine([2, 3])
    assert cores_of(1, [1], [0, 1, 2, 3], 4) == [2, 3]


def test_one_thread_for_each_copy(machine):
    """As torchrun states it."""
    machine(range(8), threads=1)
    assert [cores_of(rank, [rank], [0, 1, 2, 3], 4) for rank in range(4)] == [[0], [1], [2], [3]]


def halves():
    """The shares of two workers of this machine."""
    shares = [cores.share_of_cores(rank, 2) for rank in range(2)]
    return [set(map(int, ids)) for _, _, ids in shares]


def test_threads_stay_on_their_share():
    def mine():
        return tvm_ffi.Shape(sorted(os.sched_getaffinity(0)))

    before = os.sched_getaffinity(0)
    with dx.Session(2) as session:
        found = session._workers.run("cores", [tvm_ffi.convert(mine)] * 2, [[]] * 2)
    assert [set(each) for each in found] == halves()
    assert os.sched_getaffinity(0) == before


def test_processes_stay_on_their_share():
    with dx.Session(2, workers="processes") as session:
        processes = session._workers._started.hosts[0].processes
        found = [set(psutil.Process(processes[r].pid).cpu_affinity()) for r in range(2)]
    assert found == halves()
