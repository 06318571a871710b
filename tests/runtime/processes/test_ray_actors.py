"""Sessions on a Ray cluster, whose nodes are all on this machine: numbers, failures, lifetimes."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx
from distir_ext.demo.forum import megatron_case
from distir_ext.wire.connections import is_loopback
from distir_ext.wire.tokens import new_token
from distir_ext.workers.hosts import ray_actors

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'distir-ext[ray]'")
pytestmark = pytest.mark.large

CPUS = 2
NODE = {"num_cpus": CPUS, "object_store_memory": 80 << 20}
LIMIT = 120.0  # for what takes seconds where nobody else uses the machine


class Nodes:
    """A cluster of Ray with some nodes beside its head, which gives nothing but itself."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        head = {**NODE, "num_cpus": 0, "include_dashboard": False}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = []

    @property
    def address(self):
        return self.cluster.address

    def grow(self, count, **resources):
        """Until it has so many nodes."""
        while len(self.nodes) < count:
            self.nodes.append(self.cluster.add_node(**{**NODE, **resources}))

    def remove(self, node, gracefully=True):
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=gracefully)

    def free(self, resource="CPU"):
        return ray.available_resources().get(resource, 0)


@contextlib.contextmanager
def running():
    nodes = Nodes()
    try:
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes():
    """Two nodes of a cluster, or more; this process is connected to it."""
    with pytest.MonkeyPatch.context() as patch:
        functions = Path(__file__).parents[1] / "on_workers"
        patch.setenv("PYTHONPATH", os.pathsep.join([str(functions), *filter(None, sys.path)]))
        patch.setenv("RAY_worker_niceness", "0")  # other tests run beside this one
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.delenv("DISTIR_EXT_START_TIMEOUT", raising=False)
        with running() as started:
            started.grow(2)
            ray.init(address=started.address, log_to_driver=False)
            yield started


def stated(hosts=2, **arguments):
    return dx.Ray(hosts=hosts, start_timeout=LIMIT, **arguments)


def open_session(devices=4, hosts=2, **arguments):
    session = dx.Session(devices, workers=stated(hosts, **arguments), imports="worker_functions")
    session._workers.timeout = LIMIT
    return session


def run(session, function, *arguments):
    count = session.num_workers
    return session._workers.run("step", [function] * count, [list(arguments)] * count)


def processes_of(session):
    """By rank the process of its worker."""
    return [psutil.Process(int(each[0])) for each in run(session, "distir.test.process")]


def names_of(session):
    return [host.name for host in session._workers._started.hosts]


def node_of(name):
    """As much of the node's id as the name of a host has."""
    return re.fullmatch(r"\S+ \(Ray node (\w+)\)", name)[1]


def eventually(condition):
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def check_gone(processes):
    eventually(lambda: not any(each.is_running() for each in processes))


def check_all_given_back(nodes):
    from ray.util.placement_group import placement_group_table

    eventually(lambda: nodes.free() == CPUS * len(nodes.nodes))
    assert {each["state"] for each in placement_group_table().values()} <= {"REMOVED"}


def test_two_nodes_have_the_bits_of_threads(nodes):
    case = megatron_case()
    exe = dx.build(case.annotate(case.module))
    inputs = case.inputs.values()
    with dx.Session(4) as threads:
        expected = threads.load(exe, case.weights)[case.function](*inputs).numpy()
    with dx.Session(4, workers=stated(devices_per_host=2)) as session:
        function = session.load(exe, case.weights)[case.function]
        np.testing.assert_array_equal(function(*inputs).numpy(), expected)
    check_all_given_back(nodes)


def test_hosts_that_are_packed_share_a_node(nodes):
    with open_session(2, 2, pack=True) as session:
        assert len({node_of(name) for name in names_of(session)}) == 1


def test_workers_see_the_gpus_that_ray_assigns(nodes):
    node = nodes.cluster.add_node(**NODE, num_gpus=4)
    try:
        seen = []
        gpus = {"CPU": 0, "GPU": 2}
        with (
            open_session(1, 1, resources=gpus) as first,
            open_session(1, 1, resources=gpus) as second,
        ):
            for session in (first, second):
                (process,) = processes_of(session)
                seen += process.environ()["CUDA_VISIBLE_DEVICES"].split(",")
        assert sorted(seen) == ["0", "1", "2", "3"]
    finally:
        nodes.cluster.remove_node(node)


def test_a_cluster_with_too_little(nodes):
    count = len(nodes.nodes)
    begin = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        dx.Session(2 * count + 2, workers=dx.Ray(hosts=count + 1, start_timeout=1))
    assert time.monotonic() - begin < 10
    message = str(caught.value)
    assert f"within 1 seconds (start_timeout) Ray has not reserved {count + 1} hosts" in message
    assert f"The cluster has {count + 1} nodes: " in message
    assert message.count(f"with CPU {CPUS}") == 1 + count  # as asked for, and of nodes
    assert message.endswith(f"; free: CPU {CPUS * count}")
    check_all_given_back(nodes)


def test_resources_that_there_are_not(nodes):
    with pytest.raises(ValueError, match=r'"GPUs", which no node of the cluster has; .*\'GPU\''):
        dx.Session(2, workers=dx.Ray(resources={"GPUs": 1}))
    with pytest.raises(ValueError, match=r"Ray refuses {'CPU': 1e-05}: The precision"):
        dx.Session(2, workers=dx.Ray(resources={"CPU": 0.00001}))
    check_all_given_back(nodes)


