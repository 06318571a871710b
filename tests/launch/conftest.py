"""Fixtures of launcher tests."""

from __future__ import annotations

import os
import socket

import pytest

VARIABLES = ("DISTIR_EXT_", "PMI", "OMPI", "SLURM", "RANK", "WORLD", "LWS", "JOB_", "MASTER")
KEPT = ("DISTIR_EXT_LIBRARY", "DISTIR_EXT_FULL_TRACEBACKS")


@pytest.fixture
def clean_environment(monkeypatch):
    """This process's environment without variables of launchers."""
    for name in list(os.environ):
        if name.startswith(VARIABLES) and name not in KEPT:
            monkeypatch.delenv(name)
    return monkeypatch


@pytest.fixture
def free_port():
    """A port of this host at which nobody listens, as text."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])
