"""Operators with rules that users state, on shards."""

from __future__ import annotations

import numpy as np
import pytest
from tests.rules.stated import MESH, AnyRows, FixedRows, call_of, kinds, placement_of, propagated
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx


def run(mod, plan, *arrays):
    exe = dx.build(dx.annotate(mod, MESH, plan), target="llvm")
    with dx.Session(MESH) as session:
        return session.load(exe)["main"](*arrays).numpy()


PROJECTION = call_of("tests.projection", (4, 3, 8), (8, 6), out=((4, 3, 6),))


@pytest.mark.parametrize(
    ("plan", "communication"),
    [
        ({"x0": ("a", None, None), "x1": (None, "b")}, []),
        ({"x0": ("a", None, "b"), "x1": ("b", None)}, ["all_reduce"]),
        ({"x0": (None, None, ("a", "b"))}, ["all_reduce"]),
    ],
    ids=["parallel", "reduced and parallel", "reduced"],
)
def test_a_packed_function_is_computed_on_shards(rules, plan, communication):
    rules("tests.projection", "b s h, h o -> b s o", reduce={"h": "sum"})
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(s, "float32") for s in ((4, 3, 8), (8, 6)))
    got = run(PROJECTION, plan, x, weight)
    np.testing.assert_allclose(got, np.einsum("bsh,ho->bso", x, weight), rtol=1e-5, atol=1e-5)
    assert kinds(dx.annotate(PROJECTION, MESH, plan)) == communication


def test_a_function_that_returns_its_result_is_computed_on_shards(rules):
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((8, 6), "float32")):
            y = R.call_pure_packed("tests.negative", x, ty_args=R.Tensor((8, 6), "float32"))
            return y

    rules("tests.negative", "n k -> n k")
    x = np.random.default_rng(0).standard_normal((8, 6), "float32")
    plan = {"x": ("a", "b")}
    np.testing.assert_array_equal(run(Module, plan, x), -x)
    assert placement_of(propagated(Module, **plan)) == "S[0], S[1]"


@pytest.mark.parametrize(
    ("mod", "wanted"),
    [(AnyRows, lambda x: np.cumsum(x, 1)), (FixedRows, lambda x: x * 2)],
    ids=["called on shards as it is", "cut along its index maps"],
)
def test_a_kernel_is_computed_as_its_stated_rule_says(mod, wanted):
    x = np.random.default_rng(0).standard_normal((8, 6), "float32")
    plan = {"x": (("a", "b"), None)}
    np.testing.assert_allclose(run(mod, plan, x), wanted(x), rtol=1e-5, atol=1e-6)
    assert placement_of(propagated(mod, **plan)) == "S[0], S[0]"
    assert kinds(dx.annotate(mod, MESH, plan)) == []


def test_a_stated_reduction_is_combined():
    @I.ir_module(s_tir=True)
    class Module:
        @T.prim_func(private=True, s_tir=True)
        def total(a: T.handle, c: T.handle):
            T.func_attr({"distir.rule": "n k -> n; sum k"})
            n = T.int64()
            k = T.int64()
            A = T.match_buffer(a, (n, k))
            C = T.match_buffer(c, (n,))
            for i in range(n):
                with T.sblock("C"):
                    vi = T.axis.spatial(n, i)
                    C[vi] = T.float32(0)
                    for j in range(k):
                        C[vi] = C[vi] + A[vi, j]

        @R.function
        def main(x: R.Tensor((8, 6), "float32")):
            cls = Module
            y = R.call_tir(cls.total, (x,), out_ty=R.Tensor((8,), "float32"))
            return y

    x = np.random.default_rng(0).standard_normal((8, 6), "float32")
    plan = {"x": ("a", "b")}
    np.testing.assert_allclose(run(Module, plan, x), x.sum(1), rtol=1e-5, atol=1e-6)
    assert kinds(dx.annotate(Module, MESH, plan)) == ["all_reduce"]
