"""Failures on a GPU: one error on the host, within seconds, which ends the session."""

from __future__ import annotations

import time

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.abi.plans import layout, transfer_plan

import distir_ext as dx
from distir_ext import WorkerError
from distir_ext.params.host_array import host_array

X = np.arange(6, dtype="float32").reshape(2, 3)


def all_reduce(runner, xs, groups="[[0,1]]", kind="sum"):
    return runner("all_reduce", xs, [groups, kind], xs[0].shape)


def fails(runner, match, **arguments):
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=match) as caught:
        all_reduce(runner, [X, X], **arguments)
    assert time.monotonic() - begin < 10
    with pytest.raises(RuntimeError, match="the session is closed"):
        all_reduce(runner, [X, X])
    return caught.value


def test_others_end_when_a_worker_raises(fresh_runner):
    runner = fresh_runner(2)
    all_reduce(runner, [X, X])
    # The first worker waits on its device for the second one, which finds its output too small.
    complete = tvm_ffi.get_global_func("distir.runtime.synchronized")
    reduce = complete(tvm_ffi.get_global_func("distir.runtime.all_reduce"))
    arguments = [
        [
            tvm.runtime.tensor(X, tvm.cuda(rank)),
            "[[0,1]]",
            "sum",
            tvm.runtime.empty((2, 3 - rank), "float32", tvm.cuda(rank)),
        ]
        for rank in range(2)
    ]
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1.*out has shape") as caught:
        runner.workers.run("test", [reduce] * 2, arguments)
    assert time.monotonic() - begin < 10
    assert caught.value.worker == 1


def test_group_that_is_not_open(fresh_runner):
    runner = fresh_runner(2)
    reduce = tvm_ffi.get_global_func("distir.runtime.all_reduce")
    arguments = [
        [
            tvm.runtime.tensor(X, tvm.cuda(rank)),
            "[[1,0]]",
            "sum",
            tvm.runtime.empty((2, 3), "float32", tvm.cuda(rank)),
        ]
        for rank in range(2)
    ]
    with pytest.raises(WorkerError, match=r"the group of devices \[1, 0\] is not open.*dx.build"):
        runner.workers.run("test", [reduce] * 2, arguments)


@pytest.mark.parametrize("absent", ["is idle", "raises"])
def test_worker_that_does_not_open_a_group(fresh_runner, monkeypatch, absent):
    monkeypatch.setenv("DISTIR_EXT_NCCL_TIMEOUT", "1")
    runner = fresh_runner(3)
    opens = tvm_ffi.get_global_func("distir.runtime.open_groups")
    raises = tvm_ffi.get_global_func("distir.runtime.all_reduce")  # without its arguments
    message = {
        "is idle": r"connecting devices \[1, 0\] did not end within 1 s",
        "raises": "worker 2 .*TypeError",
    }[absent]
    with pytest.raises(WorkerError, match=message):
        runner.workers.run(
            "test",
            [opens, opens, None if absent == "is idle" else raises],
            [[["[[1,0]]"]], [["[[1,0]]"]], []],
        )


def test_groups_of_several_partitions(fresh_runner):
    """They have groups in common, or the same members in another order, and are used in turn."""
    runner = fresh_runner(4)
    runner.workers.open_groups(["[[2,0]]"])
    xs = [np.full(1, rank, "float32") for rank in range(4)]
    partitions = [[[0, 1], [2, 3]], [[2, 3], [0, 1]], [[0, 1], [3, 2]], [[3, 2], [1, 0]]]
    for groups in [*partitions, *partitions]:
        outs = runner("all_gather", xs, [str(groups).replace(" ", ""), 0], (2,))
        for group in groups:
            for rank in group:
                np.testing.assert_array_equal(outs[rank], group)


def test_asynchronous_error(fresh_runner, inject):
    runner = fresh_runner(2)
    all_reduce(runner, [X, X])
    inject("async error")
    error = fails(runner, r"devices \[0, 1\] failed: remote process exited")
    assert error.kind == "ConnectionError"


