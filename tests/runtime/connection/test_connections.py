"""Addresses, hosts as users state them, and hosts that cannot be reached."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

import distir_ext as dx
from distir_ext import cli
from distir_ext.cli.host import _serve_until_a_signal
from distir_ext.session.session import Session
from distir_ext.wire.connections import (
    DEFAULT_PORT,
    format_address,
    keep_watch,
    listen,
    parse_address,
)
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.tokens import read_token
from distir_ext.workers.hosts import remote_processes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.2", ("10.0.0.2", DEFAULT_PORT)),
        ("10.0.0.2:1", ("10.0.0.2", 1)),
        ("node-3.cluster:65535", ("node-3.cluster", 65535)),
        ("[fd00::2]:80", ("fd00::2", 80)),
        ("[fd00::2]", ("fd00::2", DEFAULT_PORT)),
        ("::1", ("::1", DEFAULT_PORT)),
        ("fe80::1%eth0", ("fe80::1%eth0", DEFAULT_PORT)),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected
    assert parse_address(format_address(expected)) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:", "a:b", "a:65536", "[::1", "[::1]:", "[]:1", "a]:1", "a\0", "a\n:1", "\ud800"],
)
def test_what_is_not_an_address(text):
    with pytest.raises(ValueError, match="is not an address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"addresses": []}, "a list of addresses"),
        ({"addresses": "10.0.0.2"}, "a list of addresses"),
        ({"addresses": ["a", "a:7272"]}, 'host "a" is given twice'),
        ({"addresses": ["a", "b"], "devices_per_host": [4]}, "a positive number for each of 2"),
        ({"addresses": ["a", "b"], "devices_per_host": [4, 0]}, "a positive number for each of 2"),
        ({"addresses": ["a"], "lost_after": 1}, "must be 2 seconds or more"),
        ({"addresses": ["a"], "lost_after": float("inf")}, "must be 2 seconds or more"),
        ({"addresses": ["a"], "lost_after": float("nan")}, "must be 2 seconds or more"),
    ],
)
def test_hosts_that_make_no_sense(arguments, match):
    with pytest.raises(ValueError, match=match):
        dx.Hosts(**arguments)


def test_a_loss_that_is_found_after_years():
    """Longer than the system counts."""
    with listen("127.0.0.1:0") as listener, socket.create_connection(listener.getsockname()) as raw:
        keep_watch(raw, 1e300)
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1


@pytest.mark.parametrize("name", ["", ".relative", 5, None])
def test_what_is_no_name_of_a_module(name):
    match = r"imports= has .*, which is not the whole name of a module"
    with pytest.raises(ValueError, match=match):
        Session(1, workers="processes", imports=[name])


def test_devices_of_hosts():
    assert dx.Hosts(["a", "b"]).ranks(4) == [[0, 1], [2, 3]]
    assert dx.Hosts(["a", "b"], [1, 3]).ranks(4) == [[0], [1, 2, 3]]
    assert dx.Hosts(["a", "b"], devices_per_host=2).ranks(4) == [[0, 1], [2, 3]]
    for wrong in (0, True, 1.5, "ab", [1.5, 1]):
        with pytest.raises(ValueError, match=r"devices_per_host is .* or be one for all"):
            dx.Hosts(["a", "b"], devices_per_host=wrong)
    with pytest.raises(ValueError, match=r"the hosts have 6 devices \[3, 3\], the session has 4"):
        dx.Hosts(["a", "b"], devices_per_host=3).ranks(4)
    with pytest.raises(ValueError, match="3 devices do not divide among 2 hosts"):
        Session(3, workers=dx.Hosts(["a", "b"]))
    with pytest.raises(ValueError, match=r"the hosts have 3 devices \[1, 2\], the session has 4"):
        Session(4, workers=dx.Hosts(["a", "b"], [1, 2]))


def test_hosts_listen_on_loopback_unless_told_otherwise():
    bind = cli.command_parser().parse_args(["host"]).bind
    assert ipaddress.ip_address(parse_address(bind)[0]).is_loopback
    with listen("[::1]:0") as listener:
        assert format_address(listener.getsockname()).startswith("[::1]:")
        with pytest.raises(OSError, match=r"cannot listen at \[::1\]:\d+: .*in use"):
            listen(format_address(listener.getsockname()))


@pytest.mark.large
def test_other_versions_are_refused(agents, monkeypatch):
    monkeypatch.setattr(remote_processes, "versions", lambda: ["distir_ext 0.0.1"])
    match = f"host {agents[0].address}: it has distir_ext .*, the controller has distir_ext 0.0.1"
    with pytest.raises(RuntimeError, match=match):
        Session(1, workers=dx.Hosts([agents[0].address]))


def test_hosts_that_do_not_reach_each_other_are_named(agents):
    """The first host has a name that means something to the controller only."""
    first = f"127.0.0.1:{parse_address(agents[0].address)[1]}"
    second = agents[1].address
    closed = listen("127.0.0.1:0")
    address = format_address(closed.getsockname())
    closed.close()
    port = parse_address(address)[1]
    unreachable = (
        rf"no session on host {address}: 127\.0\.0\.1, port {port}, cannot be reached: .*refused; "
        f"on that host, start: distir host --bind {address}"
    )
    with pytest.raises(RuntimeError, match=unreachable):
        Session(2, workers=dx.Hosts([first, address]))
    agent = remote_processes.RemoteProcesses(
        second, Credentials(read_token(None)), "s", [1], 2, "cpu", [], 20.0
    )
    channel = agent.channel()
    agent.begin_start([(address, [0]), (second, [1])])
    with pytest.raises(
        RuntimeError, match=f"host {second}: it has no connection to host {address}"
    ):
        agent._receive(20.0)
    channel.close()
    agent.close()


def test_modules_that_a_host_lacks(agents):
    hosts = dx.Hosts([agents[0].address])
    match = f"(?s)worker 0 on host {agents[0].address} did not start.*no_such_module"
    with pytest.raises(RuntimeError, match=match):
        Session(1, workers=hosts, imports=["no_such_module"])


class _EndsLate:
    """An agent whose thread of connections ends after all else."""

    address = "nowhere:1"

    def __init__(self):
        self._closed = threading.Event()

    def serve(self):
        os.kill(os.getpid(), signal.SIGINT)
        self._closed.wait()
        time.sleep(0.1)

    def close(self):
        self._closed.set()


def test_an_agent_ends_after_its_threads(monkeypatch):
    """A thread that ended later would write to a closed socket, and print a traceback."""
    failures = []
    monkeypatch.setattr(threading, "excepthook", failures.append)
    before = threading.active_count()
    handlers = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        _serve_until_a_signal(_EndsLate())
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert threading.active_count() == before
    assert signal.set_wakeup_fd(-1) == -1
    assert not failures


_HOST_WITH_THREADS = """
import os, signal, sys, threading, time
from distir_ext import cli

def send(number):  # to a thread that is not the main one
    while not os.path.exists("listens"):
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), number)
    threading.Event().wait()

threading.Thread(target=send, args=(int(sys.argv[1]),)).start()  # and never ends
cli.main(["host", "--bind", "127.0.0.1:0", "--token-file", sys.argv[2]])
"""


@pytest.mark.large
def test_an_agent_ends_with_a_signal(tmp_path):
    """Whichever thread is given it, and whatever threads there are; without a traceback."""
    token = tmp_path / "token"
    assert cli.main(["token", str(token)]) == 0
    for number in (signal.SIGINT, signal.SIGTERM):
        command = [sys.executable, "-c", _HOST_WITH_THREADS, str(int(number)), str(token)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        ) as host:
            assert host.stdout.readline().startswith("listening at ")
            (tmp_path / "listens").touch()
            try:
                _, said = host.communicate(timeout=60)
            finally:
                host.kill()
            assert (host.returncode, said) == (0, ""), number
        (tmp_path / "listens").unlink()
