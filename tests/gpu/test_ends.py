"""Ends of sessions: no use after free, no endless wait, no exit of Python.

What stands in for CUDA and NCCL reports as misuse what would crash with real ones (conftest.py).
"""

from __future__ import annotations

import ctypes
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.gpu.conftest import DEVICES, HOST, run_alone, start_workers, unwritten
from tvm import relax

import distir_ext as dx
from distir_ext import WorkerError
from distir_ext.params.host_array import host_array

X = np.arange(6, dtype="float32").reshape(2, 3)


def all_reduce(runner, groups="[[0,1]]"):
    xs = [X] * groups.count(",") + [X]
    return runner("all_reduce", xs[: runner.workers.num_workers], [groups, "sum"], X.shape)


def count(what):
    return HOST.cuda_on_host_count(what.encode())


@pytest.mark.parametrize("library", ["that revokes", "that refuses to", "that only aborts"])
def test_several_communicators_of_one_stuck_queue(library):
    """A kernel of one is behind that of another: who waits for one before telling all hangs."""
    version = "22700" if library == "that only aborts" else "23203"
    done = run_alone(
        """
        runner("all_reduce", [X] * 4, ["[[0,1,2,3]]", "sum"], X.shape)
        runner("all_reduce", [X] * 4, ["[[0,1],[2,3]]", "sum"], X.shape)
        reduce = tvm_ffi.get_global_func("distir.runtime.all_reduce")
        outs = [unwritten(X.shape, "float32").copyto(tvm.cuda(rank)) for rank in range(4)]
        inputs = [tvm.runtime.tensor(X, tvm.cuda(rank)) for rank in range(4)]
        HOST.cuda_on_host_fault(b"stall")
        # Both are enqueued: of the group that was opened last first.
        for groups in ("[[0,1],[2,3]]", "[[0,1,2,3]]"):
            arguments = [[x, groups, "sum", out] for x, out in zip(inputs, outs)]
            runner.workers.run("enqueue", [reduce] * 4, arguments)
        begin = time.monotonic()
        wait = tvm_ffi.get_global_func("distir.runtime.synchronized")(
            tvm_ffi.get_global_func("distir.runtime.keep"))
        if os.environ["REFUSED"] == "1":  # kernels that are stuck already stay so
            time.sleep(0.2)
            HOST.cuda_on_host_fault(b"refused revocation")
        try:
            runner.workers.run("wait", [wait] * 4, [[]] * 4)
        except dx.WorkerError as error:
            assert "did not end within 1 s" in str(error), error
        runner.workers.close()
        assert time.monotonic() - begin < 6
        """,
        NCCL_ON_HOST_VERSION=version,
        REFUSED=str(int(library == "that refuses to")),
        NCCL_COMM_SPLIT_SHARE_RESOURCES="0",  # so that each has an end of its own
        DISTIR_EXT_NCCL_TIMEOUT="1",
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["23203", "22700"])
def test_abort_of_a_worker_that_is_inside_nccl(version):
    """It waits for another one to connect, which fails: nothing is freed under it."""
    done = run_alone(
        """
        runner.workers.open_groups(["[[0,1]]"])
        HOST.cuda_on_host_fault(b"stuck connection")
        x = host_array(X).shard([0, 0], X.shape)
        fails = tvm_ffi.get_global_func("distir.runtime.all_gather")  # without its arguments
        reduce = tvm_ffi.get_global_func("distir.runtime.all_reduce")
        out = unwritten(X.shape, "float32").copyto(tvm.cuda(0))
        begin = time.monotonic()
        try:
            runner.workers.run("test", [reduce, sleep_and_fail, None, None],
                               [[x, "[[0,1]]", "sum", out], [0.3], [], []])
        except dx.WorkerError as error:
            assert "boom" in str(error), error
        assert time.monotonic() - begin < 6
        runner.workers.close()
        """,
        NCCL_ON_HOST_VERSION=version,
    )
    assert done.returncode == 0, done.stderr


def test_a_broken_device_is_a_worker_error(fresh_runner, inject):
    """Nothing works on it any more, not even freeing, which TVM does in destructors."""
    runner = fresh_runner(2)
    all_reduce(runner)
    held = runner.workers.hold("x", [[host_array(X).shard([0, 0], X.shape)]] * 2)
    inject("illegal address")
    with pytest.raises(WorkerError, match=r"illegal memory access|unhandled cuda error"):
        runner("all_reduce", [X, X], ["[[0,1]]", "sum"], X.shape)
    del held
    runner.workers.close()


