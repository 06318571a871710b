"""Copies that meet, and what keeps them from it: each is one error, in time."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.runtime.connection.listeners import TOKEN, running_agent

from distir_ext.launch.finding import LauncherError
from distir_ext.launch.place import Place
from distir_ext.wire import handshake
from distir_ext.wire.connections import format_address, listen, parse_address
from distir_ext.wire.credentials import Credentials
from distir_ext.workers.hosts import copies
from distir_ext.workers.hosts.copies import Leader, serve

SHARED = "of tests, and of no use elsewhere"
TELLS = "distir.runtime.tell_exit_status"
PLACE = Place("tests", 0, 3, variables={"RANK_OF_TESTS": "0"})


def place(rank, size=3):
    return dataclasses.replace(PLACE, rank=rank, size=size)


@pytest.fixture
def listener():
    return listen("127.0.0.1:0")


@pytest.fixture
def address(listener):
    return format_address(listener.getsockname())


@pytest.fixture
def leader(listener):
    return Leader(PLACE, SHARED, listener)


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


def copy(address, rank, size=3):
    """The connection of a copy that says no more."""
    opening = {"rank": rank, "size": size, "versions": copies.versions()}
    return handshake.connect(address, Credentials(SHARED.encode()), "copy", opening)


@pytest.fixture
def told(monkeypatch):
    """The connections on which the status of this process would be told."""
    lines = []
    found = copies.tvm_ffi.get_global_func

    def get_global_func(name):
        return (lambda *line: lines.append(line)) if name == TELLS else found(name)

    monkeypatch.setattr(copies.tvm_ffi, "get_global_func", get_global_func)
    return lines


def failure(call, *arguments):
    with pytest.raises(LauncherError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_token_that_is_wrong_is_an_error_at_once(leader, address, pool):
    gathered = pool.submit(failure, leader.gather, 1.0)
    begun = time.monotonic()
    said = failure(serve, place(1), SHARED[::-1], [address], 60.0)
    assert time.monotonic() - begun < 10
    assert "has another token" in said
    assert "rank 1 of 3 by tests" in said
    said = gathered.result()
    assert "after 1 seconds 1 of 3 copies are there; not there: rank 1, 2" in said
    assert "with the same token" in said
    assert "RANK_OF_TESTS=0" in said


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = format_address(taken.getsockname())
    begun = time.monotonic()
    said = failure(serve, place(1), SHARED, [address, "no-such-host.invalid:1"], 1.0)
    assert time.monotonic() - begun < 20
    assert "rank 0 cannot be reached within 1 seconds" in said
    assert f"{address}: [Errno 111] Connection refused" in said
    assert "no-such-host.invalid:1" in said
    assert "RANK_OF_TESTS=0" in said


@pytest.fixture
def dropping():
    """Addresses at which nothing answers.

    The listeners of most have as many connections as they take; others take one, and are silent.
    """
    with contextlib.ExitStack() as stack:
        addresses = []
        for _ in range(4):
            full = stack.enter_context(socket.socket())
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):
                filling = stack.enter_context(socket.socket())
                filling.setblocking(False)
                filling.connect_ex(full.getsockname())
            addresses.append(format_address(full.getsockname()))
        for host in ("127.0.0.1", "::1"):
            silent = stack.enter_context(listen(format_address((host, 0))))
            addresses.append(format_address(silent.getsockname()))
        yield addresses


@pytest.mark.large
def test_addresses_that_drop_what_is_sent_there(dropping, address, leader, pool):
    """All are dialled at a time: they take none of the limit from each other, nor from the good."""
    begun = time.monotonic()
    said = failure(serve, place(1), SHARED, dropping, 1.0)
    assert time.monotonic() - begun < 4
    assert "rank 0 cannot be reached within 1 seconds" in said
    assert all(each in said for each in dropping)
    gathered = pool.submit(failure, leader.gather, 2.0)
    begun = time.monotonic()
    again = f"localhost:{parse_address(address)[1]}"
    said = failure(serve, place(1), SHARED, [*dropping, address, again], 20.0)
    assert time.monotonic() - begun < 9  # less than a handshake with who is silent may take
    assert "not there: rank 2" in said
    assert "not there: rank 2" in gathered.result()


def test_rank_0_may_come_last(listener, pool):
    address = format_address(listener.getsockname())
    listener.close()
    served = pool.submit(failure, serve, place(1), SHARED, [address], 60.0)
    time.sleep(0.5)
    leader = Leader(PLACE, SHARED, listen(address))
    assert "not there: rank 2" in failure(leader.gather, 1.0)
    # Those that wait learn why nothing comes of it.
    assert "after 1 seconds 2 of 3 copies are there; not there: rank 2" in served.result(10)


def test_a_copy_that_ends_while_others_wait(listener, address, pool):
    leader = Leader(place(0, 4), SHARED, listener)
    gathered = pool.submit(failure, leader.gather, 60.0)
    waiting = pool.submit(failure, serve, place(1, 4), SHARED, [address], 60.0)
    while not leader._lines:
        time.sleep(0.01)
    copy(address, 2, 4).hang_up()
    assert "rank 2 of 4, at 127.0.0.1, has ended" in gathered.result(10)
    assert "rank 2 of 4, at 127.0.0.1, has ended" in waiting.result(10)


def test_two_copies_of_one_rank(leader, address, pool):
    """As those of clusters that number a leader's first worker 0."""
    gathered = pool.submit(failure, leader.gather, 60.0)
    line = copy(address, 1)
    said = failure(serve, place(1), SHARED, [address], 60.0)
    assert "two copies say that they are rank 1, at 127.0.0.1 and at 127.0.0.1" in said
    assert "two copies say that they are rank 1" in gathered.result(10)
    line.close()


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [
        (1, 2, "rank 1 knows of 2 copies, rank 0 of 3"),
        (0, 3, "a copy says that it is rank 0 of 3"),
        (3, 3, "a copy says that it is rank 3 of 3"),
    ],
)
def test_copies_that_contradict_each_other(leader, address, pool, rank, size, words):
    gathered = pool.submit(failure, leader.gather, 60.0)
    assert words in failure(serve, place(rank, size), SHARED, [address], 60.0)
    assert f"copies contradict each other: {words}" in gathered.result(10)


