"""Tracebacks of mistakes end where this package was called."""

import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx
from distir_ext.text.errors.full_tracebacks import VARIABLE

MESH = dx.Mesh(tp=2)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


def module():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    return builder.get()


def files_of(error):
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


def raised_by(run):
    try:
        run()
    except Exception as error:
        return error
    raise AssertionError("it raised nothing")


@pytest.fixture(scope="module")
def built():
    return dx.build(dx.annotate(module(), MESH, {"x": ("tp",)}))


@pytest.fixture(scope="module")
def session():
    with dx.Session(MESH) as opened:
        yield opened


MISTAKES = {
    "annotate": lambda *_: dx.annotate(module(), MESH, {"y": None}),
    "lower": lambda *_: dx.lower(module()),
    "build": lambda *_: dx.build(module(), target="no such target"),
    "explain": lambda *_: dx.explain(module(), "x"),
    "Session": lambda *_: dx.Session(MESH, workers="none"),
    "load": lambda built, session: session.load(built, params={"w": np.ones(4)}),
    "call": lambda built, session: session.load(built)(np.ones((2, 2), "float32")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_no_frame_is_of_the_inside(name, built, session, monkeypatch):
    def run():
        MISTAKES[name](built, session)

    files = files_of(raised_by(run))
    assert set(files) <= {"test_tracebacks.py", "tracebacks.py"}
    assert len(files) <= 4
    monkeypatch.setenv(VARIABLE, "1")
    assert len(files_of(raised_by(run))) > len(files)


def test_frames_stay_where_a_function_of_the_user_raised(built, session):
    def rename(name):
        raise KeyError(name)

    error = raised_by(lambda: session.load(built, params={"w": np.ones(4)}, rename=rename))
    assert files_of(error)[-1] == "test_tracebacks.py"


def test_causes_stay(session, built):
    function = session.load(built)
    error = raised_by(lambda: function(tvm.runtime.tensor))
    assert error.__cause__ is not None


def test_a_script_shows_a_few_lines():
    code = "import distir_ext as dx, tvm\ndx.build(tvm.IRModule())\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.count("\n  File ") == 2
    assert "no sharding annotations" in done.stderr


def test_warnings_are_of_the_line_that_called():
    with pytest.warns(UserWarning, match="annotated already") as caught:
        dx.annotate(dx.annotate(module(), MESH, {"x": ("tp",)}), MESH, {"x": ("tp",)})
    assert {warning.filename for warning in caught} == {__file__}
