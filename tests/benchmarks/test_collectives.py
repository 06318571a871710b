"""The benchmark of collectives runs, and finds results that are wrong."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(*options):
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "collectives.py"), *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.fixture(scope="module")
def cases():
    source = BENCHMARKS / "collective_workers" / "cases.py"
    spec = importlib.util.spec_from_file_location("collective_cases", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.large
def test_prints_a_row_for_each_collective_and_size(cases):
    # It ends with an error where a result is not NumPy's.
    result = run("--sizes", "1K", "512K", "--workers", "2", "--repeats", "2", "--no-gloo")
    assert result.returncode == 0, result.stderr
    assert "Gloo is left out" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    found = {(row[0], row[1]): row[2:] for row in rows if row and row[0] in cases.COLLECTIVES}
    assert list(found) == [(name, size) for name in cases.COLLECTIVES for size in ("1K", "512K")]
    # Four times, two rates, two ratios.
    assert all(len(row) == 8 and all(float(each) > 0 for each in row[:4]) for row in found.values())


@pytest.mark.large
def test_refuses_sizes_without_whole_shards():
    result = run("--sizes", "1K", "--workers", "3")
    assert result.returncode == 2
    assert "divide into 3 shards" in result.stderr


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "permute"])
def test_a_wrong_result_is_found(cases, collective):
    right = cases.expected(collective, 1024, 2, 1)
    cases.check(right, collective, 1024, 2, 1)
    wrong = right.copy()
    wrong[7] += 1
    for each in (wrong, np.flip(right), cases.expected(collective, 2048, 2, 1)):
        with pytest.raises(ValueError, match=f"{collective} of 1024 bytes: worker 1 has a wrong"):
            cases.check(each, collective, 1024, 2, 1)
