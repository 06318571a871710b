"""Start of worker processes: their imports, and modules that are loaded on demand."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import subprocess
import sys
import time

import numpy as np
import pytest
from rich.console import Console
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.text import progress
from distir_ext.text.progress import shows_bars
from distir_ext.workers import processes, start_bar


def modules_that_a_worker_imports(folder, arguments=""):
    """Names of modules; of torch it is known whether it is looked for."""
    torch = (
        "import sys; print(\"import 'torch'\", file=sys.stderr); raise ImportError('it is none')\n"
    )
    (folder / "torch.py").write_text(torch)
    (folder / "of_user.py").write_text("import distir_ext\nassert distir_ext.Mesh\n")
    code = (
        f"import os, sys\nsys.path.insert(0, {str(folder)!r})\n"
        "import distir_ext as dx\n"
        "print('started', file=sys.stderr, flush=True)\n"
        "os.environ['PYTHONVERBOSE'] = '1'\n"
        f"dx.Session(1, workers='processes'{arguments}).close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^import '([\w.]+)'", done.stderr.partition("started")[2], re.MULTILINE))


def test_a_worker_imports_neither_tvm_nor_torch(tmp_path):
    """Each of them takes longer than all else."""
    found = modules_that_a_worker_imports(tmp_path)
    assert {"tvm_ffi", "distir_ext.workers.worker_process"} <= found
    of_others = {name for name in found if re.match(r"(tvm|torch|rich|distir_ext)(\.|$)", name)}
    loaded = {name.split(".")[1] if "." in name else name for name in of_others}
    assert loaded <= {
        *("text", "native", "mesh", "signature", "params", "wire", "launch", "workers"),
        "_version",
    }


@pytest.mark.large
def test_modules_of_users_find_all_of_it(tmp_path):
    """They import a whole distir_ext; those that do not ask for it, or for TVM, load less."""
    (tmp_path / "small.py").write_text(
        "import tvm_ffi\nfrom distir_ext.params.host_array import host_array\n"
    )
    found = modules_that_a_worker_imports(tmp_path, ", imports=['small']")
    assert {"small", "tvm_ffi"} <= found
    assert not {"torch", "tvm", "distir_ext"} & found
    found = modules_that_a_worker_imports(tmp_path, ", imports=['of_user']")
    assert {"of_user", "tvm", "tvm.relax", "distir_ext"} <= found


@I.ir_module
class Unique:
    @R.function
    def main(x: R.Tensor((6,), "int64")):
        R.func_attr({"num_input": 1})
        y = R.unique(x, sorted=True)
        return y


def test_functions_that_tvm_has_in_python(tmp_path):
    """TVM computes R.unique with NumPy."""
    exe = dx.build(dx.annotate(Unique, dx.Mesh((1,), ("a",)), {"x": (None,)}))
    exe.export_library(str(tmp_path / "library.so"))
    x = np.array([3, 1, 3, 2, 2, 7])
    with dx.Session(1, workers="processes") as session:
        for form in (tmp_path / "library.so", exe):
            y = session.load(form)["main"](x)
            np.testing.assert_array_equal(y.numpy(), np.unique(x))


def test_the_bar_shows_how_many_have_started(monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with start_bar.start_bar(2, terminal) as started:
        started()
        time.sleep(0.5)
    assert "starting worker processes" in terminal.file.getvalue()
    assert "1/2" in terminal.file.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_there_is_no_bar_for_short_starts_or_without_a_terminal(monkeypatch, is_terminal):
    monkeypatch.setattr(progress, "PATIENCE", 30.0 if is_terminal else 0.0)
    console = Console(file=io.StringIO(), force_terminal=is_terminal, width=100)
    with start_bar.start_bar(2, console) as started:
        started()
        time.sleep(0.1)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_shows_bars_where_it_can(monkeypatch, has_widgets):
    """Without ipywidgets rich shows a warning in its place."""
    found = object() if has_widgets else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert shows_bars(Console(file=io.StringIO(), force_jupyter=True)) == has_widgets


def test_a_session_counts_the_workers_that_have_started(monkeypatch):
    counted = []

    @contextlib.contextmanager
    def count(num_workers):
        yield lambda: counted.append(num_workers)

    monkeypatch.setattr(processes, "start_bar", count)
    dx.Session(2, workers="processes").close()
    assert counted == [2, 2]


@pytest.mark.large
def test_a_worker_that_never_answers_while_it_starts(monkeypatch, tmp_path):
    """Such as one that imports a module that waits: the session's limit for calls is its, too."""
    monkeypatch.setattr(processes, "LEAST_START_LIMIT", 0.5)
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"worker 0 did not start within 1.5 s"):
        dx.Session(2, workers="processes", timeout=1.5, imports="waits")
    assert time.monotonic() - begin < 10


@pytest.mark.large
@pytest.mark.parametrize("spelled", ["", ".", "../link"])
def test_modules_of_the_working_directory_do_not_run_in_workers(spelled, tmp_path):
    """Python puts it before its own modules when it is given a program as text.

    It does so, too, with an empty entry of PYTHONPATH, as one of a variable that was not set.
    """
    here = tmp_path / "here"
    here.mkdir()
    for name in ("json", "types", "signal", "selectors", "traceback", "encodings"):
        (here / f"{name}.py").write_text(f"open('{name} ran', 'w').close()\nraise SystemExit\n")
    (tmp_path / "link").symlink_to(here)
    path = os.pathsep.join([spelled, os.environ.get("PYTHONPATH", "")])
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nimport distir_ext as dx\n"
        f"os.chdir({str(here)!r})\n"
        f"sys.path[:0] = ['', {spelled!r}]\n"  # as at a prompt
        f"os.environ['PYTHONPATH'] = {path!r}\n"
        "with dx.Session(1, workers='processes'): print('started')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert sorted(each.name for each in here.glob("* ran")) == []
    assert done.stdout == "started\n", done.stderr
