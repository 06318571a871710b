"""Boundaries that elements are counted against, and keys of attention, that do not divide."""

import numpy as np
import pytest
from tests.padding.programs import FOUR, TALL
from tests.targets import QUICK
from tvm.relax import op as R

import distir_ext as dx

from .checks import assert_same_numbers
from .test_along_uneven import CUBE, module, sent

MESHES = ((FOUR, "a"), (TALL, ("a", "b")), (CUBE, ("c", "a")))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_elements_are_counted_against_true_boundaries(dtype, session_of):
    """Padding is not counted, not even for the largest number and for NaN."""
    rng = np.random.default_rng(0)
    if dtype.startswith("float"):
        boundaries = np.sort(rng.standard_normal(13)).astype(dtype)
        boundaries[-1] = np.inf
        x = np.array([-np.inf, np.inf, np.nan, 0, 1], dtype)
    else:
        largest = np.iinfo(dtype).max
        boundaries = np.sort(rng.integers(-5, 5, 13)).astype(dtype)
        boundaries[-1] = largest
        x = np.array([np.iinfo(dtype).min, -6, 0, 4, largest], dtype)
    for mesh, axes in MESHES:
        for right in (False, True):
            counted = module(
                lambda x, b, right=right: R.bucketize(x, b, right=right),
                x=((5,), dtype),
                b=((13,), dtype),
            )
            plan = {"b": (axes,)}
            shards = 6 if mesh is TALL else 4
            assert sent(counted, mesh, plan) <= 2 * 5 * 8 * (shards - 1) / shards + 8
            model = session_of(mesh.shape).load(dx.build(dx.annotate(counted, mesh, plan), QUICK))
            found = model["main"](x, boundaries).numpy()
            np.testing.assert_array_equal(found, np.digitize(x, boundaries, right=not right))


def attention(causal, has_bias):
    def build(q, k, v, *bias):
        return R.nn.attention(q, k, v, *bias, causal_mask=causal)

    tensors = dict.fromkeys("qkv", ((2, 9, 4, 6), "float32"))
    return module(build, **tensors, **({"b": ((2, 4, 9, 9), "float32")} if has_bias else {}))


def test_attention_to_keys_that_do_not_divide(session_of):
    """Each device has the scores of its own keys; what is reduced does not grow with these."""
    rng = np.random.default_rng(0)
    for mesh, axes in MESHES:
        for causal, has_bias in ((None, True), ("TopLeft", False), ("BottomRight", True)):
            program = attention(causal, has_bias)
            inputs = [
                rng.standard_normal([int(n) for n in param.ty.shape.values]).astype("float32")
                for param in program["main"].params
            ]
            keys = {"k": (None, axes, None, None), "v": (None, axes, None, None)}
            lowered = dx.lower(dx.annotate(program, mesh, keys))
            assert {each.kind for each in dx.analysis.collectives(lowered)} == {"all_reduce"}
            queries = {"q": (None, axes, None, None), "return": (None, axes, None, None)}
            assert sent(program, mesh, queries) == 0
            for plan in (keys, queries):
                assert_same_numbers(program, mesh, plan, inputs, session_of(mesh.shape))


def test_attention_keeps_infinite_scores_and_nan():
    """A bias of minus infinity hides a key, and NaN in a key is seen, as on one device."""
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 9, 2, 4)).astype("float32") for _ in "qkv"]
    bias = np.where(np.tri(9) > 0, 0, -np.inf).astype("float32")[None, None].repeat(2, 1)
    inputs[1][0, 7, 1, 2] = np.nan
    tensors = dict.fromkeys("qkv", ((1, 9, 2, 4), "float32"))
    program = module(R.nn.attention, **tensors, b=((1, 2, 9, 9), "float32"))
    plan = {"k": (None, "a", None, None), "v": (None, "a", None, None)}
    one = dx.Mesh((1,), ("a",))
    with dx.Session(one, ccl="cpu") as session:
        built = dx.build(dx.annotate(program, one, plan), QUICK)
        wanted = session.load(built)["main"](*inputs, bias).numpy()
    with dx.Session(FOUR, ccl="cpu") as session:
        built = dx.build(dx.annotate(program, FOUR, plan), QUICK)
        found = session.load(built)["main"](*inputs, bias).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert np.isnan(wanted).any()
    assert not np.isnan(wanted).all()
