"""Contradictory rules, plans and annotations: one clear exception each, and never a crash."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax

import distir_ext as dx

from . import contradictions
from .contradictions import CASES


@pytest.fixture(scope="module")
def outcomes():
    command = [sys.executable, contradictions.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.every_case
@pytest.mark.parametrize("name", CASES)
def test_a_contradiction_is_one_error(name, outcomes):
    case = CASES[name]
    error, message = outcomes[name]
    assert re.fullmatch(case.error, error), f"{error}: {message}"
    assert re.search(case.message, message), message
    assert "Check failed" not in message


MESHES = [
    relax.distributed.DeviceMesh((2, 2), tvm.ir.Range(0, 4)),
    relax.distributed.DeviceMesh((2,), tvm.ir.Range(0, 2)),
]


@pytest.mark.parametrize("each_of", ["the tensor", "the one before"])
@pytest.mark.parametrize("second", [(0, "R, S[0]"), (1, "S[1]")], ids=["same mesh", "other mesh"])
def test_annotations_that_differ_are_no_contradiction(second, each_of):
    """Each annotation is of its own uses: what lies between two is one redistribution."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 6), "float32"))
    with builder.function("main", [x]):
        values = []
        for mesh, text in ((0, "S[0], R"), second):
            source = values[-1] if values and each_of == "the one before" else x
            placement = relax.distributed.Placement.from_text(text)
            mark = relax.op.distributed.annotate_sharding(source, MESHES[mesh], placement)
            values.append(builder.emit(mark))
        builder.emit_func_output(relax.Tuple(values))
    mod = builder.get()
    mod.update_global_info("mesh", MESHES)
    text = dx.transform.PropagateSharding()(mod)["main"].script()
    assert text.count("R.dist.redistribute(") == 1
    numbers = np.random.default_rng(0).standard_normal((8, 6), "float32")
    with dx.Session(4) as session:
        for result in session.load(dx.build(mod, target="llvm"))["main"](numbers):
            np.testing.assert_array_equal(result.numpy(), numbers)
