"""Settings that all tests share."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import settings

# The first example of a test pays for imports and compilation, so no example has a deadline.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


SAMPLES = ("small", "large", "all")
T = TypeVar("T")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--sample``."""
    parser.addoption(
        "--sample",
        choices=SAMPLES,
        default="small",
        help="how many placements and random programs are run: small (make test), large "
        "(make test-all), or all (tests/redistribute: minutes, tests/numerical: days)",
    )


def chosen(config: pytest.Config, small: T, large: T, whole: T) -> T:
    """The value for the sample that ``--sample`` asks for."""
    return (small, large, whole)[SAMPLES.index(config.getoption("--sample"))]


@pytest.fixture(scope="session")
def sample(request: pytest.FixtureRequest) -> Callable[[T, T, T], T]:
    """Of a value for the small, the large and the whole sample, the one that is asked for."""
    return functools.partial(chosen, request.config)