def test_other_versions(leader, address, monkeypatch, pool):
    gathered = pool.submit(failure, leader.gather, 0.5)
    with pytest.raises(handshake.RefusedByHostError, match="rank 1 has"):
        handshake.connect(
            address,
            Credentials(SHARED.encode()),
            "copy",
            {"rank": 1, "size": 3, "versions": ["distir_ext 0.0.1"]},
        )
    assert "not there: rank 1, 2" in gathered.result(10)


@pytest.mark.parametrize(
    "opening", [{}, [], None, {"rank": "1", "size": 3}, {"rank": [], "size": 3}, {"rank": True}]
)
def test_what_makes_no_sense_is_refused(leader, address, opening):
    if isinstance(opening, dict) and "rank" in opening:
        opening = {"size": 3, "versions": copies.versions(), **opening}
    with pytest.raises(handshake.RefusedByHostError):
        handshake.connect(address, Credentials(SHARED.encode()), "copy", opening)
    failure(leader.gather, 0.1)


def test_rank_0_that_ends_while_others_wait(leader, address, pool):
    waiting = pool.submit(failure, serve, place(1), SHARED, [address], 60.0)
    while not leader._lines:
        time.sleep(0.01)
    leader._lines[1].hang_up()
    assert "rank 0 has ended before all copies were there" in waiting.result(10)


def test_an_agent_is_no_rank_0():
    refused = pytest.raises(handshake.RefusedByHostError, match="it is not rank 0")
    with running_agent() as agent, refused:
        handshake.connect(agent.address, TOKEN, "copy", {"rank": 1})


@pytest.mark.parametrize("status", [0, 7])
def test_copies_leave_with_the_status_of_rank_0(address, listener, pool, told, status):
    leader = Leader(place(0, 2), SHARED, listener)
    gathered = pool.submit(leader.gather, 60.0)

    def leaves():
        with pytest.raises(SystemExit) as left:
            serve(place(1, 2), SHARED, [address], 60.0)
        return left.value.code

    served = pool.submit(leaves)
    assert len(gathered.result(20)) == 2
    leader.check()
    ((descriptor, tls),) = told
    assert tls is None
    with socket.socket(fileno=descriptor) as line:
        line.send(bytes([status]))
        assert served.result(20) == status
        assert "rank 1 of 2, at 127.0.0.1, has ended" in failure(leader.check)


def test_copies_whose_rank_0_is_gone_leave_with_1(address, listener, pool, told, capsys):
    leader = Leader(place(0, 2), SHARED, listener)
    gathered = pool.submit(leader.gather, 60.0)
    thread = threading.Thread(
        target=lambda: gathered.result(20) and socket.socket(fileno=told[0][0]).close()
    )
    thread.start()
    with pytest.raises(SystemExit) as left:
        serve(place(1, 2), SHARED, [address], 60.0)
    thread.join()
    assert left.value.code == 1
    assert "rank 0 has ended without saying how" in capsys.readouterr().err


def own_addresses():
    """An address of loopback, and that by which this machine reaches others, if it has one."""
    found = ["127.0.0.2"]
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as unsent:
        unsent.connect(("192.0.2.1", 9))
        found.append(unsent.getsockname()[0])
    return found


@pytest.mark.parametrize("host", own_addresses())
def test_copies_listen_at_the_address_by_which_they_have_come(host, pool, told):
    listener = listen(format_address((host, 0)))
    address = format_address(listener.getsockname())
    leader = Leader(place(0, 2), SHARED, listener)
    gathered = pool.submit(leader.gather, 60.0)

    def leaves():
        with pytest.raises(SystemExit):
            serve(place(1, 2), SHARED, [address], 60.0)

    served = pool.submit(leaves)
    addresses = [parse_address(each) for each in gathered.result(20)]
    assert [each[0] for each in addresses] == [host, host]
    with socket.create_connection(addresses[1], 10):
        pass
    with socket.socket(fileno=told[0][0]) as line:
        line.shutdown(socket.SHUT_RDWR)
        served.result(20)
