"""Sessions over two hosts, which are two agents of this one: equal bits, parameters, failures."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tvm
import tvm_ffi
from safetensors.numpy import save_file
from tests.abi.plans import layout, transfer_plan
from tests.runtime.lateness import check_in_time, interrupted_late, reported_late
from tests.stages.programs import chain, chain_result, chain_values
from tests.stages.timelines import check_order
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext import cli
from distir_ext.demo.forum import forum_case, megatron_case
from distir_ext.session.session import Session, WorkerError
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import receive, send
from distir_ext.wire.tokens import TOKEN_VARIABLE
from distir_ext.workers.hosts.remote_processes import RemoteProcesses
from distir_ext.workers.lines import Lines
from distir_ext.workers.processes import ProcessWorkers

# Ranks 0 and 1 are on the first host, 2 and 3 on the second.
MIXED = json.dumps([[0, 2, 1]])
ACROSS = "[[0,1]]"


def hosts_of(agents, **arguments):
    return dx.Hosts([agent.address for agent in agents], **arguments)


@pytest.fixture(scope="module")
def session(agents):
    hosts = hosts_of(agents)
    with Session(4, workers=hosts, timeout=60, imports=["worker_functions"]) as opened:
        yield opened


@pytest.mark.parametrize("size", [3, 700_001])
def test_messages_have_the_bits_of_threads(session, run_on, runner_on, size):
    """Small ones, and many in parts; members on both hosts, two of them on one."""
    rng = np.random.default_rng(size)
    scale = [10.0 ** rng.integers(-4, 4, size) for _ in range(3)]
    flat = [(rng.standard_normal(size) * each).astype("float32") for each in scale]
    wide = [each[: size // 3 * 3].reshape(3, -1).copy() for each in flat]
    cases = [
        ("all_reduce", flat, (MIXED, "sum"), (size,)),
        ("all_gather", wide, (MIXED, 1), (3, size // 3 * 3)),
        ("reduce_scatter", wide, (MIXED, 0, "sum"), (1, size // 3)),
        ("all_to_all", wide, (MIXED, 0, 1), (1, size // 3 * 3)),
    ]
    for name, xs, args, shape in cases:
        expected = runner_on("threads", 3)(name, xs, args, [shape] * 3)
        actual = run_on(session._workers, 3)(name, xs, args, [shape] * 3)
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_array_equal(one.view("uint32"), other.view("uint32"))


def test_all_send_very_much_before_they_receive(session, run_on):
    """Each of four workers sends 16 MB to one on the other host, more than sockets take."""
    count = 4_000_000
    plan = transfer_plan(layout([0, 1, 2, 3], [4]), layout([2, 3, 0, 1], [4]), channel=5)
    x = [np.random.default_rng(rank).standard_normal(count).astype("float32") for rank in range(4)]
    outs = run_on(session._workers).calls([("transfer", (each, plan), (count,)) for each in x])
    for rank in range(4):
        np.testing.assert_array_equal(outs[rank], x[(rank + 2) % 4])


@pytest.mark.parametrize("make_case", [forum_case, megatron_case], ids=["forum", "megatron"])
def test_partitioned_programs_have_the_bits_of_threads(session, make_case):
    case = make_case()
    exe = dx.build(case.annotate(case.module))
    inputs = case.inputs.values()
    with Session(4) as threads:
        expected = threads.load(exe, case.weights)[case.function](*inputs).numpy()
    model = session.load(exe, case.weights)
    for _ in range(2):
        actual = model[case.function](*inputs).numpy()
        np.testing.assert_array_equal(actual.view("uint32"), expected.view("uint32"))


@pytest.mark.parametrize("interleave", [1, 2])
def test_microbatches_go_through_hosts(session, interleave):
    """The first stage is on one host, the second on the other."""
    mesh = dx.Mesh((2, 2), ("pp", "tp"))
    widths = [8, 16, 8, 16, 8]
    plan = {r"w[02]": (None, "tp"), r"w[13]": ("tp", None)}
    mod = dx.annotate(chain(widths, rows="n"), mesh, plan)
    exe = dx.build(dx.transform.AssignStages(mesh, "pp", interleave=interleave)(mod))
    x, weights = chain_values(widths, rows=12)
    main = session.load(exe, weights)["main"]
    for schedule in ("gpipe", "1f1b") if interleave == 1 else ("interleaved",):
        pipeline = main.pipeline(6, schedule=schedule)
        y = pipeline(x).numpy()
        np.testing.assert_allclose(y, chain_result(x, weights), rtol=1e-4, atol=1e-5)
        check_order(pipeline.timeline, pipeline.schedule)  # both hosts have the clock of this one


def test_demonstration(agents, capsys, monkeypatch):
    arguments = ["demo", "--case", "forum", "--hosts", *(agent.address for agent in agents)]
    assert cli.main(arguments) == 0
    assert "2 workers (on 2 hosts)" in capsys.readouterr().out
    monkeypatch.setenv(TOKEN_VARIABLE, "not the token of these hosts")
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert f"distir demo: no session on host {agents[0].address}: " in error
    assert "has another token" in error


@pytest.fixture(scope="module")
def sums():
    """main(x) = x + w, by rows on four devices."""

    @I.ir_module
    class Sums:
        @R.function
        def main(x: R.Tensor((8, 4), "float32"), w: R.Tensor((8, 4), "float32")):
            R.func_attr({"num_input": 1})
            y = R.add(x, w)
            return y

    mesh = dx.Mesh((4,), ("a",))
    return dx.build(dx.annotate(Sums, mesh, {"x": ("a", None), "w": ("a", None)}))


def directories(agents):
    return [Path(f"/proc/{agent.process.pid}/cwd").readlink() for agent in agents]


def test_each_host_reads_its_own_copy(agents, session, sums, tmp_path):
    """A relative path: here is no such file, and both hosts' files differ in their elements."""
    one = np.arange(32, dtype="float32").reshape(8, 4)
    for sign, directory in zip((1, -1), directories(agents), strict=True):
        save_file({"w": sign * one}, directory / "own.safetensors")
    assert not Path("own.safetensors").exists()
    model = session.load(sums, params="own.safetensors")
    expected = np.concatenate([one[:4], -one[4:]])
    np.testing.assert_array_equal(model["main"](np.zeros((8, 4), "float32")).numpy(), expected)


