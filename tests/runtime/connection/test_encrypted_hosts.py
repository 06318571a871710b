"""Encrypted connections between hosts: what somebody between sees, and cannot do."""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import numpy as np
import psutil
import pytest
from tests.abi.plans import layout, transfer_plan
from tests.runtime.connection.listeners import TOKEN, answering, relay, running_agent
from tests.runtime.connection.test_handshake import OPENING

import distir_ext as dx
from distir_ext.session.session import Session, WorkerError
from distir_ext.wire import handshake
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.connections import parse_address
from distir_ext.wire.handshake import NotConnectedError, RefusedByHostError, connect
from distir_ext.wire.tls import Tls, make_identity
from distir_ext.workers.hosts.remote_processes import warn_of_clear_text

SAFE = replace(TOKEN, tls=True)


class Raw:
    """A socket between two addresses."""

    def __init__(self, mine, theirs):
        self.getsockname = lambda: (mine, 1)
        self.getpeername = lambda: (theirs, 2)


def test_what_leaves_the_machine_is_encrypted():
    here = [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::ffff:127.0.0.1", "127.0.0.1")]
    away = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2"), ("127.0.0.1", "10.0.0.1"),
            ("fe80::1%eth0", "fe80::2%eth0"), ("10.0.0.1", "10.0.0.1")]  # fmt: skip
    for ends in here + away:
        assert TOKEN.encrypts(Raw(*ends)) is (ends in away)
        assert replace(TOKEN, tls=True).encrypts(Raw(*ends))
        assert not replace(TOKEN, tls=False).encrypts(Raw(*ends))


def flip(position, direction, flipped):
    """Changes one bit of what goes in one direction, and says so in a list."""
    count = 0

    def change(part, forth):
        nonlocal count
        if forth is not direction:
            return part
        index, count = position - count, count + len(part)
        if not 0 <= index < len(part):
            return part
        changed = bytearray(part)
        changed[index] ^= 1
        flipped.append(position)
        return bytes(changed)

    return change


