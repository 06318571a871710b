"""Without PyTorch, the package works, and what needs it says what to install."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import tvm
before = set(sys.modules)
import distir_ext as dx
assert not {"torch", "transformers"} & (set(sys.modules) - before)
sys.modules["torch"] = None
try:
    dx.interop.torch
except ImportError as error:
    print(error)
"""


@pytest.mark.large
def test_the_extra_is_named():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert "pip install 'distir-ext[torch]'" in result.stdout
