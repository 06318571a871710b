"""Memory of a session is returned to the system when it is closed."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest
import tvm_ffi

import distir_ext  # noqa: F401

# The variables of a user, sessions and models among them, stay.
USE = """
import numpy as np
import psutil
from tvm import relax
from tvm.script import relax as R
import distir_ext as dx

SHAPE, COUNT = (1024, 1024), 16

builder = relax.BlockBuilder()
x = relax.Var("x", R.Tensor((1, 1024), "float32"))
weights = [relax.Var(f"w{i}", R.Tensor(SHAPE, "float32")) for i in range(COUNT)]
with builder.function("main", [x, *weights], attrs={"num_input": 1}):
    y = x
    for weight in weights:
        y = builder.emit(relax.op.add(y, relax.op.max(weight, 0, keepdims=True)))
    builder.emit_func_output(y)

mesh = dx.Mesh((4,), ("a",))
exe = dx.build(dx.annotate(builder.get(), mesh, {"w.*": (None, "a")}))
values = [np.ones(SHAPE, "float32") for _ in range(COUNT)]
kept = []

def use():
    with dx.Session(mesh) as session:
        model = session.load(exe, values)
        assert model["main"](np.ones((1, 1024), "float32")).numpy()[0, 0] == COUNT + 1
        kept.append((session, model))

def megabytes():
    return psutil.Process().memory_info().rss / 2**20

use()
before = megabytes()
use()
use()
print(megabytes() - before)
"""


@pytest.mark.large
def test_memory_of_closed_sessions(tmp_path):
    """64 MB of weights on four threads, twice."""
    script = tmp_path / "use.py"
    script.write_text(USE)
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 16


def test_a_result_too_large_to_be_kept_takes_no_more_addresses_than_it_has_bytes():
    """Others are rounded up to a power of two, of which a machine may have too few."""
    new_tensor = tvm_ffi.get_global_func("distir.runtime.new_host_tensor")
    before = psutil.Process().memory_info().vms
    tensor = new_tensor(tvm_ffi.Shape((300 << 20,)), "int8")
    assert 300 << 20 <= psutil.Process().memory_info().vms - before < 320 << 20
    del tensor
    assert psutil.Process().memory_info().vms - before < 20 << 20
