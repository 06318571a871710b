"""Restarts of sessions: their models continue on new workers."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.stages.programs import chain, chain_result, chain_values

import distir_ext as dx

WIDTHS = [8, 12, 8]
MESH = dx.Mesh(tp=2)
PLAN = {"w0": (None, "tp"), "w1": ("tp", None)}
X, WEIGHTS = chain_values(WIDTHS, rows=6)


@pytest.fixture(scope="module")
def exe():
    return dx.build(dx.annotate(chain(WIDTHS, rows="n"), MESH, PLAN))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(WEIGHTS, path)
    return path


def check(function, x=X, weights=WEIGHTS):
    expected = chain_result(x, weights)
    np.testing.assert_allclose(function(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def kill_worker(session):
    pid = next(iter(session._workers._started.hosts[0].processes.values())).pid
    os.kill(pid, signal.SIGKILL)


def test_handles_go_on_after_a_process_was_killed(exe, file):
    """Models, functions and pipelines that users hold; several times."""
    with dx.Session(MESH, workers="processes") as session:
        model = session.load(exe, params=file)
        function, pipeline = model["main"], model["main"].pipeline(3)
        for _ in range(2):
            check(function)
            kill_worker(session)
            with pytest.raises(dx.WorkerError, match="was ended by SIGKILL"):
                function(X)
            assert session.closed
            assert session.restart() > 0
            assert not session.closed
            for each in (model, function, pipeline):
                check(each)
    with pytest.raises(RuntimeError, match="the session is closed"):
        function(X)


def test_results_of_before_are_refused(exe, file):
    with dx.Session(MESH) as session:
        model = session.load(exe, params=file)
        y = model(X)
        assert session.statistics().rows()
        session.restart()
        assert not session.statistics().rows()
        with pytest.raises(ValueError, match=r'input "x".* or of this one before it was restarted'):
            model(y)
        check(model)


def test_arrays_have_to_be_given_again(exe, file):
    """Nothing is done before all weights are known, and they may be others."""
    other = {name: 2 * value for name, value in WEIGHTS.items()}
    with dx.Session(MESH) as session, dx.Session(MESH) as another:
        model, stored = session.load(exe, params=WEIGHTS), session.load(exe, params=file)
        with pytest.raises(ValueError, match=r'model with "main" were given as arrays.*restart\('):
            session.restart()
        with pytest.raises(ValueError, match="has not loaded"):
            session.restart({model: WEIGHTS, another.load(exe, params=file): file})
        with pytest.raises(TypeError, match="by model, not by str"):
            session.restart(WEIGHTS)
        with pytest.raises(ValueError, match=r"workers='cores' is not supported"):
            session.restart({model: WEIGHTS}, workers="cores")
        check(model)  # it has not been closed
        session.restart({model: other})
        check(model, weights=other)
        check(stored)


def test_models_that_nobody_has_are_not_loaded(exe):
    with dx.Session(MESH) as session:
        session.load(exe, params=WEIGHTS)
        session.restart()  # would be refused, as weights were arrays


def test_other_workers(exe, file):
    with dx.Session(MESH) as session:
        model = session.load(exe, params=file)
        session.restart(workers="processes")
        assert session.workers == "processes"
        check(model)
        kill_worker(session)
        with pytest.raises(dx.WorkerError):
            model(X)
        session.restart()
        assert session.workers == "processes"
        check(model)


def test_a_restart_that_fails_can_be_tried_again(exe, file):
    with dx.Session(MESH) as session:
        model = session.load(exe, params=file)
        away = file.rename(file.with_name("away.safetensors"))
        with pytest.raises(FileNotFoundError):
            session.restart()
        assert session.closed
        with pytest.raises(RuntimeError, match="the session is closed: it was restarted"):
            model(X)
        away.rename(file)
        session.restart()
        check(model)


def test_names_that_change(exe, tmp_path):
    save_file(
        {f"layers.{name}": value for name, value in WEIGHTS.items()}, tmp_path / "a.safetensors"
    )
    with dx.Session(MESH) as session:
        model = session.load(
            exe,
            params=tmp_path,
            rename=lambda name: name.removeprefix("layers."),
        )
        session.restart()
        check(model)
