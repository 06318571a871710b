"""Settings that all tests share."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import pytest
import tvm
from hypothesis import settings

import distir_ext as dx

# The first example of a test pays for imports and compilation, so no example has a deadline.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
# Who reads of a failing test wants to see where in the package it was.
os.environ["DISTIR_EXT_FULL_TRACEBACKS"] = "1"

settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Has SIGINT do what it does in a terminal, here and in what a test starts.

    Under nohup, and some systems of CI, it is ignored, which processes inherit.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def stack(context: int = 1) -> list[inspect.FrameInfo]:
    """The call stack, with lines of source for the innermost frames only.

    TVMScript's decorators ask for the whole stack and read source lines of the second caller. Under
    pytest the stack is deep, and has frames without a file, for each of which ``inspect.stack``
    searches all modules: this was half the time of collecting the tests.
    """
    frames: list[inspect.FrameInfo] = []
    frame = inspect.currentframe()
    while frame := frame.f_back:
        code = frame.f_code
        if len(frames) < 3 and not code.co_filename.startswith("<"):
            info = inspect.getframeinfo(frame, context)
        else:
            info = (code.co_filename, frame.f_lineno, code.co_name, None, None)
        frames.append(inspect.FrameInfo(frame, *info))
    return frames


class Inspect:
    """The module ``inspect`` for TVMScript's decorators alone; all others keep their own."""

    stack = staticmethod(stack)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


for language in ("tvm.script.parser.ir", "tvm.relax.script.parser", "tvm.tirx.script.parser"):
    importlib.import_module(f"{language}.entry").inspect = Inspect()

# Samples, and which of the values of the fixture `sample` each takes: small, large, nightly (where
# it differs from large), all.
SAMPLES = {"small": 0, "large": 1, "nightly": -2, "all": -1}
T = TypeVar("T")

# Marks of tests all cases of which are run, from which sample on.
KEPT = {"every_case": "small", "every_case_in_large": "large", "every_case_nightly": "nightly"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--sample``."""
    parser.addoption(
        "--sample",
        choices=SAMPLES,
        default="small",
        help="how many placements and random programs are run: small (make test), large "
        "(make test-all), nightly (make test-nightly), or all (tests/redistribute: minutes, "
        "tests/numerical: days)",
    )
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run N cases of each test that has more (by default all)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Has processes that tests start find ``startup/sitecustomize.py``, whichever way they do.

    A process that only hands tests to others (``-n``) does not: those run tests as users' programs
    run, with torch where it is installed.
    """
    if "PYTEST_XDIST_WORKER" in os.environ or not config.getoption("numprocesses", None):
        startup = str(Path(__file__).parent / "startup")
        sys.path.append(startup)
        found = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = startup if not found else os.pathsep.join([startup, found])


def chosen(config: pytest.Config, *values: T) -> T:
    """The value for the sample that ``--sample`` asks for, of three or four."""
    return values[SAMPLES[config.getoption("--sample")]]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is not in the sample: what is marked ``large``, and cases beyond ``--cases``.

    Which cases stay depends on their names alone, and looks random, so that each parameter of a
    test with several has many of its values.
    """
    left_out: set[pytest.Item] = set()
    if config.getoption("--sample") == "small":
        left_out.update(item for item in items if item.get_closest_marker("large"))
    most = config.getoption("--cases")
    samples = list(SAMPLES)
    reached = samples.index(config.getoption("--sample"))
    kept = [mark for mark, first in KEPT.items() if samples.index(first) <= reached]
    if most is not None:
        tests: dict[tuple[object, str], list[pytest.Item]] = {}
        for item in items:
            if item not in left_out and not any(map(item.get_closest_marker, kept)):
                name = item.nodeid.partition("[")[0]
                tests.setdefault((item.parent, name), []).append(item)
        for cases in tests.values():
            left_out.update(sorted(cases, key=lambda item: crc32(item.nodeid.encode()))[most:])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def sample(request: pytest.FixtureRequest) -> Callable[..., T]:
    """Of a value for each sample, the one that is asked for: small, large, (nightly,) all."""
    return functools.partial(chosen, request.config)


@pytest.fixture(scope="session", autouse=True)
def argument_checks(sample: Callable[..., bool]) -> Iterator[None]:
    """Kernels check their arguments in the whole sample, and for models in the large one.

    LLVM spends more time on these checks than on all the rest of the small programs of tests. What
    a kernel computes of wrong arguments is a wrong number, which tests see without them.
    """
    config = {"tirx.disable_assert": sample(True, True, False)}
    with tvm.transform.PassContext(config=config):
        yield


@pytest.fixture
def rules() -> Iterator[Callable[..., None]]:
    """Rules registered by a test end with it."""
    yield dx.register_rule
    for name in dx.registered_rules():
        dx.unregister_rule(name)
