"""Encrypted connections between hosts: what somebody between sees, and cannot do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import selectors
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import psutil
import pytest
import tvm_ffi
from tests.abi.plans import layout, transfer_plan
from tests.runtime.listeners import TOKEN, answering, relay, running_agent
from tests.runtime.test_handshake import OPENING

import distir_ext as dx
from distir_ext import cli
from distir_ext._workers import byte_stream, handshake, host_agent, host_processes
from distir_ext._workers.byte_stream import Stream
from distir_ext._workers.channel import ChannelClosedError, receive, send
from distir_ext._workers.connections import parse_address
from distir_ext._workers.credentials import Credentials
from distir_ext._workers.handshake import NotConnectedError, RefusedByHostError, connect
from distir_ext._workers.host_processes import KeyedSocket
from distir_ext._workers.tls import KEY_BYTES, Tls, TlsError, WaitingError, make_identity
from distir_ext.session import Session, WorkerError

SAFE = replace(TOKEN, tls=True)
KEY = bytes(range(KEY_BYTES))


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


def key_streams(keys=(KEY, KEY)):
    raws = socket.socketpair()
    for raw in raws:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return [
        Stream(raw, Tls.of_key(raw.fileno(), index == 0, key))
        for index, (raw, key) in enumerate(zip(raws, keys, strict=True))
    ]


def test_frames_go_both_ways_at_once():
    """Much more than sockets take, odd sizes, empty arrays and many small buffers."""
    one, other = key_streams()
    arrays = [np.random.default_rng(n).integers(0, 256, n, "uint8") for n in (700_001, 0, 1, 16385)]
    message = {"all": [tvm_ffi.from_dlpack(each) for each in arrays] + [b"x"] * 1000}
    sender = threading.Thread(target=send, args=(one, message))
    sender.start()
    back = threading.Thread(target=send, args=(other, message))
    back.start()
    for stream in (other, one):
        found = receive(stream)["all"]
        for expected, actual in zip(arrays, found, strict=False):
            np.testing.assert_array_equal(actual.numpy(), expected)
        assert found[len(arrays) :] == [b"x"] * 1000
    sender.join()
    back.join()
    one.close()
    with pytest.raises(ChannelClosedError, match="ended"):
        receive(other)
    other.close()


def test_reading_and_writing_wait_for_one_handshake(monkeypatch):
    """The answer to the handshake is found by whoever reads first, here before the writer waits."""
    one, other = key_streams()
    poll = select.poll
    is_read = threading.Event()

    def slow_poll():
        if threading.current_thread() is writer:
            is_read.wait(0.3)
        return poll()

    monkeypatch.setattr(select, "poll", slow_poll)
    writer = threading.Thread(target=one.send_all, args=(b"written",), daemon=True)
    writer.start()
    answerer = threading.Thread(target=other.send_all, args=(b"read",), daemon=True)
    answerer.start()
    assert one.receive(4) == b"read"
    is_read.set()
    other.limit(5)
    assert other.receive(7) == b"written"
    writer.join()
    answerer.join()
    one.close()
    other.close()


class Between:
    """Passes on what two sockets say, and counts the records of TLS that tell of a new key."""

    TELLS_OF_A_KEY = 5 + 1 + 16  # type, size and one byte; the type of what it is; its proof

    def __init__(self, ends):
        self.told = [0, 0]
        self.threads = [
            threading.Thread(target=self.pump, args=(index, *pair), daemon=True)
            for index, pair in enumerate([ends, ends[::-1]])
        ]
        for thread in self.threads:
            thread.start()

    def pump(self, index, source, target):
        seen = bytearray()
        while part := source.recv(1 << 16):
            target.sendall(part)
            seen += part
            while len(seen) >= 5 and len(seen) >= (size := 5 + int.from_bytes(seen[3:5], "big")):
                self.told[index] += size == 5 + self.TELLS_OF_A_KEY
                del seen[:size]


@pytest.mark.parametrize("small", [True, False])
def test_keys_change_while_both_sides_read_and_write(small):
    """Much more than sockets take; nobody reads before the sockets are full."""
    pairs = [socket.socketpair() for _ in range(2)]
    between = Between((pairs[0][1], pairs[1][1]))
    streams = []
    for index, (raw, _) in enumerate(pairs):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        tls = Tls.of_key(raw.fileno(), index == 0, KEY, bytes_of_a_key=20_000)
        streams.append(Stream(raw, tls))
        streams[-1].limit(30)
    given = [np.random.default_rng(n).bytes(3_000_000) for n in range(2)]
    size = 100 if small else len(given[0])
    full = threading.Event()

    def write(index):
        for begin in range(0, 300_000 if small else size, size):
            streams[index].send_all(given[index][begin : begin + size])

    got = [None, None]

    def read(index):
        full.wait(0.2)
        got[index] = streams[index].receive(300_000 if small else size)

    threads = [threading.Thread(target=f, args=(i,)) for f in (write, read) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [each[: len(got[0])] for each in given[::-1]]
    raws = [raw for pair in pairs for raw in pair]
    for raw in raws:
        byte_stream.interrupt(raw)
    for thread in between.threads:
        thread.join()
    for raw in raws:
        raw.close()
    # A key ends where a call of 256 kB does, if the socket does not take it at once; a record of
    # 100 bytes costs 132.
    least = 300_000 // 100 * 132 // 20_000 - 1 if small else 3_000_000 // (1 << 18) - 1
    assert min(between.told) >= least


def test_new_keys_when_sockets_are_full():
    """Both sides have one for every byte, and nobody reads until nobody can write."""
    streams = []
    for index, raw in enumerate(socket.socketpair()):
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        tls = Tls.of_key(raw.fileno(), index == 0, KEY, bytes_of_a_key=1)
        streams.append(Stream(raw, tls))
        streams[-1].limit(5)
    data = bytes(200)

    def write(stream):
        for byte in data:
            stream.send_all(bytes([byte]))

    writers = [threading.Thread(target=write, args=(each,)) for each in streams]
    for thread in writers:
        thread.start()
    writers[0].join(0.05)
    assert all(thread.is_alive() for thread in writers)
    found = [None, None]

    def read(index):
        with contextlib.suppress(OSError):
            found[index] = streams[index].receive(len(data))

    readers = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in readers:
        thread.start()
    for thread in (*readers, *writers):
        thread.join()
    assert found == [data, data]


def handshake_of(streams):
    """What both ends raise."""
    raised = [None, None]

    def make(index):
        try:
            streams[index].limit(5)
            streams[index].receive(1) if index else streams[index].send_all(b"x")
        except (OSError, EOFError) as error:
            raised[index] = error
            streams[index].hang_up()

    threads = [threading.Thread(target=make, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        stream.close()
    return raised


def test_who_has_not_the_key():
    assert handshake_of(key_streams()) == [None, None]
    raised = handshake_of(key_streams((KEY, bytes(KEY_BYTES))))
    assert all(isinstance(each, TlsError | EOFError | OSError) for each in raised)


def test_a_certificate_is_no_key():
    """Who listens without the key has a certificate instead."""
    raws = socket.socketpair()
    streams = [
        Stream(raws[0], Tls.of_key(raws[0].fileno(), True, KEY)),
        Stream(raws[1], Tls.of_identity(raws[1].fileno(), False, make_identity(), "")),
    ]
    assert all(handshake_of(streams))


def test_keys_of_connections_are_not_made_of_the_known_key_alone():
    """Who records a connection and finds its key later reads nothing: both sides add a secret."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        tls = Tls.of_key(one.fileno(), True, KEY)
        with pytest.raises(WaitingError):
            tls.handshake()
        hello = other.recv(1 << 16)
    modes = b"\x00\x2d" + b"\x00\x02" + b"\x01"  # the extension, its size, its list's size
    assert modes + b"\x01" in hello  # psk_dhe_ke and nothing else, of RFC 8446, 4.2.9


