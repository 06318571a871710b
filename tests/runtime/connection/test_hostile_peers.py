"""Workers whose peers send anything, or write anything to the memory that they share."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading

import numpy as np
import pytest
import tvm_ffi

from ..lateness import SANITIZED

GROUPS = "[[0, 1]]"
COUNT = 8


def scope_of(ranks):
    """FNV-1a of what names a group."""
    found = 14695981039346656037
    for value in (0, *ranks):
        for byte in value.to_bytes(8, "little"):
            found = (found ^ byte) * 1099511628211 % 2**64
    return found


def header(
    scope=None, num_bytes=4 * COUNT, operation=b"all_reduce", ndim=1, shape=(COUNT,), kind=2
):
    """A message's header, as it lies in memory."""
    sizes = [*shape, *[0] * (16 - len(shape))]
    return struct.pack(
        "<Qq16sqqqBBHi16q",
        scope_of((0, 1)) if scope is None else scope,
        num_bytes,
        operation,
        1,
        0,
        0,
        kind,
        32,
        1,
        ndim,
        *sizes,
    )


class Board:
    """The shared memory of a host's workers, as their host sees it."""

    def __init__(self, num_workers, in_flight=None):
        make = tvm_ffi.get_global_func("distir.runtime.process_board")
        self.native = make(num_workers, in_flight)
        descriptor = tvm_ffi.get_global_func("distir.runtime.process_board_descriptor")
        self._file = os.fdopen(descriptor(self.native), "r+b", buffering=0)
        self.descriptor = self._file.fileno()
        self.num_workers = num_workers

    def abort(self):
        tvm_ffi.get_global_func("distir.runtime.process_board_abort")(self.native)

    def all_reduce(self, rank, peers=(), values=None, times=1, patience=20):
        """Runs all-reduces of a worker in a thread of its own; returns its result or its error.

        After so many seconds its session is ended.
        """
        found = []

        def work():
            worker = tvm_ffi.get_global_func("distir.runtime.process_worker")(
                os.dup(self.descriptor),
                rank,
                tvm_ffi.Shape(tuple(range(self.num_workers))),
                tvm_ffi.Shape(tuple(peers)),
                [b""] * len(peers),
                tvm_ffi.Shape(tuple(r for r in range(self.num_workers) if not peers or r == rank)),
                "cpu",
                tvm_ffi.Shape(tuple(r if peers else 0 for r in range(self.num_workers))),
                "session",
                True,
                "",
            )
            new = tvm_ffi.get_global_func("distir.runtime.process_worker_new_argument")
            given = np.ones(COUNT, "float32") if values is None else values
            x, out = (new(worker, tvm_ffi.Shape(given.shape), "float32") for _ in range(2))
            np.from_dlpack(x)[:] = given
            run = tvm_ffi.get_global_func("distir.runtime.process_worker_run")
            call = tvm_ffi.get_global_func("distir.runtime.all_reduce")
            for step in range(1, times + 1):
                run(worker, step, 1, "test", call, [x, GROUPS, "sum", out])
            failure = tvm_ffi.get_global_func("distir.runtime.process_worker_failure")(worker)
            found.append(np.from_dlpack(out).copy() if failure is None else str(failure["message"]))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(patience)
        while thread.is_alive():
            self.abort()
            thread.join(0.3)
        return found[0]


def after(message):
    """Runs a worker's all-reduce whose peer on another host sends this message."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(message)
        return Board(2).all_reduce(0, (-1, ours.detach()))


def test_right_message():
    two = np.full(COUNT, 2, "float32")
    np.testing.assert_array_equal(after(header() + two.tobytes()), two + 1)


WRONG = {
    "fewer bytes": (
        header(num_bytes=4) + b"abcd",
        "device 1 sent 4 bytes of all_reduce",
    ),
    "no bytes": (header(num_bytes=0), "device 1 sent 0 bytes"),
    "more bytes": (header(num_bytes=64) + b"x" * 64, "device 1 sent 64 bytes"),
    "negative bytes": (header(num_bytes=-1), "connection to device 1"),
    "bytes without end": (header(num_bytes=2**62), "connection to device 1"),
    "a gigabyte": (header(num_bytes=2**30), "connection to device 1"),
    "dimensions beyond the header": (header(ndim=2**30), "connection to device 1"),
    "negative dimensions": (header(ndim=-1), "connection to device 1"),
    "a name without an end": (header(operation=b"a" * 16), "connection to device 1"),
    "a name for the terminal": (header(operation=b"\x1b[2J"), "connection to device 1"),
    "a name that is no text": (header(operation=b"\xff\xfe"), "connection to device 1"),
    "another call": (
        header(operation=b"all_gather") + b"x" * 4 * COUNT,
        "device 0 calls all_reduce .* while device 1 calls all_gather",
    ),
    "another shape": (
        header(shape=(2, 4), ndim=2) + b"x" * 4 * COUNT,
        r"of .* \[2, 4\]",
    ),
    "an unknown dtype": (header(kind=200) + b"x" * 4 * COUNT, "all_reduce of an unknown type"),
}


@pytest.mark.parametrize("case", WRONG)
def test_message_of_another_host(case):
    message, error = WRONG[case]
    found = after(message)
    assert isinstance(found, str)
    assert re.search(error, found)


IN_FLIGHT = 1 << 20


@pytest.mark.parametrize("num_bytes", [0, 1000, 1 << 18])
def test_peer_that_never_stops_to_send(num_bytes):
    """Unreceived messages take at most half of the host's memory limit; then the session ends."""
    ours, theirs = socket.socketpair()
    message = header(scope=7, num_bytes=num_bytes) + bytes(num_bytes)
    sent = 0

    def flood():
        nonlocal sent
        with theirs, contextlib.suppress(OSError):
            while sent < 8 * IN_FLIGHT:
                sent += theirs.send(message[sent % len(message) :])

    thread = threading.Thread(target=flood)
    thread.start()
    found = Board(2, IN_FLIGHT).all_reduce(0, (-1, ours.detach()))
    thread.join()
    assert found == (
        "all_reduce over devices [0, 1] stopped because workers of other hosts have sent more "
        f"than the {IN_FLIGHT // 2} bytes that this host keeps for workers that do not receive "
        "them, most of them here device 1"
    )
    assert sent < 2 * IN_FLIGHT


