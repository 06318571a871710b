"""Kernels scheduled for a GPU, on shards."""

import re

import numpy as np
import tvm
from tests.rules.scheduled_kernels import module

import distir_ext as dx

MESH = dx.Mesh((4,), ("x",))


def test_numbers_of_fewer_blocks():
    mod = dx.annotate(module("blockIdx.x", "blockIdx.y"), MESH, {"x": ("x", None)})
    lowered = dx.lower(mod)
    assert dx.analysis.collectives(lowered) == []
    text = lowered.script(show_meta=True)
    assert 'T.thread_binding(2, thread="blockIdx.x")' in text
    # What is bound to threads computes what plain loops do, which a CPU can run.
    plain = re.sub(r'T\.thread_binding\((\d+), thread="[^"]*"\)', r"range(\1)", text)
    x = np.random.default_rng(0).standard_normal((64, 32)).astype("float32")
    with dx.Session(MESH) as session:
        got = session.load(dx.build(tvm.script.from_source(plain)))["main"](x).numpy()
    np.testing.assert_allclose(got, x * 2 + 1, rtol=1e-6)
