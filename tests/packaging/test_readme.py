"""The README's program runs, block after block, and computes what NumPy computes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CHECK = """
h = np.float64(x) @ weights[0]
expected = h * 0.5 * (1 + np.vectorize(math.erf)(h / 2**0.5)) @ weights[1]
error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
assert error < 1e-5, error
"""


def test_example_runs(tmp_path):
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert blocks
    example = "\n".join(blocks)
    program = tmp_path / "example.py"  # a file, because TVMScript reads its own source
    program.write_text(f"import math\n{example}{CHECK}", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
