"""Kernels in place, and of symbolic sizes, on shards."""

import numpy as np
import pytest
import tvm
from tests.rules.lowering import LOWERING, collectives
from tests.targets import QUICK
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

MESH = dx.Mesh((2, 2), ("a", "b"))


@I.ir_module(s_tir=True)
class InPlace:
    @T.prim_func(private=True, s_tir=True)
    def shift(
        x: T.Buffer((8, 12), "float32"),
        y: T.Buffer((8, 12), "float32"),
        bias: T.Buffer((12,), "float32"),
        twice: T.Buffer((8, 12), "float32"),
    ):
        for i, j in T.grid(8, 12):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = y[vi, vj] + bias[vj]
        for i, j in T.grid(8, 12):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                twice[vi, vj] = x[vi, vj] * T.float32(2)

    @R.function
    def main(
        x: R.Tensor((8, 12), "float32"),
        y: R.Tensor((8, 12), "float32"),
        bias: R.Tensor((12,), "float32"),
    ):
        cls = InPlace
        both = R.call_tir_inplace(
            cls.shift,
            (x, y, bias),
            inplace_indices=[-1, 1],
            out_ty=[R.Tensor((8, 12), "float32"), R.Tensor((8, 12), "float32")],
        )
        return both


@pytest.mark.parametrize("placed", [{"y": ("a", "b")}, {"x": ("b", None)}, {"bias": ("a",)}])
def test_kernel_in_place(placed):
    mod = dx.transform.PropagateSharding()(dx.annotate(InPlace, MESH, placed))
    # TVM's check of what is well-formed knows kernels in place on Tensors only.
    parsed = tvm.script.from_source(mod.script(), check_well_formed=False)
    tvm.ir.assert_structural_equal(parsed, mod)
    lowered = LOWERING(mod)
    assert collectives(lowered) == []
    assert any(name.name_hint == "shift_local" for name in lowered.functions)
    rng = np.random.default_rng(0)
    x, y, bias = (rng.standard_normal(shape).astype("float32") for shape in ((8, 12), (8, 12), 12))
    with dx.Session(MESH) as session:
        twice, shifted = session.load(dx.build(mod, QUICK))["main"](x, y.copy(), bias)
    np.testing.assert_array_equal(twice.numpy(), x * 2)
    np.testing.assert_array_equal(shifted.numpy(), y + bias)


@I.ir_module(s_tir=True)
class Accumulation:
    @T.prim_func(private=True, s_tir=True)
    def accumulate(total: T.Buffer((8,), "float32"), x: T.Buffer((8, 12), "float32")):
        for i, k in T.grid(8, 12):
            with T.sblock("total"):
                vi, vk = T.axis.remap("SR", [i, k])
                total[vi] = total[vi] + x[vi, vk]

    @R.function
    def main(total: R.Tensor((8,), "float32"), x: R.Tensor((8, 12), "float32")):
        cls = Accumulation
        sums = R.call_tir_inplace(
            cls.accumulate, (total, x), inplace_indices=[0], out_ty=R.Tensor((8,), "float32")
        )
        return sums


def test_what_is_accumulated_in_place_counts_once():
    mod = dx.annotate(Accumulation, MESH, {"x": ("a", "b")})
    lowered = LOWERING(mod)
    assert collectives(lowered) == ["R.ccl.all_gather"]  # the summed dimension
    x = np.arange(96, dtype="float32").reshape(8, 12)
    total = np.arange(8, dtype="float32")
    with dx.Session(MESH) as session:
        sums = session.load(dx.build(mod, QUICK))["main"](total.copy(), x)
    np.testing.assert_array_equal(sums.numpy(), total + x.sum(1))


@I.ir_module(s_tir=True)
class Dynamic:
    @T.prim_func(private=True, s_tir=True)
    def times_size(var_A: T.handle, n: T.int64, var_C: T.handle):
        A = T.match_buffer(var_A, (n, T.int64(12)), "float32")
        C = T.match_buffer(var_C, (n, T.int64(12)), "float32")
        for i, j in T.grid(n, T.int64(12)):
            with T.sblock("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj] * T.Cast("float32", n)

    @R.function
    def main(
        x: R.Tensor(("n", 12), "float32"),
        w: R.Tensor((12, 12), "float32"),
        y: R.Tensor(("n", 12), "float32"),
    ):
        n = T.int64()
        cls = Dynamic
        with R.dataflow():
            s = R.nn.softmax(R.matmul(x, w), axis=-1)
            scaled = R.call_tir(cls.times_size, (s, n), out_ty=R.Tensor((n, 12), "float32"))
            same = R.reshape(R.reshape(s, (n, 3, 4)), (n, 12))
            u = R.add(R.add(scaled, same), y)
            mean = R.mean(u, axis=[0])
            along = R.nn.softmax(u, axis=0)
            R.output(u, mean, along)
        return (u, mean, along)


def flat(value):
    return [value.numpy()] if hasattr(value, "numpy") else [x for f in value for x in flat(f)]


@pytest.mark.parametrize(
    "plan",
    [
        {"x": ("a", None)},
        {"x": (None, "a")},
        {"w": (None, "a")},
        {"x": (("a", "b"), None)},
        {"x": ("a", None), "w": (None, "b")},
        {"x": ("a", None), "w": (None, "b"), "y": (None, "b")},
        {"x": ("a", None), "y": (("a", "b"), None)},
    ],
)
def test_symbolic_sizes(plan):
    mod = relax.transform.LegalizeOps()(Dynamic)
    rng = np.random.default_rng(0)
    arguments = [rng.standard_normal(s, "float32") for s in ((24, 12), (12, 12), (24, 12))]
    machine = relax.VirtualMachine(tvm.compile(mod, QUICK), tvm.cpu())
    expected = flat(machine["main"](*map(tvm.runtime.tensor, arguments)))
    executable = dx.build(dx.annotate(mod, MESH, plan), QUICK)
    with dx.Session(MESH) as session:
        actual = flat(session.load(executable)["main"](*arguments))
    for ours, theirs in zip(actual, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
