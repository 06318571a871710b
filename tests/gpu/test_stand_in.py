"""Tests that the stand-in refuses what CUDA refuses: captures, memory of other GPUs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import tvm
from tests.gpu.conftest import HOST, run_alone, unwritten


def test_a_graph_of_the_stand_in_runs_when_it_is_launched():
    """A launch runs the captured work; waits and the null stream invalidate a capture."""
    if HOST is None:
        pytest.skip("it looks at the stand-in")
    assert HOST.cudaSetDevice(0) == 0
    stream, graph, run = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    HOST.cudaStreamCreateWithFlags(ctypes.byref(stream), 0)
    x, out = (unwritten((4,), "float32").copyto(tvm.cuda(0)) for _ in range(2))
    host = np.arange(4, dtype="float32")
    x.copyfrom(host)
    HOST.cudaStreamBeginCapture(stream, 0)
    pointers = (ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(x.data_ptr()))
    assert HOST.cudaMemcpyAsync(*pointers, ctypes.c_size_t(16), 3, stream) == 0
    status = ctypes.c_int()
    HOST.cudaStreamIsCapturing(stream, ctypes.byref(status))
    assert status.value == 1
    assert HOST.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 0
    assert not (out.numpy() == host).any()
    HOST.cudaGraphInstantiate(ctypes.byref(run), graph, ctypes.c_ulonglong(0))
    for value in (host, host + 1):
        x.copyfrom(value)
        assert HOST.cudaGraphLaunch(run, stream) == 0
        assert HOST.cudaStreamSynchronize(stream) == 0
        np.testing.assert_array_equal(out.numpy(), value)
    for spoil, error in {
        lambda: HOST.cudaStreamQuery(stream): 900,
        lambda: HOST.cudaMemcpyAsync(*pointers, ctypes.c_size_t(16), 3, None): 906,
    }.items():
        HOST.cudaStreamBeginCapture(stream, 0)
        assert spoil() == error
        assert HOST.cudaStreamEndCapture(stream, ctypes.byref(graph)) == 901
    HOST.cuda_on_host_count(b"legacy stream")


def test_memory_of_peers_of_the_stand_in(inject):
    """It is reached where that was enabled, between GPUs that are joined; else the GPU breaks."""
    HOST.cudaSetDevice(0)
    stream = ctypes.c_void_p()
    HOST.cudaStreamCreateWithFlags(ctypes.byref(stream), 0)
    near, far = (unwritten((4,), "float32").copyto(tvm.cuda(device)) for device in (1, 4))
    mine = unwritten((4,), "float32").copyto(tvm.cuda(0))
    HOST.cudaSetDevice(0)

    def copy(source):
        pointers = (ctypes.c_void_p(mine.data_ptr()), ctypes.c_void_p(source.data_ptr()))
        HOST.cudaMemcpyAsync(*pointers, ctypes.c_size_t(16), 3, stream)
        return HOST.cudaStreamSynchronize(stream)

    assert HOST.cudaDeviceEnablePeerAccess(4, 0) == 217
    assert HOST.cudaDeviceEnablePeerAccess(1, 0) == 0
    assert HOST.cudaDeviceEnablePeerAccess(1, 0) == 704
    assert copy(near) == 0
    assert HOST.cudaDeviceDisablePeerAccess(1) == 0
    assert copy(near) == 700
    inject("")  # all GPUs are whole again
    assert copy(far) == 700
    inject("")


def test_a_gpu_has_no_more_peers_than_cuda_allows():
    done = run_alone(
        """
        HOST.cudaSetDevice(0)
        assert [HOST.cudaDeviceEnablePeerAccess(peer, 0) for peer in (1, 2, 3)] == [0, 0, 711]
        runner("all_reduce", [X] * 4, ["[[0,1,2,3]]", "sum"], X.shape)
        runner.workers.close()
        """,
        CUDA_ON_HOST_PEERS="2",
    )
    assert done.returncode == 0, done.stderr
