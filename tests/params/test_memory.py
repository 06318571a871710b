"""Peak host memory of loading weights, measured in a process of its own; the progress bar."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from distir_ext.session import weights
from distir_ext.text import progress

# 12 weights of 16 MiB, sharded over four workers.
NUM_WEIGHTS, SIDE = 12, 2048
MIB = 2**20
TOTAL = NUM_WEIGHTS * SIDE * SIDE * 4 / MIB

SCRIPT = """
import json, sys
from pathlib import Path
import distir_ext as dx
from distir_ext.params.checkpoint import open_params
from distir_ext.params.stored_array import MappedFiles
from params.conftest import executable

mode, path, side, count = sys.argv[1:]
side, count = int(side), int(count)
names = [f"w{i}" for i in range(count)]
mesh = dx.Mesh((4,), ("tp",))
plan = {name: (("tp", None) if i % 2 else (None, "tp")) for i, name in enumerate(names)}
exe = executable(mesh, {name: ((side, side), "float32") for name in names}, plan)

def peak():  # since it was last reset, in MiB
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024

with dx.Session(mesh) as session:
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    params = path
    if mode == "copy":
        stored = open_params(path).items()
        params = {n: a.read(MappedFiles(), (0, 0), a.shape).copy() for n, a in stored}
    model = session.load(exe, params=params)
    print(json.dumps(peak() - before))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from .test_formats import save_checkpoint

    directory = tmp_path_factory.mktemp("checkpoint")
    weight = np.ones((SIDE, SIDE), "float32")
    save_checkpoint({f"w{index}": weight for index in range(NUM_WEIGHTS)}, directory)
    return directory


def peak_of_load(mode, checkpoint, request):
    search = os.pathsep.join([*sys.path, str(request.config.rootpath / "tests")])
    environment = {**os.environ, "PYTHONPATH": search}
    command = [sys.executable, "-c", SCRIPT, mode, str(checkpoint), str(SIDE), str(NUM_WEIGHTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.large
def test_one_copy_of_the_weights(checkpoint, request):
    """The weights and what is mapped at a time; a copy of all of them would show."""
    assert peak_of_load("mapped", checkpoint, request) < 1.5 * TOTAL
    assert peak_of_load("copy", checkpoint, request) > 1.8 * TOTAL


def test_steps_have_weights_of_all_stages(monkeypatch):
    """Of each stage as many as a step may have, and one that has more is alone."""
    monkeypatch.setattr(weights, "_STEP_BYTES", 4)
    sizes = {"a1": 2, "a2": 2, "a3": 2, "b1": 3, "b2": 3, "ab": 1, "a4": 9, "none": 7}
    stages = [{"a1", "a2", "a3", "ab", "a4"}, {"b1", "b2", "ab"}]
    assert weights._steps(sizes, stages) == [["a1", "a2", "b1", "none"], ["a3", "b2", "ab"], ["a4"]]
    assert weights._steps({}, [set()]) == []


def test_bar_only_for_long_loads_on_a_terminal(monkeypatch):
    def shown(terminal):
        text = io.StringIO()
        console = Console(file=text, force_terminal=terminal, width=80)
        with progress.loading_bar(100 * MIB, console) as advance:
            advance(40 * MIB)
        return text.getvalue()

    assert shown(terminal=True) == ""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert "loading weights" in shown(terminal=True)
    assert "40.0/100.0 MiB" in shown(terminal=True)
    assert shown(terminal=False) == ""
