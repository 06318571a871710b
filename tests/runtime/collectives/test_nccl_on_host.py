"""The NCCL backend on host memory: tests/gpu with what stands in for CUDA and NCCL there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import tvm
import tvm_ffi

ROOT = Path(__file__).parents[3]
GPU_TESTS = ROOT / "tests" / "gpu"


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The library made of the C++ files of tests/gpu."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    library = tmp_path_factory.mktemp("cuda_on_host") / "libcuda_on_host.so"
    includes = [
        f"-I{ROOT / 'src'}",
        f"-I{Path(tvm.__file__).parent / 'include'}",
        *(f"-I{path}" for path in tvm_ffi.libinfo.include_paths()),
    ]
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden"]
    if "libtsan" in os.environ.get("LD_PRELOAD", ""):
        # Else the sanitizer does not see what orders the first calls of several threads.
        command.append("-fsanitize=thread")
    sources = [str(path) for path in sorted(GPU_TESTS.glob("*.cc"))]
    subprocess.run([*command, *includes, *sources, "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def folder():
    """Where what stands in for NCCL has its files: in memory, if there is such a place."""
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else None) as made:
        yield made


@pytest.fixture
def run_gpu_tests(stand_in, folder, pytestconfig):
    """Runs tests: the numbers of those that passed and failed, and the output."""
    sample = pytestconfig.getoption("--sample")

    def run(*arguments, marked="gpu", fault=""):
        command = [sys.executable, "-m", "pytest", "-q", "-m", marked, "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "--tb=short", "--sample", sample, *arguments],
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
    "test_programs": 40,
    "test_stand_in": 3,
}
"""Of each file, how many tests pass at least."""


def test_every_file_is_run():
    assert set(FEWEST) == {path.stem for path in GPU_TESTS.glob("test_*.py")}


# What make test runs; the others take minutes.
SMALL = {"test_gpu_check", "test_machine_copies", "test_programs", "test_stand_in"}


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file in SMALL else pytest.mark.large) for file in FEWEST],
)
def test_all_of_it(run_gpu_tests, file):
    passed, failed, output = run_gpu_tests(f"{GPU_TESTS / file}.py", marked="gpu and not slow")
    assert failed == 0, output
    assert passed >= FEWEST[file], output


@pytest.mark.parametrize("kind", ["threads", pytest.param("processes", marks=pytest.mark.large)])
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