def test_files_that_are_missing_or_differ_on_a_host(agents, session, sums):
    weight = np.zeros((8, 4), "float32")
    first, second = directories(agents)
    save_file({"w": weight}, first / "some.safetensors")
    with pytest.raises(OSError, match=f"on host {agents[1].address}: .*some.safetensors"):
        session.load(sums, params="some.safetensors")
    save_file({"w": weight[:4]}, second / "some.safetensors")
    match = (
        rf'different weights "w": float32 \[8, 4\] in some.safetensors .* {agents[0].address}, '
        rf"float32 \[4, 4\] in some.safetensors .* {agents[1].address}"
    )
    with pytest.raises(ValueError, match=match):
        session.load(sums, params="some.safetensors")
    save_file({"v": weight, "w": weight}, second / "some.safetensors")
    with pytest.raises(ValueError, match=r'weights "v": none on host .*, float32 \[8, 4\] in some'):
        session.load(sums, params="some.safetensors")
    (second / "some.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=f"on host {agents[1].address}: .*is damaged"):
        session.load(sums, params="some.safetensors")
    assert not session.closed


def start(agents, timeout=None):
    hosts = hosts_of(agents, lost_after=5)
    return ProcessWorkers(range(2), "cpu", timeout, ["worker_functions"], hosts)


X = tvm.runtime.tensor(np.ones(4, "float32"))
REDUCE = ["all_reduce", X, ACROSS, "sum", tvm_ffi.Shape((4,)), "float32"]


def pids_of(workers):
    found = workers.run("pids", ["distir.test.process"] * 2, [[]] * 2)
    return [int(each[0]) for each in found]


def check_gone(pids):
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


HOW = {
    "raise": ("distir.test.sleep_and_fail", [0.05], "ValueError", "boom"),
    "kill": (
        "distir.test.kill_after",
        [0.05, int(signal.SIGKILL)],
        "ProcessLostError",
        "was ended by SIGKILL",
    ),
    "stall": ("distir.test.sleep", [60.0], "TimeoutError", "timeout of 2 seconds"),
    "mismatch": ("distir.test.run_builtin", [*REDUCE[:3], "max", *REDUCE[4:]], "ValueError",
                 "disagree"),
    "skip": ("distir.runtime.keep", [], "ValueError",
             r"all_reduce over devices \[0, 1\] can never complete, .* disagree; device 1 has "
             "finished its program"),
}  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_failure_ends_the_step_on_all_hosts(agents, how):
    function, arguments, kind, match = HOW[how]
    workers = start(agents, timeout=30.0)
    pids = pids_of(workers)
    workers.timeout = 2.0 if how == "stall" else 30.0
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=match) as caught:
        workers.run("step", ["distir.test.run_builtin", function], [REDUCE, arguments])
    assert time.monotonic() - begin < 8
    error = caught.value
    assert (error.kind, error.function) == (kind, "step")
    if how not in ("mismatch", "skip"):
        assert (error.worker, error.device, error.host) == (1, 1, agents[1].address)
        assert f"worker 1 (device 1 on host {agents[1].address}) failed" in str(error)
    assert not workers.is_open
    check_gone(pids)


