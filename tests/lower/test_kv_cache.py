"""Caches of keys and values whose tensors are sharded."""

import numpy as np
import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Cached:
    @R.function(pure=False)
    def main(x: R.Tensor((3, 4, 6), "float32"), y: R.Tensor((5, 4, 6), "float32")):
        z: R.Tensor((8, 4, 6), "float32") = R.zeros(R.shape([8, 4, 6]), dtype="float32")
        cache: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_create",
            z,
            R.shape([8, 4, 6]),
            R.prim_value(0),
            ty_args=(R.Any,),
        )
        with_x: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", cache, x, ty_args=(R.Any,)
        )
        with_y: R.Any = R.call_packed(
            "vm.builtin.attention_kv_cache_append", with_x, y, ty_args=(R.Any,)
        )
        view: R.Tensor((8, 4, 6), "float32") = R.call_packed(
            "vm.builtin.attention_kv_cache_view",
            with_y,
            R.shape([8, 4, 6]),
            ty_args=(R.Tensor((8, 4, 6), "float32"),),
        )
        w = R.multiply(view, view)
        return w


MESH = dx.Mesh((2, 2), ("a", "b"))


def test_one_tensor_places_the_whole_cache():
    mod = dx.transform.PropagateSharding()(dx.annotate(Cached, MESH, {"y": (None, "a", None)}))
    text = mod.script()
    assert 'x: R.DTensor((3, 4, 6), "float32", "mesh[0]", "S[1], R")' in text
    assert 'w: R.DTensor((8, 4, 6), "float32", "mesh[0]", "S[1], R")' in text
    assert text.count("vm.builtin.distributed.attention_kv_cache_append") == 2
    assert text.count("vm.builtin.distributed.attention_kv_cache_view") == 1


def test_workers_hold_their_shards():
    mod = dx.annotate(Cached, MESH, {"x": (None, "a", "b")})
    for make in (
        dx.transform.PropagateSharding,
        dx.transform.LegalizeRedistribute,
        dx.transform.LowerDistIR,
    ):
        mod = make()(mod)
    text = mod.script()
    assert "distributed" not in text
    assert text.count("R.shape([8, 2, 3])") == 2  # the cache and its view


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
