"""The NCCL backend on host memory: tests/gpu with what stands in for CUDA and NCCL there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GPU_TESTS = ROOT / "tests" / "gpu"


@pytest.fixture
def run_gpu_tests(stand_in, folder, pytestconfig):
    """Runs tests: the numbers of those that passed and failed, and the output."""
    sample = ["--sample", pytestconfig.getoption("--sample")]

    def run(*arguments, marked="gpu", fault=""):
        command = [sys.executable, "-m", "pytest", "-q", "-m", marked, "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "--tb=short", *sample, *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "CUDA_ON_HOST": str(stand_in),
                "CUDA_ON_HOST_FAULT": fault,
                "CUDA_ON_HOST_FOLDER": folder,
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        counts = {
            word: int(number) for number, word in re.findall(r"(\d+) (passed|failed)", run.stdout)
        }
        return counts.get("passed", 0), counts.get("failed", 0), run.stdout + run.stderr

    return run


FEWEST = {
    "test_bandwidth": 2,
    "test_collectives": 750,
    "test_device_locks": 4,
    "test_ends": 15,
    "test_failures": 30,
    "test_gpu_check": 6,
    "test_hosts": 3,
    "test_machine_copies": 12,
    "test_products": 12,
    "test_programs": 40,
    "test_stand_in": 3,
}
"""Of each file, how many tests pass at least where none are left out."""


def test_every_file_is_run():
    assert set(FEWEST) == {path.stem for path in GPU_TESTS.glob("test_*.py")}


# What make test and make test-all choose from; the others take minutes.
SMALL = ("test_machine_copies", "test_stand_in")
LARGE = (*SMALL, "test_products", "test_programs", "test_failures", "test_hosts")


def pytest_generate_tests(metafunc):
    if "file" in metafunc.fixturenames:
        sample = metafunc.config.getoption("--sample")
        metafunc.parametrize("file", {"small": SMALL, "large": LARGE}.get(sample, FEWEST))


@pytest.mark.large
def test_all_of_it(run_gpu_tests, pytestconfig, file):
    cases = pytestconfig.getoption("--cases")
    few = [] if cases is None else ["--cases", str(cases)]
    path = str(GPU_TESTS / f"{file}.py")
    passed, failed, output = run_gpu_tests(path, *few, marked="gpu and not slow")
    assert failed == 0, output
    assert passed >= (FEWEST[file] if cases is None else 1), output


@pytest.mark.large
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_wrong_reductions_are_noticed(run_gpu_tests, kind):
    """The control: collectives that reduce fail, others do not."""
    chosen = f"{kind} and two and (test_reduce_scatter or test_all_gather)"
    passed, failed, output = run_gpu_tests(
        str(GPU_TESTS / "test_collectives.py"),
        "-k",
        chosen,
        fault="wrong reduction",
    )
    assert (passed, failed) == (15, 6), output
    assert len(re.findall("FAILED .*test_reduce_scatter", output)) == 6, output
