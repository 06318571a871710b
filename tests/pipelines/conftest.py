"""Fixtures of pass tests."""

import pytest

from distir_ext import pipelines


@pytest.fixture
def registered():
    """Registers passes for a test."""
    before = set(pipelines.registered_passes())
    yield pipelines.register_pass
    for name in set(pipelines.registered_passes()) - before:
        pipelines.unregister_pass(name)
