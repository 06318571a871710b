"""The programs of README and pages run, block after block; README's computes what NumPy does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CHECK = """
h = np.float64(x) @ weights["up"]
expected = h * 0.5 * (1 + np.vectorize(math.erf)(h / 2**0.5)) @ weights["down"]
error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
assert error < 1e-5, error
"""


@pytest.mark.parametrize(
    ("page", "check"),
    [
        ("README.md", CHECK),
        ("docs/annotate.md", ""),
        ("docs/design.md", ""),
        ("docs/explain.md", ""),
        ("docs/sharding_mutator.md", ""),
        ("docs/from_tvmscript.md", ""),
        ("docs/from_nn_module.md", ""),
        pytest.param("docs/from_torch.md", "", marks=pytest.mark.models),
        pytest.param("docs/from_onnx.md", "", marks=pytest.mark.models),
    ],
)
def test_example_runs(tmp_path, page, check):
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    example = "\n".join(blocks)
    program = tmp_path / "example.py"  # a file, because TVMScript reads its own source
    program.write_text(f"import math\n{example}{check}", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
