"""Sessions of two processes do not have a GPU together, unless both want it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from tests.gpu.conftest import SHARE, SHARED

import distir_ext as dx
from distir_ext import WorkerError


def run_in_process(code, **environment):
    """Starts Python with code, whose first line it gives back once it is printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


# Waits for standard input to be closed.
OTHER = """
import sys
import distir_ext as dx
session = dx.Session(1, ccl="nccl", workers={kind!r})
print("open", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("ends", ["closed", "killed"])
def test_a_gpu_that_another_process_has_is_refused(need, monkeypatch, kind, ends):
    """Unless both may have it, until that process ends, however it does."""
    need(1)
    SHARED.leave("processes")
    monkeypatch.setenv(SHARE, "0")
    other, said = run_in_process(OTHER.format(kind=kind))
    try:
        assert said == "open"
        if ends == "closed":
            whose = f"process {other.pid} " if kind == "threads" else f"of process {other.pid} "
            message = rf"CUDA device 0 is used by another session, of .*{whose}\(.*python"
            with pytest.raises(WorkerError, match=message):
                dx.Session(1, ccl="nccl")
            monkeypatch.setenv(SHARE, "1")
            dx.Session(1, ccl="nccl").close()
            monkeypatch.setenv(SHARE, "0")
            other.stdin.close()
        else:
            other.kill()
    finally:
        other.kill()
        other.wait(20)
        other.stdout.close()
    dx.Session(1, ccl="nccl").close()
