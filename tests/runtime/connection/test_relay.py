"""What a host's agent passes on between a controller and its workers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest

from distir_ext._workers.branches import HostBranch
from distir_ext._workers.channel import Frame, decode, receive, send
from distir_ext._workers.connection.byte_stream import Stream
from distir_ext._workers.hosts import relay


class Ends:
    """Of a relay: the controller's, and by rank those of workers, which are sockets here."""

    def __init__(self, ranks):
        self.controller, inner = map(Stream, socket.socketpair())
        pairs = {rank: socket.socketpair() for rank in ranks}
        self.workers = {rank: outer for rank, (outer, _) in pairs.items()}
        for _, end in pairs.values():
            end.setblocking(False)
        self.relay = relay.Relay(inner, {rank: end for rank, (_, end) in pairs.items()})
        self.controller.limit(20)
        for each in self.workers.values():
            each.settimeout(20)

    def ask(self, message, to=None, gathers=True):
        send(self.controller, {"to": to, "gathers": gathers, "frame": Frame(message)})

    def heard(self):
        found = receive(self.controller)
        frame = found.pop("frame", None)
        return found if frame is None else (found["from"], decode(frame))

    def close(self):
        self.relay.close()
        for each in (self.controller, *self.workers.values()):
            each.close()


@pytest.fixture
def ends(monkeypatch):
    """Of three workers, whose answers wait for each other."""
    monkeypatch.setattr(relay, "GATHERING", 60.0)
    found = Ends([2, 3, 5])
    yield found
    found.close()


def test_equal_answers_are_one(ends):
    ends.ask({"step": 1})
    for rank, result in ((5, 1), (2, 1), (3, 2)):
        assert receive(ends.workers[rank]) == {"step": 1}
        send(ends.workers[rank], {"result": result})
    found = [ends.heard(), ends.heard()]
    assert sorted((sorted(ranks), answer["result"]) for ranks, answer in found) == [
        ([2, 5], 1),
        ([3], 2),
    ]


def test_answers_that_are_all_equal_say_not_of_whom(ends):
    """So hosts with as many workers send the same."""
    ends.ask({"step": 1})
    for each in ends.workers.values():
        send(each, "done")
    assert ends.heard() == (None, "done")


def test_an_answer_comes_before_the_end_of_its_worker(ends):
    """Such as one that says why it does not start."""
    ends.ask("hello")
    assert receive(ends.workers[3]) == "hello"
    send(ends.workers[3], {"refused": "no GPU"})
    ends.workers[3].close()
    assert ends.heard() == ([3], {"refused": "no GPU"})
    assert ends.heard() == {"from": [3], "lost": True}


def test_an_answer_is_passed_on_where_its_worker_ends_before_the_next_frame(ends, monkeypatch):
    """Such as one that refuses the first frame of two, which a busy agent sends late."""
    ends.ask("hello")
    assert receive(ends.workers[3]) == "hello"
    is_closed = threading.Event()
    push = relay.Relay._push

    def late(self, end):
        is_closed.wait(20)
        push(self, end)

    monkeypatch.setattr(relay.Relay, "_push", late)
    ends.ask("next", to=[3])
    time.sleep(0.05)  # the relay is about to send it
    send(ends.workers[3], {"refused": "no GPU"})
    ends.workers[3].close()
    is_closed.set()
    assert ends.heard() == ([3], {"refused": "no GPU"})
    assert ends.heard() == {"from": [3], "lost": True}


def test_some_of_the_workers(ends):
    ends.ask("first", to=[3])
    ends.ask("second", to=[2, 5])
    for rank in (2, 5):
        assert receive(ends.workers[rank]) == "second"
        send(ends.workers[rank], rank)
    assert sorted(ends.heard()[1] for _ in range(2)) == [2, 5]
    assert receive(ends.workers[3]) == "first"


def test_answers_that_others_wait_for_are_passed_on_at_once(ends):
    ends.ask("now", gathers=False)
    send(ends.workers[3], "mine")
    assert ends.heard() == ([3], "mine")


def test_answers_wait_no_longer_than_a_moment(ends, monkeypatch):
    monkeypatch.setattr(relay, "GATHERING", 0.01)
    ends.ask("slow")
    send(ends.workers[3], "mine")
    assert ends.heard() == ([3], "mine")


def test_failures_are_passed_on_at_once(ends):
    ends.ask("fail")
    send(ends.workers[2], {"failure": {"kind": "ValueError"}})
    assert ends.heard() == ([2], {"failure": {"kind": "ValueError"}})


def test_worker_that_is_lost(ends):
    """Nobody waits for its answer, neither to this request nor to later ones."""
    ends.ask("step")
    ends.workers[5].close()
    assert ends.heard() == {"from": [5], "lost": True}
    for message in ("step", "next"):
        for rank in (2, 3):
            assert receive(ends.workers[rank]) == message
            send(ends.workers[rank], "done")
        ranks, answer = ends.heard()
        assert (sorted(ranks), answer) == ([2, 3], "done")
        ends.ask("next")


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (struct.pack("<Q", 0), "cannot have a header of 0 bytes"),
        (struct.pack("<Q", 2) + b"[]", "not a frame"),
        (struct.pack("<Q", 26) + b'{"message":1,"buffers":[]}', "to nothing that it was sent"),
    ],
)
def test_worker_that_says_anything(ends, sent, why):
    ends.workers[3].sendall(sent)
    found = ends.heard()
    assert found["from"] == [3]
    assert why in found["broken"]


def test_nobody_waits_for_a_worker_that_does_not_read(ends):
    """More than sockets take, several times."""
    large = b"x" * (4 << 20)
    for _ in range(3):
        ends.ask(large)
    for _ in range(3):
        assert receive(ends.workers[5]) == large
        assert receive(ends.workers[2]) == large
    assert receive(ends.workers[3]) == large


@pytest.mark.parametrize("message", ["text", {"frame": 1}, {"to": [7], "frame": b""}])
def test_controller_that_says_anything_ends_its_session(ends, message):
    send(ends.controller, message)
    for each in ends.workers.values():
        with contextlib.suppress(ConnectionError):
            assert each.recv(1) == b""


ANSWER = Frame("an answer")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("text", "something else than answers"),
        ({"from": [], "frame": ANSWER}, "does not have"),
        ({"from": [1], "frame": ANSWER}, "does not have"),
        ({"from": "2", "frame": ANSWER}, "does not have"),
        ({"from": [[2]], "frame": ANSWER}, "does not have"),
        ({"from": [2, 2], "frame": ANSWER}, "twice"),
        ({"from": [2]}, "says nothing"),
        ({"from": [2], "lost": 1}, "says nothing"),
    ],
)
def test_agent_that_says_anything(message, why):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(theirs, message)
        with pytest.raises(ValueError, match=why):
            HostBranch(ours, [2, 3]).read({})


def test_answers_of_a_host_are_decoded_once():
    ours, theirs = socket.socketpair()
    known = {}
    with ours, theirs:
        branch = HostBranch(ours, [2, 3])
        for rank in (2, 3):
            send(theirs, {"from": [rank], "frame": Frame({"result": [1]})})
        one, other = branch.read(known), branch.read(known)
        assert one.message is other.message
        send(theirs, {"from": None, "frame": Frame(1)})
        assert branch.read(known).ranks == (2, 3)
        send(theirs, {"from": [2], "frame": struct.pack("<Q", 9)})
        assert "cut off" in branch.read(known).broken
