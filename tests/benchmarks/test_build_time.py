"""The benchmark of builds measures one in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "build_time.py"


@pytest.mark.large
def test_a_scan_builds_and_comes_from_the_cache(tmp_path):
    seconds = []
    for kind in ("first", "second"):
        result = subprocess.run(
            [sys.executable, str(BENCHMARK), "--one", json.dumps(["scan of 64 steps", kind])],
            env={**os.environ, "DISTIR_EXT_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        seconds.append(float(result.stdout))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert 0 < seconds[1] < 0.5 * seconds[0]