def test_keys_are_not_arguments_which_others_can_read(monkeypatch):
    started = []
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **options: started.append((command, options))
    )
    ours, theirs = socket.socketpair()
    with ours:
        host_processes.LocalProcesses(1, []).start(0, KeyedSocket(theirs, KEY))
    ((command, options),) = started
    assert KEY.hex() not in str((command, options))
    assert len(options["pass_fds"]) == 3


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
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handshake, "KEY_BYTES", 8)
            with pytest.raises(RefusedByHostError, match='"key" of the message is wrong'):
                connect(agent.address, SAFE, "channel", {"session": "s", "rank": 0})
        connect(agent.address, SAFE, "channel", {"session": "s", "rank": 0}).close()
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


def run_openssl(directory, *arguments):
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Of an authority, of 127.0.0.1 and of another host, signed by it."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    here = tmp_path_factory.mktemp("certificates")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run_openssl(here, "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem",
                "-subj", "/CN=authority")  # fmt: skip
    for name, alternative in (("own", "IP:127.0.0.1"), ("other", "DNS:other.example")):
        run_openssl(here, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                    "-subj", f"/CN={name}")  # fmt: skip
        (here / "extensions").write_text(f"subjectAltName={alternative}")
        run_openssl(here, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                    "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.pem")  # fmt: skip
    return here


HELLO_OF_TLS = b"distir\x00\x02" + struct.pack("<B?32sB", 0, True, bytes(32), 1) + b"x"


def begin(agent):
    """A socket on which an agent waits for TLS."""
    raw = socket.create_connection(parse_address(agent.address))
    raw.settimeout(10)
    raw.sendall(HELLO_OF_TLS)
    left = 41
    while left:
        left -= len(raw.recv(left))
    return raw


