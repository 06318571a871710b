"""Attention over keys whose number is computed: a cache of symbolic length, and new keys."""

import numpy as np
from tests.targets import QUICK
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx


@I.ir_module
class Decode:
    @R.function
    def main(
        q: R.Tensor(("b", "s", 4, 8), "float32"),
        cache: R.Tensor(("b", "m", 4, 8), "float32"),
        new: R.Tensor(("b", "s", 4, 8), "float32"),
    ) -> R.Tuple(R.Tensor(("b", "s", 4, 8), "float32"), R.Tensor(("b", "m + s", 4, 8), "float32")):
        with R.dataflow():
            keys = R.concat((cache, new), axis=1)
            y = R.nn.attention(q, keys, keys, causal_mask="BottomRight")
            R.output(y, keys)
        return (y, keys)


def by_numpy(q, cache, new):
    keys = np.concatenate([cache, new], axis=1)
    scores = np.einsum("bshd,bkhd->bhsk", q, keys) / np.sqrt(q.shape[-1])
    seen = np.tri(q.shape[1], keys.shape[1], cache.shape[1], "bool")
    weights = np.exp(np.where(seen, scores, -np.inf))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhsk,bkhd->bshd", weights, keys), keys


def test_a_decode_step_of_any_batch_and_length():
    rng = np.random.default_rng(0)
    for mesh, plan in (
        (dx.Mesh(dp=3, tp=2), {"q": ("dp", None, "tp", None)}),
        (dx.Mesh(dp=2, sp=2, tp=2), {"cache": ("dp", "sp", "tp", None)}),
    ):
        exe = dx.build(dx.annotate(Decode, mesh, plan), QUICK)
        with dx.Session(mesh) as session:
            model = session.load(exe)
            for b, s, m in ((1, 1, 1), (5, 1, 3), (3, 3, 4)):
                given = [rng.standard_normal((b, n, 4, 8)).astype("float32") for n in (s, m, s)]
                for found, wanted in zip(model(*given), by_numpy(*given), strict=True):
                    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)
