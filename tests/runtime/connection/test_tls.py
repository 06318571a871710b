"""TLS on sockets, with a key that both ends know: frames both ways, new keys, wrong keys."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import threading

import numpy as np
import pytest
import tvm_ffi

from distir_ext.wire import byte_stream
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import ChannelClosedError, receive, send
from distir_ext.wire.tls import KEY_BYTES, Tls, TlsError, WaitingError, make_identity
from distir_ext.workers import host_processes
from distir_ext.workers.host_processes import KeyedSocket

KEY = bytes(range(KEY_BYTES))


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


def test_a_socket_that_is_closed_is_not_another_one():
    """The system gives its number to the next socket, which TLS has nothing to do with."""
    one, other = key_streams()
    other_end = threading.Thread(target=other.receive, args=(1,))
    other_end.start()
    one.send_all(b"x")
    other_end.join()
    number = one.raw.fileno()
    one.raw.close()  # and not the stream
    next_one, its_peer = socket.socketpair()
    assert number in (next_one.fileno(), its_peer.fileno())
    with next_one, its_peer:
        Tls(one.tls.native).sendmsg([memoryview(b"y")])
        for each in (next_one, its_peer):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
    assert other.receive(1) == b"y"
    one.close()
    with pytest.raises(TlsError, match="the stream was closed"):
        one.tls.recv_into(memoryview(bytearray(1)))
    with pytest.raises(EOFError):
        other.receive(1)
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
    """Errors that both ends of a connection raise."""
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
    peer, other_peer = socket.socketpair()
    with ours, other_peer:
        host_processes.LocalProcesses(2, []).start(0, theirs, {1: KeyedSocket(peer, KEY)})
    ((command, options),) = started
    assert KEY.hex() not in str((command, options))
    assert len(options["pass_fds"]) == 4
