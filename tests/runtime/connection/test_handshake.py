"""Who may talk to an agent: proofs of the token, relays, strangers, and what clients ask for."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
import time

import psutil
import pytest
from tests.runtime.connection.listeners import TOKEN, answering, relay, running_agent

import distir_ext as dx
from distir_ext.wire import handshake, strangers
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import ChannelClosedError, receive, send
from distir_ext.wire.connections import format_address, listen, parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.handshake import NotConnectedError, RefusedByHostError, accept, connect
from distir_ext.wire.strangers import network_of
from distir_ext.workers import processes
from distir_ext.workers.hosts import host_agent, remote_processes

from ..lateness import SANITIZED

OTHER = Credentials(b"another token of sixteen")
HELLO = b"distir\x00\x02" + struct.pack("<B?32sB", 0, False, bytes(32), 1) + b"x"


def serve_one(stream):
    assert accept(stream, TOKEN) == "session"
    send(stream, {"answer": receive(stream)})


def test_both_sides_have_the_token():
    with answering(serve_one) as (address, raised):
        connect(address, TOKEN, "session", {}).close()
    assert raised == []


def test_another_token_is_refused():
    with (
        answering(serve_one) as (address, raised),
        pytest.raises(NotConnectedError, match=f"{address} has another token"),
    ):
        connect(address, OTHER, "session", {})
    assert raised == ["it has hung up"]


def test_whoever_connects_with_another_token_is_not_served():
    """It says its own proof, whatever it was told."""

    def pretend(address):
        stream = Stream(socket.create_connection(parse_address(address)))
        stream.limit(5)
        stream.send_all(HELLO)
        said = HELLO + stream.receive(41)
        proof = stream.receive(32)
        stream.send_all(handshake._proof(OTHER, b"connecting", said))
        stream.close()
        return proof

    with answering(serve_one) as (address, raised):
        pretend(address)
    assert raised == ["it does not have the token"]


@pytest.mark.large
@pytest.mark.parametrize("said", [b"", b"distir\x00\x02" + bytes(64)], ids=["nothing", "guess"])
def test_an_unknown_listener_learns_nothing_of_the_token(said):
    """It gets the hello, which does not depend on the token, and nothing behind that."""
    got = []

    def pretend(stream):
        stream.limit(0.5)
        stream.send_all(said)
        with contextlib.suppress(EOFError, TimeoutError):
            while True:
                got.append(stream.receive(1))

    with answering(pretend) as (address, _), pytest.raises(NotConnectedError):
        connect(address, TOKEN, "session", {})
    hello = b"".join(got)
    size = 8 + 35 + len(address)
    assert len(hello) % size == 0  # once for each attempt
    assert hello[43:size] == address.encode()


@pytest.mark.parametrize(
    ("said", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n" + bytes(40), "not this version's distir host"),
        (b"distir\x00\x01" + bytes(32), "not this version's distir host"),
        (b"", "cannot be reached: "),
    ],
)
def test_what_is_no_host(said, match):
    def serve(stream):
        stream.send_all(said)
        stream.receive(8)

    with answering(serve) as (address, _):
        with pytest.raises(NotConnectedError, match=match):
            connect(address, TOKEN, "session", {})
        with pytest.raises(RuntimeError, match=f"no session on host {address}: .*{match}"):
            remote_processes.RemoteProcesses(address, TOKEN, "s", [0], 1, "cpu", [], 20.0)


def test_another_version_is_told():
    with answering(serve_one) as (address, raised):
        stream = Stream(socket.create_connection(parse_address(address)))
        stream.limit(5)
        stream.send_all(b"distir\x00\x01")
        assert stream.receive(8) == b"distir\x00\x02"
        stream.close()
    assert raised == ["it is of another version"]


def test_a_relay_that_has_not_the_token_opens_no_session():
    """It listens where an agent is expected, and passes on what both sides say, every byte."""
    with running_agent() as agent, relay(agent.address) as address:
        with pytest.raises(NotConnectedError, match=f"{address} .* not what was dialled"):
            connect(address, TOKEN, "session", {})
        assert not agent._sessions


def test_an_agent_lets_nobody_in_without_the_token(agents):
    """Garbage, silence and zeros for a proof; who has the token is served meanwhile."""
    address = agents[0].address
    with contextlib.ExitStack() as stack:
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", HELLO + bytes(32)):
            raw = stack.enter_context(socket.create_connection(parse_address(address)))
            raw.sendall(said)
        raw.settimeout(5)
        received = b""
        while part := raw.recv(100):
            received += part
        assert len(received) == 73  # its answer and its proof
        dx.Session(1, workers=dx.Hosts([address])).close()


def test_one_deadline_for_all_of_a_handshake(monkeypatch):
    """Of whoever sends a byte now and then, on both sides."""
    monkeypatch.setattr(handshake, "HANDSHAKE_LIMIT", 0.5)
    monkeypatch.setattr(host_agent, "HANDSHAKE_LIMIT", 0.5)

    def drip(stream):
        with contextlib.suppress(OSError):
            for byte in b"distir\x00\x02" + bytes(100):
                stream.send_all(bytes([byte]))
                time.sleep(0.1)

    with answering(drip) as (address, _):
        begin = time.monotonic()
        with pytest.raises(NotConnectedError, match="took too long"):
            connect(address, TOKEN, "session", {})
        assert time.monotonic() - begin < 3
    with running_agent() as agent:
        stream = Stream(socket.create_connection(parse_address(agent.address)))
        begin = time.monotonic()
        drip(stream)
        assert time.monotonic() - begin < 3
        stream.close()


@pytest.mark.parametrize("descriptors", [None, 50])
def test_a_session_starts_among_five_hundred_strangers(agents, start_agent, tmp_path, descriptors):
    """They send a byte each, over and over; they may use up the descriptors of an agent."""
    with contextlib.ExitStack() as stack:
        agent = agents[0]
        if descriptors is not None:
            agent = start_agent(tmp_path)
            stack.callback(agent.end)
        assert begin_among_strangers(agent, descriptors) < (15 if SANITIZED else 2)


def begin_among_strangers(agent, descriptors):
    """Time that the start of a session takes, in seconds."""
    address = agent.address
    if descriptors is not None:
        psutil.Process(agent.process.pid).rlimit(psutil.RLIMIT_NOFILE, (descriptors,) * 2)
    stop = threading.Event()
    raws = []

    def drip():
        while not stop.wait(0.1):
            for raw in raws:
                with contextlib.suppress(OSError):
                    raw.send(b"d")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        for _ in range(500):
            raws.append(socket.create_connection(parse_address(address)))
            raws[-1].setblocking(False)
        credentials = Credentials(b"of tests, and of no use elsewhere")
        begin = time.monotonic()
        agent = remote_processes.RemoteProcesses(address, credentials, "s", [0], 1, "cpu", [], 20.0)
        took = time.monotonic() - begin
        agent.close()
    finally:
        stop.set()
        dripping.join()
        for raw in raws:
            raw.close()
    return took


@pytest.mark.parametrize("is_proved", [False, True])
def test_who_connects_among_strangers_comes_again(is_proved):
    """It is the oldest one, and has to go, twice; once it may be about to send what it asks for."""
    times = []

    def serve(stream):
        times.append(time.monotonic())
        if len(times) > 2:
            serve_one(stream)
        elif is_proved:
            accept(stream, TOKEN)

    with answering(serve) as (address, _):
        connect(address, TOKEN, "session", {}).close()
    assert len(times) == 3


def test_the_oldest_stranger_goes(monkeypatch):
    monkeypatch.setattr(strangers, "MOST_OF_A_NETWORK", 2)
    monkeypatch.setattr(strangers, "MOST_STRANGERS", 4)
    found = strangers.Strangers()
    ended = []

    class Raw:
        def __init__(self, name):
            self.name = name

        def shutdown(self, how):
            ended.append(self.name)

    for name, address in [
        ("a1", "10.0.0.1"),
        ("b1", "10.0.0.2"),
        ("a2", "::ffff:10.0.0.1"),
        ("a3", "10.0.0.1"),  # the oldest of its address goes: a1
        ("c1", "fd00::1:1"),
        ("c2", "fd00::2:1"),  # the oldest of all: b1
        ("c3", "fd00::3:1%eth0"),  # of one network: c1
    ]:
        found.enter(Raw(name), address)
    assert ended == ["a1", "b1", "c1"]
    found.end_older_half()
    assert ended[3:] == ["a2", "a3"]


def test_networks():
    assert network_of("10.0.0.1") != network_of("10.0.0.2")
    assert network_of("10.0.0.1") == network_of("::ffff:10.0.0.1")
    assert network_of("fd00::1") == network_of("fd00::ffff:1%eth0") != network_of("fd00:0:0:1::1")


def test_errors_of_accept_end_nobodys_session(monkeypatch):
    errors = [errno.ECONNABORTED, errno.EMFILE, errno.EPROTO, errno.ENFILE, errno.ENOMEM]

    class Listener:
        def __init__(self, listener):
            self.listener = listener

        def accept(self):
            if errors:
                raise OSError(errors.pop(), "of the test")
            return self.listener.accept()

        def __getattr__(self, name):
            return getattr(self.listener, name)

    monkeypatch.setattr(host_agent, "listen", lambda address: Listener(listen(address)))
    with running_agent() as agent, open_session(agent) as line:
        assert not errors
        assert agent._sessions
        errors.append(errno.EMFILE)
        with open_session(agent, session="t"):
            assert len(agent._sessions) == 2
        send(line, {"request": "status", "ranks": [0]})
        with pytest.raises(RefusedByHostError, match="has not been started"):
            handshake.receive_answer(line)


OPENING = {
    "session": "s",
    "versions": remote_processes.versions(),
    "ranks": [0],
    "num_workers": 2,
    "imports": [],
    "ccl": "cpu",
    "lost_after": 5.0,
}


@contextlib.contextmanager
def open_session(agent, **changed):
    line = connect(agent.address, TOKEN, "session", {**OPENING, **changed})
    line.limit(10)
    yield line
    line.close()


MALFORMED = [
    ("session", [], 'the message has no "session"'),
    ("session", {}, 'the message has no "session"'),
    ("session", None, 'the message has no "session"'),
    ("session", {**OPENING, "session": 7}, '"session" of the message is wrong'),
    ("session", {**OPENING, "session": "s" * 65}, '"session" of the message is wrong'),
    ("session", {**OPENING, "num_workers": 1 << 40}, '"num_workers" of the message is wrong'),
    ("session", {**OPENING, "num_workers": 0}, "cannot have 0 workers"),
    ("session", {**OPENING, "num_workers": True}, '"num_workers" of the message is wrong'),
    ("session", {**OPENING, "ranks": [2]}, '"ranks" of the message is wrong'),
    ("session", {**OPENING, "ranks": [-1]}, '"ranks" of the message is wrong'),
    ("session", {**OPENING, "ranks": [0, 0]}, '"ranks" of the message is wrong'),
    ("session", {**OPENING, "ranks": "01"}, '"ranks" of the message is wrong'),
    ("session", {**OPENING, "ranks": [0.0]}, '"ranks" of the message is wrong'),
    ("session", {**OPENING, "imports": [1]}, '"imports" of the message is wrong'),
    ("session", {**OPENING, "lost_after": float("nan")}, '"lost_after" of the message is wrong'),
    ("session", {**OPENING, "lost_after": "5"}, '"lost_after" of the message is wrong'),
    ("session", {**OPENING, "versions": {}}, '"versions" of the message is wrong'),
    ("session", {**OPENING, "versions": ["other 1"]}, "the controller has other 1"),
    ("session", OPENING, "it has a session of this name"),
    ("channel", {"session": "nobody's"}, "it has no such session"),
    ("channel", {"session": None}, '"session" of the message is wrong'),
    ("peer", {"session": "s", "source": 1}, 'the message has no "target"'),
    ("peer", {"session": "s", "source": 0, "target": 0}, "rank 0 is none of another host"),
    ("peer", {"session": "s", "source": 2, "target": 0}, "rank 2 is none of another host"),
    ("peer", {"session": "s", "source": 1, "target": 1}, "rank 1 is none of this host's"),
    ("peer", {"session": "s", "source": 1, "target": "0"}, '"target" of the message is wrong'),
]  # fmt: skip

REQUESTS = [
    ({"request": "how_it_ended", "rank": 0}, "worker 0 has not been started"),
    ({"request": "progress", "rank": 1}, "rank 1 is none of this host's"),
    ({"request": "status", "ranks": [1 << 70]}, '"ranks" of the message is wrong'),
    ({"request": "status", "ranks": [0, 1]}, r"ranks \[0, 1\] are not all this host's"),
    ({"request": "status"}, 'the message has no "ranks"'),
    ({"request": "format_disk"}, 'there is no request "format_disk"'),
    ({"request": ["start"]}, '"request" of the message is wrong'),
    (7, 'the message has no "request"'),
    ({"request": "start"}, 'the message has no "hosts"'),
    ({"request": "start", "hosts": [["127.0.0.1:1", [0]]]}, "are not those of the session"),
    ({"request": "start", "hosts": [["a", [0]], ["b", [0, 1]]]}, "are not those of the session"),
    ({"request": "start", "hosts": [["a", [0, 1]]]}, "are not those of the session"),
    ({"request": "start", "hosts": [["a"], [0, 1]]}, '"hosts" of the message is wrong'),
    ({"request": "start", "hosts": [["a:b", [0]], ["a", [1]]]}, "there is no address"),
]


def test_what_a_client_sends_is_an_error_for_that_client_alone():
    with running_agent() as agent, open_session(agent) as line:
        for purpose, message, match in MALFORMED:
            with pytest.raises(RefusedByHostError, match=match):
                connect(agent.address, TOKEN, purpose, message)
        other = connect(agent.address, TOKEN, "channel", {"session": "s"})
        with pytest.raises(RefusedByHostError, match="the session has this connection already"):
            connect(agent.address, TOKEN, "channel", {"session": "s"})
        other.close()
        for request, match in REQUESTS:
            send(line, request)
            with pytest.raises(RefusedByHostError, match=match):
                handshake.receive_answer(line)
        assert list(agent._sessions) == ["s"]


def test_a_host_that_never_starts_workers(monkeypatch):
    """It is stopped, or somebody else's by now; its machine still says that it is there."""
    never = threading.Event()
    monkeypatch.setattr(host_agent._HostedSession, "_start", lambda *arguments: never.wait())
    monkeypatch.setattr(processes, "LEAST_START_LIMIT", 0.3)
    monkeypatch.setenv("DISTIR_EXT_TOKEN", "of tests, and of no use elsewhere")
    credentials = Credentials(b"of tests, and of no use elsewhere")
    with running_agent(credentials) as agent:
        begin = time.monotonic()
        match = f"host {agent.address} did not start workers within 0.3 seconds"
        with pytest.raises(RuntimeError, match=match):
            dx.Session(1, workers=dx.Hosts([agent.address]), timeout=0.3)
        assert time.monotonic() - begin < 5
        never.set()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_controller_that_vanishes_while_hosts_connect(rank):
    """The other host never comes, or never answers; a session of the name can begin at once."""
    with (
        running_agent() as agent,
        socket.create_server(("127.0.0.1", 0)) as silent,
        open_session(agent, ranks=[rank]) as line,
    ):
        hosts = [(agent.address, [rank]), (format_address(silent.getsockname()), [1 - rank])]
        in_order = [list(each) for each in hosts[:: 1 - 2 * rank]]
        send(line, {"request": "start", "hosts": in_order, "below": []})
        if rank == 1:
            silent.accept()[0].recv(1)  # it has begun to connect
        time.sleep(0.1)
        line.close()
        begin = time.monotonic()
        while agent._sessions and time.monotonic() - begin < 20:
            time.sleep(0.01)
        assert time.monotonic() - begin < 2


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 3) + b"\xff\xfe\xfd",
        struct.pack("<Q", 1 << 63),
        struct.pack("<Q", 30) + b'{"message":{"dict":7},"buffers":[]}'[:30],
    ],
)
def test_what_is_no_frame_ends_that_client_alone(frame):
    with running_agent() as agent, open_session(agent) as line:
        bad = connect(agent.address, TOKEN, "session", {**OPENING, "session": "t"})
        bad.limit(10)
        bad.send_all(frame)
        with contextlib.suppress(ChannelClosedError):
            answers = [receive(bad) for _ in range(3)]
            raise AssertionError(answers)
        bad.close()
        send(line, {"request": "status", "ranks": [0]})
        with pytest.raises(RefusedByHostError, match="has not been started"):
            handshake.receive_answer(line)
