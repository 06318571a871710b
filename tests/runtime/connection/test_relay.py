"""Messages that a host's agent relays between a controller and its workers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

import pytest

from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import Frame, decode, receive, send
from distir_ext.workers.branches import HostBranch
from distir_ext.workers.hosts import relay


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


class Tree:
    """A relay of worker 1 that passes on to those of workers 2 and 3, and of worker 4."""

    def __init__(self):
        self.controller, inner = map(Stream, socket.socketpair())
        self.below = [Ends([2, 3]), Ends([4])]
        self.workers = {1: None} | {r: e for each in self.below for r, e in each.workers.items()}
        self.workers[1], end = socket.socketpair()
        end.setblocking(False)
        self.relay = relay.Relay(
            inner, {1: end}, {(2, 3): self._taken(self.below[0]), (4,): self._taken(self.below[1])}
        )
        self.controller.limit(20)

    @staticmethod
    def _taken(ends):
        stream, ends.controller = ends.controller, None
        stream.setblocking(False)
        return stream

    def answer(self, rank, message):
        received = receive(self.workers[rank])
        send(self.workers[rank], message)
        return received

    ask, heard = Ends.ask, Ends.heard

    def close(self):
        self.relay.close()
        for each in self.below:
            each.relay.close()
        for each in (self.controller, *self.workers.values()):
            each.close()


@pytest.fixture
def tree(monkeypatch):
    monkeypatch.setattr(relay, "GATHERING", 60.0)
    found = Tree()
    yield found
    found.close()


def test_hosts_below_are_told_and_answer_as_one(tree):
    """Also those that lose a worker; and some of the workers."""
    for _ in range(2):
        tree.ask("step")
        assert [tree.answer(rank, "done") for rank in (1, 2, 3, 4)] == ["step"] * 4
        assert tree.heard() == (None, "done")
    tree.workers[3].close()
    assert tree.heard() == {"from": [3], "lost": True}
    tree.ask("next")
    for rank in (4, 2, 1):
        assert tree.answer(rank, rank == 2) == "next"
    found = [tree.heard(), tree.heard()]
    assert sorted((sorted(ranks), answer) for ranks, answer in found) == [
        ([1, 4], False),
        ([2], True),
    ]
    tree.ask("some", to=[1, 2])
    tree.ask("others", to=[4])
    for rank in (4, 2, 1):
        assert tree.answer(rank, "done") == ("others" if rank == 4 else "some")
    assert sorted(sorted(tree.heard()[0]) for _ in range(2)) == [[1, 2], [4]]


def test_failures_and_lost_hosts_below_are_passed_on_at_once(tree):
    tree.ask("step")
    assert [receive(each) for each in tree.workers.values()] == ["step"] * 4
    send(tree.workers[3], {"failure": {"kind": "ValueError"}})
    assert tree.heard() == ([3], {"failure": {"kind": "ValueError"}})
    send(tree.workers[4], b"")
    tree.below[0].relay.close()
    found = tree.heard()
    assert (sorted(found["from"]), found["lost"]) == ([2, 3], True)
    send(tree.workers[1], b"")
    ranks, answer = tree.heard()
    assert (sorted(ranks), answer) == ([1, 4], b"")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("text", "something else than answers"),
        ({"from": [1], "frame": Frame("x")}, "does not have"),
        ({"from": [2], "frame": Frame("x")}, "to nothing that it was sent"),
        ({"from": [2]}, "says nothing"),
    ],
)
def test_host_below_that_says_anything(message, why):
    controller, inner = map(Stream, socket.socketpair())
    host, end = socket.socketpair()
    end.setblocking(False)
    passing_on = relay.Relay(inner, {}, {(2, 3): end})
    send(host, message)
    found = receive(controller)
    assert found["from"] is None
    assert why in found["broken"]
    passing_on.close()
    for each in (controller, host):
        each.close()


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