def test_an_actor_that_is_killed_between_calls(nodes):
    with open_session(2) as session:
        processes = processes_of(session)
        processes[1].parent().kill()
        check_gone(processes[1:])
        with pytest.raises(dx.WorkerError, match=r"\(Ray node .*\) was lost") as caught:
            run(session, "distir.test.sleep", 60.0)
        assert caught.value.host == names_of(session)[1]
        check_gone(processes)
    check_all_given_back(nodes)


def test_a_session_that_is_closed_leaves_nothing(nodes):
    session = open_session()
    processes = processes_of(session)
    actors = [each.parent() for each in processes]
    assert actors[0] == actors[1] != actors[2] == actors[3]  # the last axis lies within a host
    session.close()
    check_gone(processes + actors)
    check_all_given_back(nodes)


def test_a_token_is_in_no_process_or_log(nodes, monkeypatch):
    """It is made for each session; what leaves the machine is encrypted."""
    made = []
    monkeypatch.setattr(ray_actors, "new_token", lambda: made.append(new_token()) or made[-1])
    with open_session(2, 2) as session:
        lines = [host.line for host in session._workers._started.hosts]
        assert all((each.tls is not None) != is_loopback(each.raw) for each in lines)
        (token,) = made
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                assert token not in " ".join([*process.cmdline(), *process.environ().values()])
        folder = Path(ray._private.worker._global_node.get_session_dir_path())
        logs = [each for each in folder.rglob("*") if each.is_file()]
        assert logs
        assert not any(token.encode() in each.read_bytes() for each in logs)


DRIVER = """
import os, sys
import distir_ext as dx
workers = dx.Ray(hosts=2, address=sys.argv[1], start_timeout=120)
session = dx.Session(2, workers=workers, imports="worker_functions")
found = session._workers.run("pids", ["distir.test.process"] * 2, [[]] * 2)
print("pids", *[each[0] for each in found], flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end",
    [
        "sys.stdin.read()",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("import ray; ray.shutdown()", marks=pytest.mark.slow),
    ],
)
def test_a_driver_that_ends_leaves_nothing(nodes, end):
    """By SIGKILL in the first case."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER.format(end=end), nodes.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with driver:
        line = next(each for each in driver.stdout if each.startswith("pids"))
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [psutil.Process(int(pid)) for pid in line.split()[1:]]
            processes += [each.parent() for each in processes]
            if end.startswith("sys"):
                driver.kill()
            driver.wait(60)
            check_gone(processes)
    assert driver.returncode == (-9 if end.startswith("sys") else 0)
    check_all_given_back(nodes)


def test_an_actor_that_cannot_start(nodes):
    """As on nodes without this package."""
    script = "import ray, sys, distir_ext as dx\n"
    script += "ray.init(sys.argv[1], runtime_env={'env_vars': {'DISTIR_EXT_LIBRARY': '/no'}})\n"
    script += "dx.Session(2, workers=dx.Ray(address='not looked at:1'))"
    command = [sys.executable, "-c", script, nodes.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    why = "does not start: ImportError: DISTIR_EXT_LIBRARY names '/no', which is not a file"
    assert re.search(f"^RuntimeError: the actor on Ray node .* {why}$", done.stderr, re.MULTILINE)
    check_all_given_back(nodes)


def test_addresses_where_no_cluster_is(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    for stated_as in (address, "auto"):
        if stated_as == "auto":
            monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(RuntimeError, match=f"'{stated_as}'.*: nobody listens at .*refused"):
            dx.Session(2, workers=dx.Ray(address=stated_as))


def test_odd_mesh_on_three_of_four_nodes(nodes):
    nodes.grow(4)
    mesh = dx.Mesh(dp=3, tp=2)
    widths = [8, 12, 8]
    mod = dx.annotate(
        chain(widths, rows="n"), mesh, {"w0": (None, "tp"), "w1": ("tp", None)}, inputs=["x"]
    )
    x, weights = chain_values(widths, rows=7)
    with dx.Session(mesh, workers=stated(3)) as session:
        y = session.load(dx.build(mod), weights)["main"](x).numpy()
        assert len({node_of(name) for name in names_of(session)}) == 3
    np.testing.assert_allclose(y, chain_result(x, weights), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gracefully", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_node_that_is_removed_during_a_call(nodes, gracefully):
    nodes.grow(2)  # which other cases have removed
    mesh, widths = dx.Mesh(tp=4), [8, 12, 8]
    mod = dx.annotate(chain(widths, rows="n"), mesh, {"w0": (None, "tp"), "w1": ("tp", None)})
    x, weights = chain_values(widths, rows=6)
    with dx.Session(mesh, workers=stated(), imports="worker_functions") as session:
        model = session.load(dx.build(mod), weights)
        processes = processes_of(session)
        lost = names_of(session)[1]
        node = next(each for each in nodes.nodes if each.node_id.startswith(node_of(lost)))
        begin = []

        def remove():
            time.sleep(0.5)
            begin.append(time.monotonic())
            nodes.remove(node, gracefully)

        thread = threading.Thread(target=remove)
        thread.start()
        with pytest.raises(dx.WorkerError) as caught:
            run(session, "distir.test.sleep", 60.0)
        assert time.monotonic() - begin[0] < 20
        thread.join()
        assert (caught.value.kind, caught.value.host) == ("HostLostError", lost)
        assert f"{lost} was lost" in str(caught.value)
        check_gone(processes)
        session.restart({model: weights}, workers=stated(1, resources={"CPU": 1}))
        np.testing.assert_allclose(model["main"](x).numpy(), chain_result(x, weights), rtol=1e-4)
    with open_session(2, 1) as session:
        assert len(processes_of(session)) == 2
    check_all_given_back(nodes)