def test_peers_that_receive_may_send_any_amount():
    """One is ahead of the other by a message at most: two, a third of the room, are unread."""
    ends = [each.detach() for each in socket.socketpair()]
    values = np.ones(IN_FLIGHT // 24, "float32")
    found = []

    def other():
        found.append(Board(2, IN_FLIGHT).all_reduce(1, (ends[1], -1), values, times=20))

    thread = threading.Thread(target=other)
    thread.start()
    found.append(Board(2, IN_FLIGHT).all_reduce(0, (-1, ends[0]), values, times=20))
    thread.join()
    for each in found:
        np.testing.assert_array_equal(each, 2 * values)


def test_place_that_is_stated_over_and_over():
    """A worker of the same host never stops to say where its one message lies."""
    board = Board(2, IN_FLIGHT)
    written = 64 + 2 * 640 + 2 * 128  # behind the header, two workers' status, counts of two pairs
    stop = threading.Event()

    def flood():
        with mmap.mmap(board.descriptor, written + 128) as memory:
            while not stop.is_set():
                (read,) = struct.unpack_from("<Q", memory, written + 64)
                struct.pack_into("<Q", memory, written, read + 1000)

    thread = threading.Thread(target=flood)
    thread.start()
    found = board.all_reduce(0)
    stop.set()
    thread.join()
    assert "overwritten the memory" in found


def test_size_of_shared_memory_is_sealed():
    board = Board(2)
    size = os.fstat(board.descriptor).st_size
    for other in (0, size - 4096, size + 4096):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(board.descriptor, other)


@pytest.mark.skipif(SANITIZED, reason="sanitizers leave a process fewer addresses")
def test_shared_memory_of_thousands_of_workers():
    """Each host of a session maps it, for all of them; only what is used takes memory."""
    board = Board(4096)
    file = os.fstat(board.descriptor)
    assert file.st_size > 1 << 45
    assert file.st_blocks * 512 < 1 << 20
    status = tvm_ffi.get_global_func("distir.runtime.process_board_status")
    assert list(status(board.native, 4095)) == ["", ""]


def test_shared_memory_of_another_number_of_workers():
    board = Board(2)
    board.num_workers = 3
    enter = tvm_ffi.get_global_func("distir.runtime.process_worker")
    ranks = tvm_ffi.Shape((0, 1, 2))
    none = tvm_ffi.Shape(())
    with pytest.raises(ValueError, match="is not that of 3 workers"):
        enter(os.dup(board.descriptor), 0, ranks, none, [], ranks, "cpu", none, "session", True, "")


@pytest.mark.parametrize("rank", [-1, 2, 2**30])
def test_status_of_a_worker_that_there_is_not(rank):
    status = tvm_ffi.get_global_func("distir.runtime.process_board_status")
    with pytest.raises(ValueError, match=f"there is no worker {rank} of 2"):
        status(Board(2).native, rank)


def test_status_that_is_no_text():
    """The names of what runs are cut to a few hundred bytes, and lie where others write."""
    board = Board(2)
    with mmap.mmap(board.descriptor, 4096) as memory:
        memory[64:4096] = b"\xe2\x82\x1b\xff" * (4032 // 4)
    status = tvm_ffi.get_global_func("distir.runtime.process_board_status")
    for text in status(board.native, 0):
        assert set(text) <= {"?"}
        assert text


# Numbers that were once used as places, counts and sizes.
HOSTILE = [0, 1, 2**64 - 1, 2**63, 2**63 - 1, 2**62, 2**32, 2**31, 2**30, 64, 63, 1024, 4096]


def scribble(seed):
    """An all-reduce of two workers, while somebody writes to all that they share."""
    dice = random.Random(seed)
    board = Board(2)
    pages = 2 * (os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4096) * 2
    fixed = os.fstat(board.descriptor).st_size - pages * 4096
    stop = threading.Event()
    values = np.ones(dice.choice([COUNT, 3000, 70_000]), "float32")

    def write():
        with mmap.mmap(board.descriptor, fixed) as memory:
            while not stop.is_set():
                value = dice.choice([*HOSTILE, dice.getrandbits(64)])
                place = dice.randrange(fixed // 8) if dice.random() < 0.5 else dice.randrange(200)
                struct.pack_into("<Q", memory, place * 8, value)

    writer = threading.Thread(target=write)
    writer.start()
    others = threading.Thread(target=board.all_reduce, args=(1, (), values, 1, 0.3))
    others.start()
    board.all_reduce(0, (), values, patience=0.3)
    others.join()
    stop.set()
    writer.join()


@pytest.mark.large
def test_shared_memory_that_somebody_overwrites():
    """Any result and any error will do, but no process dies."""
    program = (
        "import distir_ext\nfrom tests.runtime.connection import test_hostile_peers as these\n"
        "for seed in range(20): these.scribble(seed)\nprint('alive')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "alive", (done.returncode, done.stderr)
