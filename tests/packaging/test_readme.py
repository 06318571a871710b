"""The programs of README and pages run, block after block; README's computes what NumPy does."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS_JAX = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
ROOT = Path(__file__).resolve().parents[2]

TEN_LINES = ROOT / "docs" / "first_ten_lines.md"

CHECK = """
h = np.float64(x) @ weights["up"]
expected = h * 0.5 * (1 + np.vectorize(math.erf)(h / 2**0.5)) @ weights["down"]
error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
assert error < 1e-5, error
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("page", "check"),
    [
        ("README.md", CHECK),
        ("docs/annotate.md", ""),
        ("docs/manual.md", ""),
        ("docs/design.md", ""),
        ("docs/explain.md", ""),
        ("docs/interop/gspmd.md", ""),
        ("docs/interop/shardy.md", ""),
        pytest.param("docs/interop/jax.md", "", marks=NEEDS_JAX),
        ("docs/sharding_mutator.md", ""),
        ("docs/from_the_forum.md", ""),
        ("docs/training.md", ""),
        ("docs/from_tvmscript.md", ""),
        ("docs/from_nn_module.md", ""),
        ("docs/from_onnx.md", ""),
        ("docs/interop/onnx.md", ""),
        pytest.param("docs/from_torch.md", "", marks=pytest.mark.models),
        pytest.param("docs/interop/torch.md", "", marks=pytest.mark.models),
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


def test_the_first_ten_lines(tmp_path):
    """They are ten, and lead from installation to a table, a timeline and a picture."""
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```$", TEN_LINES.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [language for language, _ in blocks] == ["console", "python", "python", ""]
    shell, program, module, table = (block for _, block in blocks)
    assert len([line for line in (shell + program).splitlines() if line]) == 10
    assert shell == "pip install '.[plot]'\n"
    assert re.search(r"^plot = \[", (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    (tmp_path / "mlp.py").write_text(module, encoding="utf-8")
    (tmp_path / "ten.py").write_text(program, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "ten.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.rstrip() == table.rstrip()
    for name in ("timeline.svg", "up.svg"):
        assert ET.parse(tmp_path / name).getroot().tag.endswith("svg")
