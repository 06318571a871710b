"""Numbers of calls whose operands and results are stated in different ways."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op as R

import distir_ext as dx

from .test_communication_laws import program

X, W = (8, 24), (24, 16)

CALLS = [
    ([X, W], R.matmul, np.matmul, {"a": ("x", None), "b": (None, "y"), "return": ("y", "x")}),
    (
        [X, W],
        R.matmul,
        np.matmul,
        {"a": ("x", "y"), "b": ("y", None), "return": (("y", "x"), None)},
    ),
    ([X, W], R.matmul, np.matmul, {"a": (None, "x"), "b": ("y", "x"), "return": ("y", None)}),
    ([X], lambda a: R.sum(a, 0), lambda a: a.sum(0), {"a": (None, "x"), "return": ("y",)}),
    ([X], lambda a: R.max(a, 1), lambda a: a.max(1), {"a": ("y", "x"), "return": ("x",)}),
    (
        [X],
        lambda a: R.strided_slice(a, [0], [0], [4]),
        lambda a: a[:4],
        {"a": (None, "x"), "return": (None, "y")},
    ),
    ([X, X], R.add, np.add, {"a": ("x", "y"), "b": ("y", None), "return": (None, ("y", "x"))}),
    (
        [X],
        lambda a: relax.Tuple((R.nn.relu(a), R.exp(a))),
        lambda a: (np.maximum(a, 0), np.exp(a)),
        {"a": ("x", "y"), "return.0": ("y", "x"), "return.1": ("y", "x")},
    ),
]


@pytest.mark.every_case
@pytest.mark.parametrize("shape", [(4, 2), (2, 3)], ids=str)
def test_numbers(shape):
    """Compares each call with NumPy, on one mesh."""
    mesh = dx.Mesh(shape, ("x", "y"))
    rng = np.random.default_rng(0)
    with dx.Session(mesh) as session:
        for shapes, call, numpy, plan in CALLS:
            arrays = [rng.standard_normal(each, "float32") for each in shapes]
            mod = dx.annotate(program(shapes, call), mesh, plan)
            got = session.load(dx.build(mod, QUICK))["main"](*arrays)
            wanted = numpy(*arrays)
            got, wanted = (x if isinstance(x, tuple | list) else [x] for x in (got, wanted))
            for one, right in zip(got, wanted, strict=True):
                np.testing.assert_allclose(one.numpy(), right, rtol=1e-5, atol=1e-5)
