"""Hosts that pass on to others: what arrives, who is named where one of them is lost, and restarts.

The controller writes to the first host alone, that one to the second, and so on.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file
from tests.stages.programs import chain, chain_values

import distir_ext as dx
from distir_ext.session.session import Session, WorkerError
from distir_ext.workers.hosts.openings import RefusedError, parse_below
from distir_ext.workers.hosts.tree import subtrees, usual_fanout

WIDTHS = [8, 12, 9]
X, WEIGHTS = chain_values(WIDTHS, rows=6)


@pytest.mark.parametrize("count", [1, 2, 5, 32, 33, 512, 4096])
def test_every_host_is_reached_once(count):
    fanout = usual_fanout(count)
    tree = subtrees(range(count), fanout)
    assert len(tree) <= fanout
    assert sorted(each.first for root in tree for each in root.flat()) == list(range(count))
    assert all(len(each.below) <= fanout for root in tree for each in root.flat())
    assert not any(low.below for root in tree for each in root.below for low in each.below)
    assert count > 32 or not any(root.below for root in tree)


@pytest.mark.parametrize(
    ("below", "why"),
    [
        ([["10.0.0.1", [2]], ["10.0.0.2", [2, 3]]], "twice"),
        ([["10.0.0.1", [0]]], "twice"),
        ([["10.0.0.1", [9]]], "no list of ranks below 4"),
        ([["", [2]]], "no address"),
        (None, 'no "below"'),
    ],
)
def test_hosts_to_pass_on_to_that_make_no_sense(below, why):
    message = {"request": "start"} | ({} if below is None else {"below": below})
    with pytest.raises(RefusedError, match=why):
        parse_below(message, 4, [0, 1])


@pytest.mark.parametrize("fanout", [0, -1, 2.0, True])
def test_fanout_that_makes_no_sense(fanout):
    with pytest.raises(ValueError, match=r"fanout is .*; it must be a positive number of hosts"):
        dx.Hosts(["10.0.0.1"], fanout=fanout)


def failed_step(workers, functions):
    """The error of a step with functions by rank, others of which end late; nobody is left."""
    everyone = range(workers.num_workers)
    pids = [each[0] for each in workers.run("pids", ["distir.test.process"] * 3, [[]] * 3)]
    names = [functions.get(rank, ("distir.test.sleep", [60.0]))[0] for rank in everyone]
    arguments = [functions.get(rank, ("distir.test.sleep", [60.0]))[1] for rank in everyone]
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        workers.run("step", names, arguments)
    assert time.monotonic() - begin < 8
    while any(map(psutil.pid_exists, pids)):
        assert time.monotonic() - begin < 15
        time.sleep(0.05)
    return caught.value


@pytest.mark.large
def test_numbers_and_failures(agents, start_agent, tmp_path):
    mesh = dx.Mesh(tp=3)
    mod = dx.annotate(chain(WIDTHS, rows="n"), mesh, {"w0": (None, "tp"), "w1": ("tp", None)})
    exe = dx.build(mod)
    file = tmp_path / "weights.safetensors"
    save_file(WEIGHTS, file)
    with Session(mesh) as threads:
        expected = threads.load(exe, WEIGHTS)["main"](X).numpy()
    inner = start_agent(tmp_path)
    hosts = [agents[0], inner, agents[1]]
    addresses = [each.address for each in hosts]
    in_a_row = dx.Hosts(addresses, fanout=1, tls=True)
    with Session(mesh, workers=in_a_row, imports=["worker_functions"]) as session:
        assert [each.ranks for each in session._workers._started.branches] == [(0, 1, 2)]
        main = session.load(exe, params=file)["main"]
        for _ in range(2):
            actual = main(X).numpy()
            np.testing.assert_array_equal(actual.view("uint32"), expected.view("uint32"))

        # The last host is reached by way of the inner one, and is not lost itself.
        kill = {0: ("distir.test.kill_other", [inner.process.pid])}
        error = failed_step(session._workers, kill)
        assert (error.kind, error.worker, error.host) == ("HostLostError", 1, addresses[1])
        assert f"host {addresses[1]} was lost" in str(error)
        inner.end()

        left = dx.Hosts(addresses[::2], devices_per_host=[1, 2], fanout=1)
        session.restart(workers=left)
        np.testing.assert_array_equal(main(X).numpy().view("uint32"), expected.view("uint32"))
        error = failed_step(session._workers, {2: ("distir.test.sleep_and_fail", [0.05])})
        assert (error.kind, error.worker, error.host) == ("ValueError", 2, addresses[2])


@pytest.mark.large
def test_a_line_between_two_living_hosts(agents, start_agent, tmp_path):
    """The worker behind it is lost to the session; its host and the one before it live."""
    inner = start_agent(tmp_path, is_cuttable=True)
    addresses = [agents[0].address, inner.address, agents[1].address]
    in_a_row = dx.Hosts(addresses, fanout=1)
    try:
        with Session(dx.Mesh(tp=3), workers=in_a_row, imports=["worker_functions"]) as session:
            cut = threading.Timer(0.5, inner.cut, [agents[1]])
            cut.start()
            error = failed_step(session._workers, {})
            cut.join()
            assert (error.kind, error.worker, error.host) == ("ProcessLostError", 2, addresses[2])
            assert "runs, but the line to it has ended" in str(error)
        assert all(each.process.poll() is None for each in (agents[0], inner, agents[1]))
    finally:
        inner.end()
