"""Ctrl-C and the end of a process, while several processes compute a sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import distir_ext as dx

ROOT = Path(dx.__file__).resolve().parents[2]

# It says when the other process has begun, and sweeps until it is ended.
SCRIPT = """
    from tests.analysis.test_sweep import CLUSTER, PLANS, network
    import distir_ext as dx
    from distir_ext.analysis.sweeps import processes

    if __name__ == "__main__":
        serve = processes._Others._add

        def said(others, number, figures):
            print("computes", flush=True)
            serve(others, number, figures)

        processes._Others._add = said
        dx.analysis.sweep(
            network(),
            dx.analysis.factorizations(64, ("dp", "tp", "pp")),
            PLANS,
            CLUSTER,
            stages="pp",
            microbatches=range(1, 129),
            batch="n",
            sizes={"n": 128 * 5},
            processes=2,
        )
"""


@pytest.fixture
def sweeping(ctrl_c, tmp_path):
    """A process in a session of its own, of which another one computes a part."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(file)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline() == "computes\n", process.stderr.read()
    yield process
    if members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def members(group):
    """Processes of a group that have not ended, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found[int(folder.name)] = command
    return found


def ended(group, seconds=20):
    end = time.monotonic() + seconds
    while members(group) and time.monotonic() < end:
        time.sleep(0.05)
    return not members(group)


@pytest.mark.large
def test_ctrl_c_ends_all_of_it(sweeping):
    assert len(members(sweeping.pid)) >= 2
    os.killpg(sweeping.pid, signal.SIGINT)
    _, err = sweeping.communicate(timeout=30)
    assert sweeping.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert err.count("Traceback") == 1  # the other process says nothing
    assert ended(sweeping.pid)


@pytest.mark.large
def test_no_process_outlives_the_one_that_has_started_it(sweeping):
    sweeping.kill()
    assert ended(sweeping.pid)


@pytest.mark.large
def test_a_process_that_ends_is_an_error(sweeping):
    (other,) = (each for each, command in members(sweeping.pid).items() if "spawn_main" in command)
    os.kill(other, signal.SIGKILL)
    _, err = sweeping.communicate(timeout=30)
    assert sweeping.returncode == 1
    assert "ValueError: a process of the sweep could not start, or was ended" in err
    assert ended(sweeping.pid)