def strange_context(certificates=None):
    """Python's own TLS, as a stranger has it, with a certificate or without."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if certificates is not None:
        context.load_cert_chain(certificates / "own.pem", certificates / "own.key")
    return context


def test_strangers_with_a_certificate_get_as_far_as_the_proof(certificates):
    with running_agent(SAFE) as agent, begin(agent) as raw:
        with strange_context(certificates).wrap_socket(raw) as stream:
            assert stream.version() == "TLSv1.3"
            assert len(stream.recv(100)) == 32  # the agent's proof
            stream.sendall(bytes(32))
            assert stream.recv(100) == b""
        assert not agent._sessions


def test_an_old_version_of_tls(certificates):
    context = strange_context(certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        running_agent(SAFE) as agent,
        begin(agent) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw)


def test_who_connects_without_a_certificate():
    with (
        running_agent(SAFE) as agent,
        begin(agent) as raw,
        strange_context().wrap_socket(raw) as stream,
        pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"),
    ):
        stream.recv(1)


def test_half_a_record_and_then_silence(monkeypatch):
    monkeypatch.setattr(host_agent, "HANDSHAKE_LIMIT", 0.3)
    with running_agent(SAFE) as agent, begin(agent) as raw:
        raw.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
        begun = time.monotonic()
        assert raw.recv(1) == b""
        assert time.monotonic() - begun < 3


def test_new_keys_without_end_do_not_hold_a_deadline_up(certificates):
    """They are no data, so OpenSSL reads on for as long as there are any."""
    library = ctypes.CDLL("libssl.so.3")
    for name in ("TLS_client_method", "SSL_CTX_new", "SSL_new"):
        getattr(library, name).restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.SSL_CTX_new(ctypes.c_void_p(library.TLS_client_method())))
    for kind, file in (("certificate", "own.pem"), ("PrivateKey", "own.key")):
        use = getattr(library, f"SSL_CTX_use_{kind}_file")
        assert use(context, os.fsencode(certificates / file), 1) == 1
    stranger = ctypes.c_void_p(library.SSL_new(context))
    raw, theirs = socket.socketpair()
    for each in (raw, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    library.SSL_set_fd(stranger, theirs.fileno())
    tls = Tls.of_identity(raw.fileno(), False, make_identity(), "")
    stream = Stream(raw)
    stream.limit(10)
    connecting = threading.Thread(target=library.SSL_connect, args=(stranger,))
    connecting.start()
    stream.secure(tls)
    connecting.join()
    theirs.setblocking(False)
    while library.SSL_key_update(stranger, 0) == 1:
        if library.SSL_do_handshake(stranger) != 1:
            break  # the socket is full
    count = 0
    with pytest.raises(WaitingError):
        tls.recv_into(memoryview(bytearray(1)))
    raw.setblocking(False)
    while True:
        try:
            count += len(raw.recv(1 << 20))
        except BlockingIOError:
            break
    assert count > 0  # that were left for another time, before which a deadline may be over
    library.SSL_free(stranger)
    library.SSL_CTX_free(context)
    raw.close()
    theirs.close()


def credentials_of(certificates, name):
    return Credentials(
        TOKEN.token,
        True,
        certificates / f"{name}.pem",
        certificates / f"{name}.key",
        certificates / "ca.pem",
    )


def test_own_certificates_of_an_authority(certificates):
    own, other = (credentials_of(certificates, name) for name in ("own", "other"))
    with running_agent(own) as agent:
        connect(agent.address, own, "session", OPENING).close()
        connect(agent.address, other, "session", OPENING).close()  # who connects has no address
        with pytest.raises(NotConnectedError):
            connect(agent.address, SAFE, "session", OPENING)
    with running_agent(other) as agent:
        with pytest.raises(NotConnectedError, match=r"certificate verify failed: .*mismatch"):
            connect(agent.address, own, "session", OPENING)
        connect(agent.address, replace(own, authority=None), "session", OPENING).close()
    with (
        running_agent(SAFE) as agent,
        pytest.raises(NotConnectedError, match=r"verify failed: self.signed certificate"),
    ):
        connect(agent.address, own, "session", OPENING)


def test_files_of_no_use(certificates, tmp_path, capsys):
    path = certificates / "own.pem"
    cases = [
        (Credentials(TOKEN.token, True, tmp_path / "no", path), "no has no certificate"),
        (Credentials(TOKEN.token, True, path, certificates / "other.key"), "other.key does not"),
        (Credentials(TOKEN.token, True, path), "go together"),
        (Credentials(TOKEN.token, True, authority=certificates / "own.key"), "of an authority"),
    ]
    for credentials, match in cases:
        with pytest.raises(ValueError, match=match):
            _ = credentials.identity
    command = ["host", "--bind", "127.0.0.1:0", "--certificate", "nowhere", "--key", "nowhere"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTIR_EXT_TOKEN", "of tests, and of no use elsewhere")
        assert cli.main(command) == 1
    assert "distir host: nowhere has no certificate" in capsys.readouterr().err


def test_insecure_warns(monkeypatch):
    monkeypatch.setenv("DISTIR_EXT_TOKEN", TOKEN.token.decode())
    with running_agent() as agent, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Session(1, workers=dx.Hosts([agent.address], tls=False)).close()
    assert any(
        "connections between hosts are not encrypted" in str(each.message) for each in caught
    )


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