# The second worker runs on; the first one, on another host, waits for it or runs on, too.
BUSY = {
    "waits": (["distir.test.run_builtin", "distir.test.sleep"], [REDUCE, [60.0]]),
    "runs": (["distir.test.sleep"] * 2, [[60.0]] * 2),
}


@pytest.mark.large
@pytest.mark.parametrize("first", BUSY)
def test_a_timeout_is_reported_in_time(agents, first):
    def late():
        workers = start(agents, timeout=30.0)
        workers.timeout = 1.0
        return reported_late(workers, *BUSY[first])

    check_in_time(late)


@pytest.mark.parametrize("first", BUSY)
def test_an_interrupt_ends_the_step_at_once(agents, first):
    pids = []

    def late():
        workers = start(agents, timeout=30.0)
        pids.extend(pids_of(workers))
        return interrupted_late(workers, *BUSY[first])

    check_in_time(late)
    check_gone(pids)


@pytest.mark.large
def test_agent_that_is_killed(agents, start_agent, tmp_path):
    agent = start_agent(tmp_path)
    workers = start([agents[0], agent])
    pids = pids_of(workers)
    begin = time.monotonic()
    functions = ["distir.test.run_builtin", "distir.test.kill_other"]
    with pytest.raises(WorkerError, match=f"host {agent.address} was lost") as caught:
        workers.run("step", functions, [REDUCE, [agent.process.pid]])
    assert time.monotonic() - begin < 8
    assert (caught.value.kind, caught.value.worker) == ("HostLostError", 1)
    check_gone(pids)
    agent.process.wait()
    agent.process.stdout.close()


@pytest.mark.large
def test_another_host_in_place_of_one_that_is_lost(agents, start_agent, tmp_path):
    """Or what is left, with more devices."""
    mesh, widths = dx.Mesh(tp=2), [8, 12, 8]
    mod = dx.annotate(chain(widths, rows="n"), mesh, {"w0": (None, "tp"), "w1": ("tp", None)})
    x, weights = chain_values(widths, rows=6)
    save_file(weights, tmp_path / "weights.safetensors")
    agent = start_agent(tmp_path)
    with Session(mesh, workers=hosts_of([agents[0], agent])) as session:
        main = session.load(dx.build(mod), params=tmp_path / "weights.safetensors")["main"]
        agent.process.kill()
        agent.process.wait()
        with pytest.raises(WorkerError, match=f"host {agent.address} was lost"):
            main(x)
        with pytest.raises(RuntimeError, match=agent.address):
            session.restart()
        assert session.closed
        for hosts in (agents[:2], agents[:1]):
            session.restart(workers=hosts_of(hosts))
            np.testing.assert_allclose(main(x).numpy(), chain_result(x, weights), rtol=1e-4)
    agent.process.stdout.close()


def test_connection_between_workers_that_ends(agents):
    """The controller still reaches both hosts."""
    workers = start(agents, timeout=30.0)
    pids = pids_of(workers)
    begin = time.monotonic()
    match = "connection to device 1 on another host has ended"
    with pytest.raises(WorkerError, match=match) as caught:
        workers.run("step", ["distir.test.run_builtin", "distir.test.cut_off"], [REDUCE, []])
    assert time.monotonic() - begin < 8
    assert (caught.value.worker, caught.value.host) == (0, agents[0].address)
    check_gone(pids)