def test_a_model_on_a_broken_device_can_go(inject, target):
    """Memory of a broken device goes back to TVM's pool, which cannot free it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 2), "float32"))
    with builder.function("main", [x]):
        doubled = builder.emit(relax.op.add(x, relax.const(np.ones((4, 2), "float32"))))
        builder.emit_func_output(builder.emit(relax.op.sum(doubled)))
    mesh = dx.Mesh((2,), ("d",))
    mod = dx.annotate(builder.get(), mesh, {"x": ("d", None)})
    exe = dx.build(mod, target=target)
    with dx.Session(mesh, ccl="nccl") as session:
        model = session.load(exe)
        value = np.ones((4, 2), "float32")
        np.testing.assert_array_equal(model["main"](value).numpy(), 16)
        inject("illegal address")
        with pytest.raises(WorkerError):
            model["main"](value)
    del model, session
    gc.collect()


def test_workers_restore_their_device(fresh_runner):
    """A function of the user has made another device the current one."""
    if HOST is None:
        pytest.skip("it counts what the stand-in is asked for")
    runner = fresh_runner(2)
    changes = tvm_ffi.convert(lambda: HOST.cudaSetDevice(1))
    runner.workers.run("change", [changes, None], [[], []])
    for out in all_reduce(runner):
        np.testing.assert_array_equal(out, 2 * X)


def test_steps_do_without_the_null_stream_and_allocations(fresh_runner):
    """The null stream waits for all others; TVM's allocations ask the driver each time."""
    if HOST is None:
        pytest.skip("it counts what the stand-in is asked for")
    runner = fresh_runner(2)
    keep = tvm_ffi.get_global_func("distir.runtime.keep")
    wait = tvm_ffi.get_global_func("distir.runtime.synchronized")(keep)
    shard = host_array(X).shard([0, 0], X.shape)
    what = ("legacy stream", "pageable copy", "allocation", "free")
    for name in what:
        count(name)
    for _ in range(3):
        kept = runner.workers.run("test", [wait] * 2, [[shard]] * 2)
        del kept
    assert [count(name) for name in what] == [0, 0, 0, 0]


def test_large_arguments_go_through_the_staging_ring(fresh_runner):
    """The ring is smaller than they are, and comes round several times."""
    runner = fresh_runner(1)
    x = np.arange(9 << 20, dtype="uint8").reshape(9, -1)
    for rows in (9, 5, 7):
        [out] = runner("all_reduce", [x[:rows]], ["[[0]]", "max"], x[:rows].shape)
        np.testing.assert_array_equal(out, x[:rows])


def test_a_full_staging_ring_is_waited_for_anew(monkeypatch, fresh_runner):
    """The time that one wait may take does not begin with an earlier one."""
    if HOST is None:
        pytest.skip("it calls functions of the stand-in")
    monkeypatch.setenv("DISTIR_EXT_NCCL_TIMEOUT", "2")
    runner = fresh_runner(1)
    x = np.arange(32 << 20, dtype="uint8")
    shard = host_array(x).shard([0], x.shape)
    first, second = (unwritten((1 << 28,), "uint8").copyto(tvm.cuda(0)) for _ in range(2))
    pointers = [ctypes.c_void_p(each.data_ptr()) for each in (first, second)]

    def keep_busy():
        for _ in range(10):  # for some tenths of a second
            HOST.cudaMemcpyAsync(*pointers, ctypes.c_size_t(1 << 28), 3, current_stream(0))

    keep = tvm_ffi.get_global_func("distir.runtime.keep")
    for pause in (2.5, 0):
        runner.workers.run("busy", [tvm_ffi.convert(keep_busy)], [[]])
        runner.workers.run("copy", [keep], [[shard]])
        time.sleep(pause)


def test_arguments_may_change_when_a_call_has_returned(fresh_runner, inject):
    """Copies read their source when it is their turn; what they read is pinned and stays."""
    runner = fresh_runner(2)
    x = X.copy()
    shard = host_array(x).shard([0, 0], X.shape)
    [[first], [second]] = runner.workers.hold("x", [[shard]] * 2)
    x[:] = -1
    host = tvm_ffi.get_global_func("distir.runtime.copy_to_host")
    wait = tvm_ffi.get_global_func("distir.runtime.synchronized")(
        tvm_ffi.get_global_func("distir.runtime.keep")
    )
    runner.workers.run("wait", [wait] * 2, [[]] * 2)
    for each in (first, second):
        np.testing.assert_array_equal(host(each).numpy(), X)


def test_a_second_session_on_the_same_gpus_is_refused(fresh_runner, need):
    runner = fresh_runner(2)
    message = r"CUDA device 0 is used by another session of this process.*close that session first"
    with pytest.raises(RuntimeError, match=message):
        dx.Session(1, ccl="nccl")
    all_reduce(runner)
    runner.workers.close()
    dx.Session(1, ccl="nccl").close()