def test_stall(fresh_runner, inject, monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_NCCL_TIMEOUT", "1")
    runner = fresh_runner(2)
    all_reduce(runner, [X, X])
    inject("stall")
    fails(runner, r"did not end within 1 s; do all workers call the same collectives")


def test_limit_of_a_session_of_threads(fresh_runner, inject):
    """Both wait for their GPUs, and it cannot be said which one the other waits for."""
    runner = fresh_runner(2, timeout=1)
    inject("stall")
    message = r"worker 0 .* timeout of 1 seconds; it waits in the queue of its GPU"
    with pytest.raises(WorkerError, match=message):
        all_reduce(runner, [X, X])


def test_abort_from_another_thread(fresh_runner, inject):
    """An interruption of the controller reaches workers that wait for their devices."""
    runner = fresh_runner(2)
    all_reduce(runner, [X, X])
    inject("stall")
    abort = tvm_ffi.get_global_func("distir.runtime.session_abort")
    runner.workers._wait = lambda job, seconds: abort(runner.workers._native, "stop") or True
    begin = time.monotonic()
    with pytest.raises(WorkerError, match="stop"):
        all_reduce(runner, [X, X])
    runner.workers.close()
    assert time.monotonic() - begin < 10


def test_new_session_after_a_failure(fresh_runner, inject, need):
    runner = fresh_runner(2)
    inject("async error")
    fails(runner, "failed")
    inject("")
    for out in all_reduce(fresh_runner(2), [X, X]):
        np.testing.assert_array_equal(out, 2 * X)


def test_dtype_that_nccl_lacks(fresh_runner):
    x = X.astype("int16")
    with pytest.raises(WorkerError, match="TypeError: NCCL cannot reduce tensors of dtype int16"):
        all_reduce(fresh_runner(1), [x], groups="[[0]]")


def test_mean_of_integers(fresh_runner):
    x = X.astype("int32")
    with pytest.raises(WorkerError, match="the mean of int32 is not defined"):
        all_reduce(fresh_runner(1), [x], groups="[[0]]", kind="mean")


def test_tensor_on_the_host(fresh_runner):
    runner = fresh_runner(1)
    reduce = tvm_ffi.get_global_func("distir.runtime.all_reduce")
    arguments = [tvm.runtime.tensor(X), "[[0]]", "sum", tvm.runtime.empty((2, 3), "float32")]
    with pytest.raises(WorkerError, match=r"x lies on the host, .* of this worker on cuda\(0\)"):
        runner.workers.run("test", [reduce], [arguments])


def test_executable_for_the_host():
    mesh = dx.Mesh((1,), ("x",))
    builder = tvm.relax.BlockBuilder()
    x = tvm.relax.Var("x", tvm.relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(tvm.relax.op.negative(x)))
    exe = dx.build(dx.annotate(builder.get(), mesh, {"x": ("x",)}))
    message = "built for CPU, the session's workers are on CUDA"
    with dx.Session(mesh, ccl="nccl") as session, pytest.raises(ValueError, match=message):
        session.load(exe)


def test_more_workers_than_devices():
    with pytest.raises(RuntimeError, match=r"rank \d+ needs CUDA device \d+, this machine has \d+"):
        dx.Session(1000, ccl="nccl")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("DISTIR_EXT_CUDA_DEVICES", "0,x", "must list numbers"),
        ("DISTIR_EXT_CUDA_DEVICES", "", "lists 0 devices, the session has 1 workers"),
        ("DISTIR_EXT_NCCL_TIMEOUT", "soon", "must be a number of seconds"),
    ],
)
def test_bad_setting(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=message):
        dx.Session(1, ccl="nccl")


def test_listed_devices(monkeypatch, need):
    need(2)
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", "1,0")
    with dx.Session(2, ccl="nccl") as session:
        keep = tvm_ffi.get_global_func("distir.runtime.keep")
        x = host_array(X)
        kept = session._workers.run("test", [keep] * 2, [[x.shard([0, 0], [2, 3])]] * 2)
        assert [str(each[0].device) for each in kept] == ["cuda:1", "cuda:0"]


def test_process_that_raises(fresh_processes):
    """The other one waits for it on its GPU."""
    runner = fresh_processes(2)
    all_reduce(runner, [X, X])
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1 .*ValueError: boom") as caught:
        run_beside(runner, "distir.test.fail_on_gpu")
    assert time.monotonic() - begin < 10
    assert caught.value.worker == 1
    with pytest.raises(RuntimeError, match="the session is closed"):
        all_reduce(runner, [X, X])


def test_processes_end_by_themselves(fresh_processes):
    """One that waits for its GPU sees that the other one has failed; nobody needs to kill it."""
    runner = fresh_processes(2)
    [host] = runner.workers._started.hosts
    host.kill = lambda: None
    with pytest.raises(WorkerError, match=r"worker 1 .*ValueError: boom"):
        run_beside(runner, "distir.test.fail_on_gpu")
    assert [process.returncode for process in host.processes.values()] == [0, 0]


def test_process_that_is_killed(fresh_processes):
    runner = fresh_processes(2)
    all_reduce(runner, [X, X])
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"worker 1 .* was ended by SIGKILL") as caught:
        run_beside(runner, "distir.test.kill_on_gpu")
    assert time.monotonic() - begin < 10
    assert caught.value.kind == "ProcessLostError"


