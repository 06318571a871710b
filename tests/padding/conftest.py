"""Sessions by number of workers."""

import pytest

import distir_ext as dx


@pytest.fixture(scope="session")
def session_of():
    """One session per number of workers, shared by all tests of the process."""
    sessions = {}

    def find(mesh):
        workers = len(mesh.device_ids)
        if workers not in sessions or sessions[workers].closed:
            sessions[workers] = dx.Session(workers)
        return sessions[workers]

    yield find
    for session in sessions.values():
        session.close()
