"""Hosts are connected to at the same time; if one of them fails, the others are let go."""

from __future__ import annotations

import threading
import time

import pytest
from tests.runtime.connection.listeners import TOKEN, running_agent

import distir_ext as dx
from distir_ext.wire.credentials import Credentials
from distir_ext.workers.host_processes import Started
from distir_ext.workers.hosts import at_once as module
from distir_ext.workers.hosts.at_once import at_once
from distir_ext.workers.hosts.remote_processes import start_on_hosts


def never(result):
    raise AssertionError(f"{result} is undone")


def test_all_are_under_way_and_results_are_in_order():
    barrier = threading.Barrier(5)

    def call(index):
        barrier.wait(10)
        time.sleep(0.01 * (5 - index))
        return index

    calls = [lambda index=index: call(index) for index in range(5)]
    assert at_once(calls, never) == [0, 1, 2, 3, 4]
    assert at_once([], never) == []


def test_only_so_many_are(monkeypatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    mutex, under_way, most = threading.Lock(), [0], [0]
    both = threading.Barrier(2)

    def call():
        with mutex:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        both.wait(60)
        with mutex:
            under_way[0] -= 1

    assert at_once([call] * 8, never) == [None] * 8
    assert most[0] == 2


def test_a_failure_is_raised_at_once_and_the_others_are_undone(monkeypatch):
    """Calls in progress are undone when they end, and no further one begins."""
    monkeypatch.setattr(module, "MOST_AT_ONCE", 3)
    begun, go_on, late, undone = threading.Event(), threading.Event(), threading.Event(), []

    def fails():
        begun.wait(10)
        raise RuntimeError("no session on host b")

    def is_late():
        begun.set()
        go_on.wait(10)
        return "late"

    def undo(result):
        undone.append(result)
        if result == "late":
            late.set()

    calls = [lambda: "first", fails, is_late, *[lambda: go_on.wait(10) and "begun before"] * 5]
    with pytest.raises(RuntimeError, match="no session on host b"):
        at_once(calls, undo)
    assert undone == ["first"]
    go_on.set()
    assert late.wait(10)
    assert undone.count("begun before") <= 1


def test_of_several_failures_the_first_in_order_is_raised():
    second = threading.Event()

    def fails_late():
        second.wait(10)
        raise ValueError("host a")

    def fails():
        second.set()
        raise ValueError("host b")

    with pytest.raises(ValueError, match="host a"):
        at_once([fails_late, fails], never)


@pytest.mark.parametrize("place", [0, 2])
def test_a_host_that_refuses_is_named_and_others_are_let_go(place):
    with running_agent() as a, running_agent() as b, running_agent(Credentials(b"o" * 20)) as bad:
        agents = [a, b]
        agents.insert(place, bad)
        hosts = dx.Hosts([each.address for each in agents], token=TOKEN.token.decode())
        started = Started()
        with pytest.raises(
            RuntimeError, match=f"no session on host {bad.address}: .* has another token"
        ):
            start_on_hosts(started, hosts, 3, "cpu", [])
        assert started == Started()
        until = time.monotonic() + 10
        while (a._sessions or b._sessions) and time.monotonic() < until:
            time.sleep(0.01)
        assert not a._sessions
        assert not b._sessions
