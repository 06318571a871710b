"""The compile-time benchmark runs, and its program is one that both sides accept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "compile_time.py"


def run(*options):
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--repeats", "1", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def rows(text, layers):
    """The numbers of each row for this many layers, one row per variant."""
    found = [line.split() for line in text.splitlines()]
    return [
        list(map(float, words)) for words in found if words[:1] == [str(layers)] and len(words) > 4
    ]


@pytest.mark.large
def test_prints_both_variants_beside_upstream():
    text = run("--layers", "1", "2")
    one_function, calls = rows(text, 2)
    # 53 operators per layer; as calls one body and a call for each layer.
    assert one_function[1] == 106
    assert calls[1] == 55
    assert len(one_function) == len(calls) + 2
    assert all(number > 0 for number in one_function)
    assert "upstream PropagateSharding" in " ".join(text.split())
    assert text.count("deviation from linear") == 2


@pytest.mark.large
def test_upstream_can_be_left_out():
    text = run("--layers", "1", "--no-upstream")
    one_function, calls = rows(text, 1)
    assert len(one_function) == len(calls)
    assert "upstream" not in text


@pytest.mark.large
def test_scale_prints_time_per_unit_and_memory():
    text = run("--scale", "axes")
    for axes in (2, 4, 6):
        (row,) = rows(text, axes)
        # The passes, their sum, microseconds per device, megabytes.
        assert len(row) == 1 + 7 + 3
        assert row[-2] == pytest.approx(row[-3] * 1e3 / 2**axes, rel=0.2)
    assert "us per unit" in " ".join(text.split())


def test_refuses_zero_layers():
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--layers", "0"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 2
    assert "positive" in result.stderr
