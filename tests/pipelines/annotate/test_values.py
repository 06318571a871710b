"""Programs of which variables and results are annotated compute what they did."""

from __future__ import annotations

import numpy as np
import pytest
from tests.annotate.values import MESH, Branches, Pair, bound, check

import distir_ext as dx


def run(mod, mesh, *arrays):
    with dx.Session(mesh) as session:
        result = session.load(dx.build(mod, "llvm"))["main"](*arrays)
        return (
            tuple(each.numpy() for each in result) if isinstance(result, tuple) else result.numpy()
        )


def test_variables_and_results_are_named_like_parameters():
    plan = {
        "h": ("dp", "tp"),
        "g": (None, ("tp", "dp")),
        "k": (("dp", "tp"), None),
        "return.0": ("tp", "dp"),
        r"return\.1": None,
    }
    mod = dx.annotate(Branches, MESH, plan)
    check(mod)
    assert bound(mod) == {
        "h": "S[0], S[1]",
        "g": "S[1], S[1]",
        "k": "S[0], S[0]",
        "result_0": "S[1], S[0]",
        "result_1": "R, R",
    }
    assert "g_computed: R.Tensor" in mod.script()
    meshes = [list(mesh.shape) for mesh in mod.global_infos["mesh"]]
    assert meshes == [
        [2, 3],
        [3, 2],
    ]  # the user's mesh first, also where only ("tp", "dp") is on it

    x, w = (
        np.random.default_rng(0).standard_normal(s).astype("float32") for s in [(6, 8), (8, 12)]
    )
    g = np.maximum(x @ w, 0)
    for taken, expected in [(True, 3 * g), (False, 0 * g)]:
        results = run(mod, MESH, x, w, np.array(taken))
        np.testing.assert_allclose(results[0], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(results[1], g, rtol=1e-5, atol=1e-5)


def test_fields_of_a_tuple_variable_have_names():
    mod = dx.annotate(Pair, MESH, {"halves.1": ("dp", "tp")})
    check(mod)
    assert bound(mod) == {"halves_1_1": "S[0], S[1]"}
    x = np.arange(72, dtype="float32").reshape(6, 12)
    np.testing.assert_array_equal(run(mod, MESH, x), x[:, :6] + x[:, 6:])


@pytest.mark.filterwarnings("ignore:.*is annotated already")
def test_a_variable_that_is_annotated_twice_gets_both():
    once = dx.annotate(Branches, MESH, {"x": ("dp", None), "h": ("dp", None), "return.1": None})
    twice = dx.annotate(once, MESH, {"h": (None, "tp")})
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in [(6, 8), (8, 12)])
    y, _ = run(twice, MESH, x, w, np.array(True))
    np.testing.assert_allclose(y, 3 * np.maximum(x @ w, 0), rtol=1e-5, atol=1e-5)