@pytest.mark.large
@pytest.mark.parametrize("direction", [True, False], ids=["forth", "back"])
def test_no_byte_can_be_altered_between(direction, monkeypatch):
    """Of the hello, TLS's handshake, the proof, the opening and the answer."""
    monkeypatch.setattr(handshake, "_WAITS", ())  # who comes again is not altered
    with running_agent(SAFE) as agent:
        seen = []

        def count(part, forth):
            if forth is direction:
                seen.append(len(part))
            return part

        with relay(agent.address, count) as address:
            connect(address, SAFE, "session", OPENING).close()
        flipped = []
        for position in range(0, sum(seen), max(1, sum(seen) // 40)):
            with relay(agent.address, flip(position, direction, flipped)) as address:
                try:
                    connect(address, SAFE, "session", OPENING).close()
                except (NotConnectedError, RefusedByHostError):
                    assert position in flipped
                else:
                    # Signatures differ in length, so a connection may end before the position.
                    assert position not in flipped
        assert len(flipped) >= 39


def test_what_is_between_sees_nothing():
    """It may pass the bytes on; nothing that is said is among them."""
    seen = []

    def record(part, forth):
        seen.append(part)
        return part

    with running_agent(SAFE) as agent, relay(agent.address, record) as address:
        connect(address, SAFE, "session", OPENING).close()
    everything = b"".join(seen)
    assert address.encode() in everything  # that which was dialled
    for said in (b"lost_after", b"num_workers", SAFE.token):
        assert said not in everything


def test_who_ends_tls_between_opens_no_session():
    """It has a certificate of its own for each side, and passes on what they say within."""
    attempts = []

    def between(stream):
        stream.limit(5)
        hello = stream.receive(8 + 35)
        hello += stream.receive(hello[-1])
        with socket.create_connection(parse_address(agent.address)) as raw:
            behind = Stream(raw)
            behind.limit(5)
            behind.send_all(hello)
            stream.send_all(behind.receive(8 + 33))
            stream.secure(Tls.of_identity(stream.fileno(), False, make_identity(), ""))
            behind.secure(Tls.of_identity(behind.fileno(), True, make_identity(), "x"))
            stream.send_all(behind.receive(32))
            attempts.append(stream.receive(1))  # the proof, were there one

    with running_agent(SAFE) as agent, answering(between) as (address, raised):
        with pytest.raises(NotConnectedError, match="not what was dialled"):
            connect(address, SAFE, "session", OPENING)
        assert not agent._sessions
    assert (attempts, raised) == ([], ["it has hung up"])


def test_both_sides_agree_on_encryption():
    with (
        running_agent(SAFE) as agent,
        pytest.raises(NotConnectedError, match="takes connections with TLS only"),
    ):
        connect(agent.address, TOKEN, "session", OPENING)
    with running_agent(replace(TOKEN, tls=False)) as agent:
        connect(agent.address, SAFE, "session", OPENING).close()


def test_nothing_arrives_on_an_idle_connection():
    """Whose end is that of the session; TLS would send tickets."""
    with running_agent(SAFE) as agent, selectors.DefaultSelector() as selector:
        line = connect(agent.address, SAFE, "session", OPENING)
        selector.register(line, selectors.EVENT_READ)
        assert not selector.select(0.2)
        line.close()


def test_a_connection_that_is_handed_on_needs_a_key():
    with running_agent(SAFE) as agent:
        line = connect(agent.address, SAFE, "session", OPENING)
        opening = {"session": "s", "source": 1, "target": 0}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handshake, "KEY_BYTES", 8)
            with pytest.raises(RefusedByHostError, match='"key" of the message is wrong'):
                connect(agent.address, SAFE, "peer", opening)
        connect(agent.address, SAFE, "peer", opening).close()
        line.close()


@pytest.fixture(scope="module")
def safe_agents():
    with running_agent(SAFE) as one, running_agent(SAFE) as other:
        yield [one, other]


@pytest.fixture(scope="module")
def seen():
    return []


@pytest.fixture(scope="module")
def session(safe_agents, seen):
    """Four workers of two hosts, all of whose connections go through relays."""

    def record(part, forth):
        seen.append(part)
        return part

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTIR_EXT_TOKEN", TOKEN.token.decode())
        addresses = [agent.address for agent in safe_agents]
        with relay(addresses[0], record) as one, relay(addresses[1], record) as other:
            hosts = dx.Hosts([one, other], tls=True)
            with Session(4, workers=hosts, timeout=60, imports=["worker_functions"]) as opened:
                yield opened


def test_sessions_have_the_bits_of_threads(session, seen, run_on, runner_on):
    for size in (3, 70_001):
        rng = np.random.default_rng(size)
        xs = [rng.standard_normal(size).astype("float32") for _ in range(4)]
        args = ("[[0,2,1,3]]", "sum")
        expected = runner_on("threads", 4)("all_reduce", xs, args, [(size,)] * 4)
        actual = run_on(session._workers, 4)("all_reduce", xs, args, [(size,)] * 4)
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_array_equal(one.view("uint32"), other.view("uint32"))


def test_workers_of_hosts_listen_nowhere(session, safe_agents):
    workers = [
        process.pid
        for agent in safe_agents
        for hosted in agent._sessions.values()
        for process in hosted._processes.processes.values()
    ]
    assert len(workers) >= 4
    found = [each for pid in workers for each in psutil.Process(pid).net_connections("inet")]
    assert found
    assert not [each for each in found if each.status == psutil.CONN_LISTEN]


def test_all_send_very_much_before_they_receive(session, seen, run_on):
    """More than sockets take, and a pattern that nobody between sees."""
    count = 2_000_000
    plan = transfer_plan(layout([0, 1, 2, 3], [4]), layout([2, 3, 0, 1], [4]), channel=5)
    x = [np.full(count, 1234.5 + rank, "float32") for rank in range(4)]
    before = sum(map(len, seen))
    outs = run_on(session._workers).calls([("transfer", (each, plan), (count,)) for each in x])
    for rank in range(4):
        np.testing.assert_array_equal(outs[rank], x[(rank + 2) % 4])
    assert sum(map(len, seen)) - before > 3 * sum(each.nbytes for each in x)
    pattern = np.full(16, 1234.5, "float32").tobytes()
    assert not any(pattern in part for part in seen)


@pytest.mark.large
def test_altered_data_between_workers_ends_the_step(safe_agents, monkeypatch):
    """Of the connection between two hosts, long after it has begun."""
    monkeypatch.setenv("DISTIR_EXT_TOKEN", TOKEN.token.decode())
    armed = threading.Event()

    def change(part, forth):
        if len(part) > 20_000 and armed.is_set():
            return part[:500] + bytes([part[500] ^ 1]) + part[501:]
        return part

    with relay(safe_agents[0].address, change) as address:
        hosts = dx.Hosts([address, safe_agents[1].address], tls=True)
        with Session(2, workers=hosts, timeout=60, imports=["worker_functions"]) as opened:
            function = ["distir.test.reduce_ones"] * 2
            assert opened._workers.run("step", function, [[100_000]] * 2) == [2.0, 2.0]
            armed.set()
            with pytest.raises(WorkerError, match=r"connection to device \d on another host"):
                opened._workers.run("step", function, [[100_000]] * 2)


@pytest.mark.parametrize(("ccl", "warns"), [("cpu", False), ("mpi", True), ("nccl", True)])
def test_libraries_that_do_not_encrypt_warn_between_machines(ccl, warns):
    here, away = Raw("127.0.0.1", "127.0.0.1"), Raw("10.0.0.1", "10.0.0.2")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_clear_text(ccl, [here, here])
        assert not caught
        warn_of_clear_text(ccl, [here, away])
    assert [f'ccl="{ccl}" sends tensors' in str(each.message) for each in caught] == [True] * warns


def test_insecure_warns(monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_TOKEN", TOKEN.token.decode())
    with running_agent() as agent, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Session(1, workers=dx.Hosts([agent.address], tls=False)).close()
    assert any(
        "connections between hosts are not encrypted" in str(each.message) for each in caught
    )


@pytest.mark.large
@pytest.mark.parametrize("option", ["--insecure", ""])
def test_hosts_without_openssl(option):
    """They serve other machines only if they are told to do so without."""
    environment = {
        **os.environ,
        "DISTIR_EXT_OPENSSL_LIBRARY": "/nowhere/libssl.so.3",
        "DISTIR_EXT_TOKEN": "of tests, and of no use elsewhere",
    }
    command = [sys.executable, "-m", "distir_ext", "host", "--bind", "0.0.0.0:0", *option.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        said = process.stdout.readline()
        if option:
            process.terminate()
        errors = process.stderr.read()
    if option:
        assert said.startswith("listening at 0.0.0.0:")
        assert "--insecure: connections between hosts are not encrypted" in errors
    else:
        assert process.returncode == 1
        assert "distir host: OpenSSL 3 (libssl.so.3), which encrypts connections" in errors
        assert "/nowhere/libssl.so.3" in errors
