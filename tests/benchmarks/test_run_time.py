"""The run-time benchmark runs, and its programs agree with each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "run_time.py"


@pytest.mark.large
def test_prints_a_row_for_each_plan():
    # It ends with an error where logits of two plans differ.
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--small", "--repeats", "2", "--no-jax"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    rows = {words[0]: words[1:] for line in result.stdout.splitlines() if (words := line.split())}
    for name in ("unpartitioned", "tp8", "dp2_tp4", "fsdp8"):
        wall, processor, share = rows[name]
        assert float(wall) > 0
        assert float(processor) > 0
        assert 0 <= float(share.removesuffix("%")) < 100
    assert float(rows["unpartitioned"][2].removesuffix("%")) == 0
    assert float(rows["fsdp8"][2].removesuffix("%")) > 0
