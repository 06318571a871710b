"""Sessions over two network namespaces, which act as two hosts with a network that can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

FIRST, SECOND = "10.249.171.1", "fd00:d157::2"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces():
    """Two namespaces that have a link between them and nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    names = [f"distir-test-{os.getpid()}-{index}" for index in (1, 2)]
    try:
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the privilege to make network namespaces: {error.stderr.strip()}")
    try:
        ip("netns", "add", names[1])
        ip(
            "-n",
            names[0],
            "link",
            "add",
            "veth1",
            "type",
            "veth",
            "peer",
            "veth2",
            "netns",
            names[1],
        )
        for index, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.249.171.{index}/24", "dev", f"veth{index}")
            address = f"fd00:d157::{index}/64"
            ip("-n", name, "address", "add", address, "dev", f"veth{index}", "nodad")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", f"veth{index}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


CONTROLLER = """
import sys, time
import numpy as np
import tvm, tvm_ffi
import distir_ext as dx
from distir_ext.demo.forum import megatron_case

case = megatron_case()
exe = dx.build(case.annotate(case.module))
inputs = case.inputs.values()
with dx.Session(4) as threads:
    expected = threads.load(exe, case.weights)[case.function](*inputs).numpy()
hosts = dx.Hosts(sys.argv[1:], lost_after=2)
session = dx.Session(4, workers=hosts, timeout=60, imports=["worker_functions"])
actual = session.load(exe, case.weights)[case.function](*inputs).numpy()
np.testing.assert_array_equal(actual.view("uint32"), expected.view("uint32"))
pids = session._workers.run("pids", ["distir.test.process"] * 4, [[]] * 4)
print(*[each[0] for each in pids], flush=True)
x = tvm.runtime.tensor(np.ones(4, "float32"))
reduce = ["all_reduce", x, "[[0,1,2,3]]", "sum", tvm_ffi.Shape((4,)), "float32"]
calls = ["distir.test.run_builtin"] * 3 + ["distir.test.sleep"]
try:
    session._workers.run("step", calls, [reduce] * 3 + [[60.0]])
except dx.WorkerError as error:
    print(error.kind, error.host, session.closed, flush=True)
"""


@pytest.mark.large
def test_network_that_goes_away(namespaces, start_agent, agents, tmp_path):
    """Before that, numbers are those of threads, over IPv4 and IPv6."""
    inside = [["ip", "netns", "exec", name] for name in namespaces]
    here = [
        start_agent(tmp_path, bind, each)
        for bind, each in zip((f"{FIRST}:0", f"[{SECOND}]:0"), inside, strict=True)
    ]
    command = [*inside[0], sys.executable, "-c", CONTROLLER, *(agent.address for agent in here)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 4
        time.sleep(0.5)  # three workers wait for the fourth
        ip("-n", namespaces[0], "link", "set", "veth1", "down")
        begin = time.monotonic()
        lost = here[1].address
        assert controller.stdout.readline().split() == ["HostLostError", lost, "True"]
        assert time.monotonic() - begin < 10
        controller.wait(30)
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < begin + 15:
        time.sleep(0.1)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    for agent in here:
        agent.end()


COPY = """
import distir_ext as dx

for _ in range(2):
    with dx.Session(4, workers="auto") as session:
        print(*session.workers.addresses)
raise SystemExit(7)
"""


@pytest.mark.large
@pytest.mark.parametrize("leader", [FIRST, "fd00:d157::1"])
def test_copies_of_a_script_on_two_hosts(namespaces, leader, tmp_path):
    """Two copies on each; rank 0 has two addresses, and only one of them is the others' to use."""
    script = tmp_path / "script.py"
    script.write_text(COPY)
    stated = {
        "DISTIR_EXT_WORLD_SIZE": "4",
        "DISTIR_EXT_TOKEN": "of tests, and of no use elsewhere",
        "DISTIR_EXT_START_TIMEOUT": "60",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespaces[rank // 2], sys.executable, str(script)],
            env=os.environ | stated | {"DISTIR_EXT_RANK": str(rank), "DISTIR_EXT_LEADER": leader},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    printed = [each.communicate(timeout=200)[0] for each in started]
    assert [each.returncode for each in started] == [7] * 4
    first, second = printed[0].splitlines()
    assert first == second
    hosts = [address.rpartition(":")[0].strip("[]") for address in first.split()]
    assert hosts == [leader] * 2 + [f"{leader[:-1]}2"] * 2
    assert printed[1:] == [""] * 3
