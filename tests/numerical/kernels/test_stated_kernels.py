"""Kernels with stated rules, on shards."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.rules.stated_kernels import MESH, loop_extents, unpacking, with_rule

import distir_ext as dx

UNPACK = "o (g a), o g -> o (g a e)"


def unpacked(words: np.ndarray, scale: np.ndarray) -> np.ndarray:
    shifts = np.arange(8, dtype="uint32") * 4
    numbers = (words[..., None] >> shifts & 15).reshape(len(words), -1).astype("float16")
    return (numbers - np.float16(7)) * np.repeat(scale, 32, axis=1)


@pytest.mark.parametrize("rule", [UNPACK, None], ids=["stated", "derived"])
@pytest.mark.parametrize(
    ("mesh", "columns", "plan", "shape"),
    [
        (dx.Mesh((4,), ("tp",)), 256, {"down": (None, "tp")}, (8, 64)),
        (dx.Mesh((4,), ("tp",)), 256, {"down": ("tp", None)}, (2, 256)),
        (dx.Mesh((2, 2), ("a", "b")), 192, {"down": ("a", "b")}, (4, 96)),
        (dx.Mesh((2, 3), ("a", "b")), 192, {"scale": (None, ("a", "b"))}, (8, 32)),
        (dx.Mesh((2, 2, 2), ("a", "b", "c")), 64, {"down": ("b", ("a", "c"))}, None),
    ],
    ids=["columns", "rows", "both", "two axes", "more shards than groups"],
)
def test_packed_weights_are_unpacked_on_shards(mesh, columns, plan, shape, rule):
    mod = dx.annotate(unpacking(8, columns, rule), mesh, plan)
    lowered = dx.lower(mod)
    if shape is not None:
        local = lowered["unpack_local"]
        assert tuple(map(int, local.params[2].ty.shape)) == shape
        assert sorted(loop_extents(local)) == sorted([*shape, *shape])
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (8, columns // 8), dtype="uint32")
    scale = rng.standard_normal((8, columns // 32)).astype("float16")
    with dx.Session(mesh) as session:
        got = session.load(dx.build(mod))["main"](words, scale).numpy()
    np.testing.assert_array_equal(got, unpacked(words, scale))


def test_a_loop_that_would_be_cut_in_between_is_refused():
    source = """
@I.ir_module(s_tir=True)
class Module:
    @T.prim_func(private=True, s_tir=True)
    def kernel(A: T.Buffer((8, 6), "float32"), C: T.Buffer((8, 6), "float32")):
        for f in range(48):
            with T.sblock("C"):
                v = T.axis.spatial(48, f)
                C[v // 6, v % 6] = A[v // 6, v % 6] + T.float32(1)

    @R.function
    def main(x: R.Tensor((8, 6), "float32")):
        cls = Module
        y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((8, 6), "float32"))
        return y
"""
    mod = with_rule(tvm.script.from_source(source), "n k -> n k")
    with pytest.raises(ValueError, match="cannot run on shards: loop `f` would be cut in between"):
        dx.lower(dx.annotate(mod, MESH, {"x": (None, "a")}))
    x = np.random.default_rng(0).standard_normal((8, 6), "float32")
    with dx.Session(MESH) as session:
        exe = dx.build(dx.annotate(mod, MESH, {"x": (("a", "b"), None)}))
        np.testing.assert_array_equal(session.load(exe)["main"](x).numpy(), x + 1)
