"""Sessions by number of workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest

import distir_ext as dx

from .placement import MeshShape


@pytest.fixture(scope="session")
def session_of() -> Iterator[Callable[[MeshShape], dx.Session]]:
    """One session per number of workers, shared by all tests of the process."""
    sessions: dict[int, dx.Session] = {}

    def find(mesh: MeshShape) -> dx.Session:
        workers = math.prod(mesh)
        if workers not in sessions or sessions[workers].closed:
            sessions[workers] = dx.Session(workers)
        return sessions[workers]

    yield find
    for session in sessions.values():
        session.close()
