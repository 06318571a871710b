"""Settings that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The first example of a test pays for imports and compilation, so no example has a deadline.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--exhaustive``."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="run all placements (tests/redistribute: minutes; tests/numerical: days)",
    )


@pytest.fixture(scope="session")
def exhaustive(request: pytest.FixtureRequest) -> bool:
    """Whether ``--exhaustive`` asks for all combinations of placements."""
    return bool(request.config.getoption("--exhaustive"))
