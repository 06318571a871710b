"""Launchers that are installed start ``distir where``."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COPIES = 3
MPIEXEC = Path(sys.executable).with_name("mpiexec")
WHERE = ["-m", "distir_ext", "where", "--json"]
PYTHON = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def started(*command: str) -> list[dict]:
    """Runs a launcher; returns what each copy prints, by rank."""
    result = subprocess.run(
        command, env={**os.environ, **PYTHON}, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    found = [json.loads(line)["place"] for line in result.stdout.splitlines() if line]
    return sorted(found, key=lambda place: place["rank"])


@pytest.mark.skipif(not MPIEXEC.exists(), reason="no MPI is installed")
def test_mpiexec():
    for rank, place in enumerate(started(str(MPIEXEC), "-n", str(COPIES), sys.executable, *WHERE)):
        assert place["launcher"] == "MPICH"
        assert (place["rank"], place["size"]) == (rank, COPIES)
        assert (place["local_rank"], place["local_size"]) == (rank, COPIES)
        assert place["leader"] == "127.0.0.1"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchrun():
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    for rank, place in enumerate(started(*torchrun, f"--nproc-per-node={COPIES}", *WHERE)):
        assert place["launcher"] == "torchrun"
        assert (place["rank"], place["size"]) == (rank, COPIES)
        assert (place["local_rank"], place["local_size"]) == (rank, COPIES)
        assert place["leader"] == "localhost"


def test_without_a_launcher():
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PMI", "OMPI", "SLURM", "RANK", "WORLD", "LWS", "JOB"))
    }
    result = subprocess.run(
        [sys.executable, *WHERE[:-1]], env=clean | PYTHON, capture_output=True, text=True
    )
    assert result.stdout.startswith("no launcher started this process")
