"""Caches of keys and values on workers."""

import numpy as np
import pytest
from tests.lower.caches import Cached
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))


@pytest.mark.parametrize(
    "plan",
    [
        {"x": (None, "a", None)},
        {"x": (None, ("a", "b"), None)},
        {"x": (None, None, ("a", "b"))},  # does not divide: whole in the cache
        {"y": (None, "b", "a")},
        {"x": (None, "a", None), "y": (None, None, "b")},
        {"x": (None, "a", None), "y": (None, "b", None)},
    ],
)
def test_numbers(plan):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 6), "float32")
    y = rng.standard_normal((5, 4, 6), "float32")
    executable = dx.build(dx.annotate(Cached, MESH, plan))
    with dx.Session(MESH) as session:
        actual = session.load(executable)["main"](x, y).numpy()
    np.testing.assert_array_equal(actual, np.square(np.concatenate([x, y])))


@I.ir_module
class Served:
    """A cache that one function makes and another one extends."""

    @R.function(pure=False)
    def prefill(x: R.Tensor(("m", 4, 6), "float32")):
        z: R.Tensor((8, 4, 6), "float32") = R.zeros(R.shape([8, 4, 6]), dtype="float32")
        cache: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_create",
            z,
            R.shape([8, 4, 6]),
            R.prim_value(0),
            ty_args=(R.Any,),
        )
        filled: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", cache, x, ty_args=(R.Any,)
        )
        return (filled,)

    @R.function(pure=False)
    def decode(x: R.Tensor((1, 4, 6), "float32"), caches: R.Tuple(R.Any), cached: R.Shape(["n"])):
        n = T.int64()
        cache: R.Any = caches[0]
        longer: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", cache, x, ty_args=(R.Any,)
        )
        view: R.Tensor((n + 1, 4, 6), "float32") = R.call_packed(
            "vm.builtin.attention_kv_cache_view",
            longer,
            R.shape([n + 1, 4, 6]),
            ty_args=(R.Tensor((n + 1, 4, 6), "float32"),),
        )
        y = R.sum(R.multiply(view, view), axis=[0])
        return (y, (longer,))


@pytest.fixture(scope="module")
def served():
    mod = Served
    for name in ("prefill", "decode"):
        mod = dx.annotate(mod, MESH, {"x": (None, "a", "b")}, func=name)
    return dx.build(mod)


def test_a_cache_stays_on_the_workers_between_calls(served):
    x = np.random.default_rng(0).standard_normal((6, 4, 6), "float32")
    with dx.Session(MESH) as session:
        model = session.load(served)
        caches = model["prefill"](x[:2])
        assert repr(caches[0]) == "<WorkerValue on devices [0, 1, 2, 3]>"
        for index in range(2, 6):
            y, caches = model["decode"](x[index : index + 1], caches, (index,))
            expected = np.square(x[: index + 1]).sum(0)
            np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
        with dx.Session(MESH) as other:
            expected = r'input "caches" of "decode"\[0\] is on the workers of another session'
            with pytest.raises(ValueError, match=expected):
                other.load(served)["decode"](x[:1], caches, (6,))
        with pytest.raises(TypeError, match="is ndarray, expected a value that a function of this"):
            model["decode"](x[:1], (x,), (6,))
    with pytest.raises(RuntimeError, match="the session is closed"):
        model["decode"](x[:1], caches, (6,))
