"""Failures of workers of every kind with hostile error texts and function names."""

from __future__ import annotations

import traceback

import pytest
from tests.hostile_names.entities import NAMES
from tests.hostile_names.outputs import check_terminal

import distir_ext as dx
from distir_ext.session import WorkerError
from distir_ext.text.printable import printable


def test_what_a_worker_says_is_text(agents):
    hosts = dx.Hosts([agent.address for agent in agents])
    hostile = "".join(NAMES.values())
    errors = {}
    for workers in ("threads", "processes", hosts):
        kind = workers if isinstance(workers, str) else "hosts"
        session = dx.Session(2, workers=workers, timeout=60, imports=["worker_functions"])
        with session, pytest.raises(WorkerError) as caught:
            session._workers.run(hostile, [None, "distir.test.fail_saying"], [[], [hostile]])
        error = errors[kind] = caught.value
        with pytest.raises(RuntimeError, match="the session is closed") as closed:
            session.statistics()
        for text in (str(error), error.function, error.operator, error.kind, str(closed.value)):
            check_terminal(text.replace("\n", " "))
            assert len(text) < 4000, kind
        assert error.backtrace == printable(error.backtrace)
        assert len(error.backtrace) <= 2**16
        shown = "".join(traceback.format_exception_only(error)).rstrip("\n")
        assert shown == printable(shown)
        assert len(shown) < 2**17
    assert len({error.function[:100] for error in errors.values()}) == 1
