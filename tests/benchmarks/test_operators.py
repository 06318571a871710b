"""The benchmark of operators measures rows that are right, and finds one that is wrong."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.large
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("operators")
    for name in [each for each in sys.modules if each.startswith("operators")]:
        del sys.modules[name]


def test_rows_are_measured(benchmark, capsys):
    pytest.importorskip("jax", reason="JAX is not installed")
    benchmark.main(["--rows", "^(softmax|matmul8|mean)", "--workers", "1", "2", "--repeats", "1"])
    said = capsys.readouterr().out
    assert "1 workers: 5 rows, geometric mean" in said
    assert "2 workers: 5 rows, geometric mean" in said


def test_a_wrong_row_is_a_failure(benchmark, monkeypatch):
    monkeypatch.setitem(benchmark.TOLERANCES, "float32", 0.0)
    with pytest.raises(SystemExit, match=r"^softmax, odd sizes, 1 workers: .* has an error of"):
        benchmark.main(["--rows", "softmax, odd", "--workers", "1", "--repeats", "1", "--no-jax"])
