"""Caches of keys and values whose tensors are sharded."""

from tests.lower.caches import Cached

import distir_ext as dx

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
    assert text.count("R.shape([8, 2, 3])") == 3  # the cache, what it begins with, and its view
