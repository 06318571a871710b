"""A start that waits in a call of a library is ended by a signal at once, under real launchers."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.launch.test_sessions import CLEAN, MPICH

LIMIT = 300.0
"""How long rank 0 would wait for the others, in seconds."""
AT_ONCE = 30.0
"""For a process that exits, in seconds, on a loaded machine."""

# Rank 1 never comes; a store that answers nothing takes the place of torchrun's.
SCRIPT = """
import os, time
if os.environ.get("RANK", os.environ.get("PMI_RANK")) != "0":
    time.sleep(1000)
os.environ["MASTER_PORT"] = os.environ["SILENT"]
import distir_ext as dx
print(os.getpid(), flush=True)
dx.Session(dx.Mesh(tp=2), workers="auto")
"""

LAUNCHERS = {
    "mpiexec": [str(MPICH), "-n", "2", sys.executable],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
}


def until(holds, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.large
@pytest.mark.parametrize("launcher", ["mpiexec", "torchrun"])
def test_a_start_that_waits_in_a_library_is_ended_at_once(launcher, tmp_path):
    """And its token is gone."""
    if launcher == "mpiexec" and not MPICH.exists():
        pytest.skip("the wheel mpich is not installed")
    if launcher == "torchrun" and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    folder = tmp_path / "temporary"
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            [*LAUNCHERS[launcher], str(script)],
            env=CLEAN
            | {
                "TMPDIR": str(folder),
                "SILENT": str(silent.getsockname()[1]),
                "DISTIR_EXT_START_TIMEOUT": str(LIMIT),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            assert until(lambda: list(folder.glob("distir_ext-*/token")), 60.0)
            time.sleep(1.0)  # it is in the call
            os.kill(pid, signal.SIGTERM)
            assert until(lambda: is_over(pid), AT_ONCE)
            assert not list(folder.glob("distir_ext-*"))
        finally:
            process.terminate()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()