def run_beside(runner, function, seconds=0.5):
    """An all-reduce on the first process, which waits for the second one, and that one's end."""
    x = host_array(X)
    arguments = ["all_reduce", x.shard([0, 0], X.shape), "[[0,1]]", "sum", tvm_ffi.Shape(X.shape)]
    runner.workers.run("test", ["distir.test.on_gpu", function], [arguments, [seconds]])


def test_limit_for_what_is_on_a_gpu(fresh_processes, monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_NCCL_TIMEOUT", "1")
    with pytest.raises(WorkerError, match=r"worker 0 .*did not end within 1 s; do all workers"):
        run_beside(fresh_processes(2), "distir.test.sleep_on_gpu", seconds=60)


def test_limit_of_a_session(fresh_processes):
    runner = fresh_processes(2, timeout=30)
    runner.workers.timeout = 1.0  # of what follows: to start takes longer
    begin = time.monotonic()
    message = "worker 1 .* did not end within the session's timeout of 1 seconds$"
    with pytest.raises(WorkerError, match=message) as caught:
        run_beside(runner, "distir.test.sleep_on_gpu", seconds=60)
    assert time.monotonic() - begin < 10
    assert caught.value.kind == "TimeoutError"


def test_asynchronous_error_of_processes(fresh_processes, inject, monkeypatch):
    monkeypatch.setenv("CUDA_ON_HOST_FAULT", "async error")
    runner = fresh_processes(2)
    with pytest.raises(WorkerError, match=r"devices \[0, 1\] failed: remote process") as caught:
        all_reduce(runner, [X, X])
    assert caught.value.kind == "ConnectionError"


def test_processes_share_a_gpu(fresh_processes, monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", "0,0")
    runner = fresh_processes(2)
    for out in all_reduce(runner, [X, 10 * X]):
        np.testing.assert_array_equal(out, 11 * X)
    swap = transfer_plan(layout([0, 1], [2, 1]), layout([1, 0], [2, 1]))
    outs = runner("transfer", [X, 10 * X], [swap], X.shape)
    np.testing.assert_array_equal(outs, [10 * X, X])


CAN_NOT_CONNECT = r"worker {} .* devices {} failed: unhandled system error"


def test_worker_that_can_not_connect(inject):
    """The other one waits for it inside NCCL."""
    inject("no connection")
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=CAN_NOT_CONNECT.format(1, r"\[0, 1\]")):
        dx.Session(2, ccl="nccl")
    assert time.monotonic() - begin < 10


def test_worker_that_can_not_split(fresh_runner, inject):
    """The first worker is rank 1 of the group."""
    runner = fresh_runner(2)
    inject("no connection")
    with pytest.raises(WorkerError, match=CAN_NOT_CONNECT.format(0, r"\[1, 0\]")):
        runner.workers.open_groups(["[[1,0]]"])


def test_process_that_can_not_connect(inject, monkeypatch):
    monkeypatch.setenv("CUDA_ON_HOST_FAULT", "no connection")
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=CAN_NOT_CONNECT.format(1, r"\[0, 1\]")):
        dx.Session(2, ccl="nccl", workers="processes")
    assert time.monotonic() - begin < 20


def test_threads_do_not_share_a_gpu(monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", "0,0")
    with pytest.raises(ValueError, match='"0,0"; workers can have one device together only if'):
        dx.Session(2, ccl="nccl")


def test_what_stands_in_for_nccl_refuses_a_shared_gpu(inject, monkeypatch):
    """The control of the test before: workers must say that they are different hosts."""
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", "0,0")
    monkeypatch.setenv("NCCL_HOSTID", "one for both")
    with pytest.raises(WorkerError, match="failed: invalid usage"):
        dx.Session(2, ccl="nccl", workers="processes")


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("", r"worker 0 did not start: ValueError: .* lists 0 devices, .* 1 workers on this host"),
        ("63", r"RuntimeError: the worker of rank 0 needs CUDA device 63, this machine has \d+"),
    ],
)
def test_processes_without_a_gpu(monkeypatch, devices, message):
    monkeypatch.setenv("DISTIR_EXT_CUDA_DEVICES", devices)
    with pytest.raises(RuntimeError, match=message):
        dx.Session(1, ccl="nccl", workers="processes")


def test_processes_with_different_versions_of_nccl(inject):
    """Ranks of different versions may wait for each other for ever."""
    from distir_ext.workers import host_processes

    start = host_processes.LocalProcesses.start

    def start_one_older(self, rank, *arguments, **named):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NCCL_ON_HOST_VERSION", "22703" if rank else "23203")
            start(self, rank, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_processes.LocalProcesses, "start", start_one_older)
        message = (
            r"this worker has NCCL 2.27.3 of .*, another one .* has NCCL 2.32.3 of .*; all need"
        )
        with pytest.raises(WorkerError, match=message):
            dx.Session(2, ccl="nccl", workers="processes")