def test_gpus_that_are_waited_for_are_had_by_one_session(fresh_runner, monkeypatch, need):
    """While a session waits for the GPU of one that ends, another one takes a free one."""
    need(3)
    monkeypatch.setenv(DEVICES, "1,2")
    failing = fresh_runner(2)
    late = tvm_ffi.convert(lambda: time.sleep(2))
    fails = tvm_ffi.get_global_func("distir.runtime.all_gather")  # without its arguments

    def fail():
        with pytest.raises(WorkerError):
            failing.workers.run("test", [late, fails], [[], []])

    with ThreadPoolExecutor(2) as pool:
        failed = pool.submit(fail)
        time.sleep(0.5)
        monkeypatch.setenv(DEVICES, "0,1")
        waiting = pool.submit(dx.Session, 2, ccl="nccl")
        time.sleep(0.5)
        monkeypatch.setenv(DEVICES, "0")
        with dx.Session(1, ccl="nccl"):
            assert not waiting.done()
            failed.result()
            failing.workers.close()
            with pytest.raises(RuntimeError, match="CUDA device 0 is used by another session"):
                waiting.result().close()


def test_sessions_on_other_gpus_run_together(fresh_runner, monkeypatch, need):
    need(4)
    runner = fresh_runner(2)
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", "2,3")
    other = start_workers("threads", 2)
    all_reduce(runner)
    other.close()


def current_stream(device):
    """TVM's current one of this thread, which is the worker's own."""
    library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
    library.TVMFFIEnvGetStream.restype = ctypes.c_void_p
    return ctypes.c_void_p(library.TVMFFIEnvGetStream(tvm.cuda(0).dlpack_device_type(), device))


def test_collectives_in_a_cuda_graph_are_refused(fresh_runner):
    """Before they spoil the capture."""
    if HOST is None:
        pytest.skip("it captures by functions of the stand-in")
    runner = fresh_runner(2)
    all_reduce(runner)
    outs = [unwritten(X.shape, "float32").copyto(tvm.cuda(rank)) for rank in range(2)]
    reduce = tvm_ffi.get_global_func("distir.runtime.all_reduce")
    found = []

    def capture(x, out):
        stream, graph = current_stream(0), ctypes.c_void_p()
        assert HOST.cudaStreamBeginCapture(stream, 0) == 0
        try:
            reduce(x, "[[0,1]]", "sum", out)
        finally:
            found.append(HOST.cudaStreamEndCapture(stream, ctypes.byref(graph)))

    x = host_array(X).shard([0, 0], X.shape)
    with pytest.raises(WorkerError, match="all_reduce cannot be captured into a CUDA graph"):
        runner.workers.run("capture", [tvm_ffi.convert(capture), None], [[x, outs[0]], []])
    assert found == [0]


def test_programs_with_cuda_graphs_are_not_built():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.negative(x)))
    mod = dx.annotate(builder.get(), dx.Mesh((1,), ("d",)), {"x": ("d",)})
    with (
        tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": True}),
        pytest.raises(ValueError, match=r"relax\.backend\.use_cuda_graph"),
    ):
        dx.build(mod, target={"kind": "cuda", "arch": "sm_80"})


def test_groups_share_the_memory_of_their_session():
    """Eight groups take no more than one."""
    done = run_alone(
        """
        import itertools, json
        pairs = list(itertools.combinations(range(4), 2))
        runner.workers.open_groups([json.dumps([list(p)]).replace(" ", "") for p in pairs])
        runner.workers.open_groups(["[[1,0]]", "[[2,0]]"])
        import ctypes
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        HOST.cudaSetDevice(0)
        HOST.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        assert total.value - free.value < 2 << 20, total.value - free.value
        runner.workers.close()
        """,
        NCCL_ON_HOST_BUFFER=str(1 << 20),
        CUDA_ON_HOST_MEMORY=str(4 << 20),
    )
    assert done.returncode == 0, done.stderr


def test_processes_finalise_what_they_have_opened(fresh_processes, monkeypatch, tmp_path):
    """The folder of a communicator goes when all of its ranks have left it."""
    if HOST is None:
        pytest.skip("it looks at files of the stand-in")
    monkeypatch.setenv("CUDA_ON_HOST_FOLDER", str(tmp_path))
    runner = fresh_processes(2)
    all_reduce(runner)
    runner.workers.open_groups(["[[1,0]]"])
    assert list(tmp_path.glob("nccl-*"))
    begin = time.monotonic()
    runner.workers.close()
    assert time.monotonic() - begin < 5
    assert not list(tmp_path.glob("nccl-*"))