CONTROLLER = """
import os, sys, threading, time
import distir_ext as dx
from distir_ext.workers.processes import ProcessWorkers
hosts = dx.Hosts(sys.argv[1:])
workers = ProcessWorkers(range(2), "cpu", None, ["worker_functions"], hosts)
print(*[each[0] for each in workers.run("p", ["distir.test.process"] * 2, [[]] * 2)], flush=True)
threading.Thread(
    target=workers.run, args=("s", ["distir.test.sleep"] * 2, [[60.0]] * 2), daemon=True
).start()
time.sleep(0.3)
{end}
"""


def run_controller(agents, end):
    """Opens a session in a process that ends while workers are busy; their processes are gone."""
    command = [sys.executable, "-c", CONTROLLER.format(end=end)]
    command += [agent.address for agent in agents]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    check_gone(pids)


def descriptors(agents):
    return [psutil.Process(agent.process.pid).num_fds() for agent in agents]


@pytest.mark.large
def test_controller_that_is_killed_leaves_hosts_ready_for_the_next(agents):
    before = descriptors(agents)
    run_controller(agents, "os.kill(os.getpid(), 9)")
    workers = start(agents)
    outs = workers.run("step", ["distir.test.run_builtin"] * 2, [REDUCE] * 2)
    np.testing.assert_array_equal(outs[1].numpy(), np.full(4, 2.0))
    workers.close()
    deadline = time.monotonic() + 10
    while descriptors(agents) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert descriptors(agents) == before


@pytest.mark.slow
def test_workers_end_with_a_controller_that_is_interrupted(agents):
    run_controller(agents, "raise KeyboardInterrupt")


@pytest.mark.large
def test_agent_that_is_ended_takes_its_workers_along(agents, start_agent, tmp_path):
    agent = start_agent(tmp_path)
    workers = start([agents[0], agent])
    pids = pids_of(workers)
    agent.end()
    assert agent.process.returncode == 0
    check_gone(pids[1:])
    with pytest.raises(WorkerError, match="was lost"):
        workers.run("step", [None] * 2, [[]] * 2)
    check_gone(pids)


def test_nobody_listens_but_agents_and_they_on_loopback(agents, session):
    def listening(pid):
        found = psutil.Process(pid).net_connections("inet")
        return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]

    workers = session._workers.run("pids", ["distir.test.process"] * 4, [[]] * 4)
    assert [listening(int(each[0])) for each in workers] == [[]] * 4
    assert [listening(agent.process.pid) for agent in agents] == [["127.0.0.1"]] * 2


@pytest.mark.slow
def test_failures_many_times(agents):
    for how in ["raise", "kill", "stall"] * 30:
        test_failure_ends_the_step_on_all_hosts(agents, how)


@pytest.mark.large
def test_a_slow_host_is_not_taken_for_lost():
    """A late answer is not taken for another one; only a host that says nothing is lost."""
    ours, its = (Stream(each) for each in socket.socketpair())
    host = object.__new__(RemoteProcesses)
    host.lost, host.name, host.line, host._lost_after = False, "a", ours, 4.0
    host._begin_to_ask()
    lines = Lines({ours: [1]})

    def answer():
        assert receive(its) == {"request": "status", "ranks": [1]}
        time.sleep(2.5)
        send(its, {"answer": [["reduce", "its peer"]]})
        assert receive(its) == {"request": "how_it_ended", "rank": 1}
        time.sleep(2.5)
        send(its, {"answer": "process 7 was ended by SIGKILL"})

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        assert host.status([1]) == [("", "")]
        time.sleep(1.0)
        assert lines.ended() == []
        assert host.how_it_ended(1) == "process 7 was ended by SIGKILL"
        assert not host.lost
        host._lost_after = 1.0
        assert host.how_it_ended(1) == "host a was lost"
        assert host.lost
        its.close()
        assert lines.ended() == [1]
    finally:
        thread.join()
        lines.close()
        ours.close()
        its.close()
