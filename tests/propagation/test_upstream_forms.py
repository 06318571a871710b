"""Programs like those of TVM's tests of DistIR, with the modules that TVM's pass would write."""

import tvm
import tvm_ffi
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx

from .checks import propagated


@I.ir_module
class Halves:
    """A tuple of weights, and a kernel that splits rows of which the columns are sharded."""

    I.module_attrs({"device_num": 6})
    I.module_global_infos(meshes((3,)))

    @T.prim_func(private=True, s_tir=True)
    def halves(
        x: T.Buffer((8, 12), "float32"),
        upper: T.Buffer((4, 12), "float32"),
        lower: T.Buffer((4, 12), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(4, 12):
            with T.sblock("upper"):
                vi, vj = T.axis.remap("SS", [i, j])
                upper[vi, vj] = x[vi, vj]
        for i, j in T.grid(4, 12):
            with T.sblock("lower"):
                vi, vj = T.axis.remap("SS", [i, j])
                lower[vi, vj] = x[vi + 4, vj]

    @R.function
    def main(
        x: R.Tensor((8, 6), "float32"),
        weights: R.Tuple(R.Tensor((6, 12), "float32"), R.Tensor((12, 6), "float32")),
    ) -> R.Tensor((4, 6), "float32"):
        cls = Halves
        up = weights[0]
        a = R.matmul(x, up)
        b = R.nn.gelu(a)
        both = R.call_tir(
            cls.halves, [b], out_ty=[R.Tensor((4, 12), "float32"), R.Tensor((4, 12), "float32")]
        )
        c = both[0]
        d = R.dist.annotate_sharding(c, device_mesh="mesh[0]", placement="S[1]")
        down = weights[1]
        e = R.matmul(d, down)
        return e


@I.ir_module
class ShardedHalves:
    I.module_attrs({"device_num": 6})
    I.module_global_infos(meshes((3,)))

    @T.prim_func(private=True, s_tir=True)
    def halves(
        x: T.Buffer((8, 12), "float32"),
        upper: T.Buffer((4, 12), "float32"),
        lower: T.Buffer((4, 12), "float32"),
    ):
        T.func_attr({"tirx.noalias": True})
        for i, j in T.grid(4, 12):
            with T.sblock("upper"):
                vi, vj = T.axis.remap("SS", [i, j])
                upper[vi, vj] = x[vi, vj]
        for i, j in T.grid(4, 12):
            with T.sblock("lower"):
                vi, vj = T.axis.remap("SS", [i, j])
                lower[vi, vj] = x[vi + 4, vj]

    @R.function
    def main(
        x: R.DTensor((8, 6), "float32", "mesh[0]", "R"),
        weights: R.Tuple(
            R.DTensor((6, 12), "float32", "mesh[0]", "S[1]"),
            R.DTensor((12, 6), "float32", "mesh[0]", "S[0]"),
        ),
    ) -> R.DTensor((4, 6), "float32", "mesh[0]", "R"):
        cls = ShardedHalves
        up: R.DTensor((6, 12), "float32", "mesh[0]", "S[1]") = weights[0]
        a: R.DTensor((8, 12), "float32", "mesh[0]", "S[1]") = R.matmul(x, up)
        b: R.DTensor((8, 12), "float32", "mesh[0]", "S[1]") = R.nn.gelu(a)
        both = R.dist.call_tir(
            cls.halves,
            (b,),
            out_ty=[
                R.DTensor((4, 12), "float32", "mesh[0]", "S[1]"),
                R.DTensor((4, 12), "float32", "mesh[0]", "S[1]"),
            ],
        )
        c: R.DTensor((4, 12), "float32", "mesh[0]", "S[1]") = both[0]
        down: R.DTensor((12, 6), "float32", "mesh[0]", "S[0]") = weights[1]
        e: R.DTensor((4, 6), "float32", "mesh[0]", "R") = R.matmul(c, down)
        return e


@I.ir_module
class TwoStages:
    """Symbolic rows, a constant, and a second stage on another mesh."""

    I.module_global_infos(
        {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((3,), I.Range(2, 5))]}
    )

    @R.function
    def main(
        x: R.Tensor(("n", 6), "float32"),
        w0: R.Tensor((6, 6), "float32"),
        w1: R.Tensor((6, 6), "float32"),
        w2: R.Tensor((6, 6), "float32"),
    ) -> R.Tensor(("n", 6), "float32"):
        n = T.int64()
        a = R.matmul(x, w0)
        b = R.dist.annotate_sharding(a, device_mesh="mesh[0]", placement="S[1]")
        c = R.multiply(b, R.const(0.5, "float32"))
        d = R.matmul(c, w1)
        e = R.dist.annotate_sharding(d, device_mesh="mesh[1]", placement="R")
        f = R.matmul(e, w2)
        g = R.dist.annotate_sharding(f, device_mesh="mesh[1]", placement="S[1]")
        return g


@I.ir_module
class ShardedTwoStages:
    I.module_global_infos(
        {"mesh": [R.device_mesh((2,), I.Range(0, 2)), R.device_mesh((3,), I.Range(2, 5))]}
    )

    @R.function
    def main(
        x: R.DTensor(("n", 6), "float32", "mesh[0]", "R"),
        w0: R.DTensor((6, 6), "float32", "mesh[0]", "S[1]"),
        w1: R.DTensor((6, 6), "float32", "mesh[0]", "S[0]"),
        w2: R.DTensor((6, 6), "float32", "mesh[1]", "S[1]"),
    ) -> R.DTensor(("n", 6), "float32", "mesh[1]", "S[1]"):
        n = T.int64()
        a: R.DTensor((n, 6), "float32", "mesh[0]", "S[1]") = R.matmul(x, w0)
        c: R.DTensor((n, 6), "float32", "mesh[0]", "S[1]") = R.multiply(
            a, R.dist.const(0.5, R.DTensor((), "float32", "mesh[0]", "R"))
        )
        d: R.DTensor((n, 6), "float32", "mesh[0]", "R") = R.matmul(c, w1)
        e: R.DTensor((n, 6), "float32", "mesh[1]", "R") = R.dist.redistribute(
            d, device_mesh="mesh[1]", placement="R"
        )
        f: R.DTensor((n, 6), "float32", "mesh[1]", "S[1]") = R.matmul(e, w2)
        return f


def test_what_upstream_expects():
    for before, expected in ((Halves, ShardedHalves), (TwoStages, ShardedTwoStages)):
        mod = propagated(before)
        tvm.ir.assert_structural_equal(mod, expected)
        assert tvm_ffi.structural_hash(mod) == tvm_ffi.structural_hash(expected)
    upstream = relax.distributed.transform.PropagateSharding()(Halves)
    tvm.ir.assert_structural_equal(upstream, ShardedHalves)


def test_kernels_become_operators_where_their_rows_are_sharded():
    for placement, is_kernel in (("S[1]", True), ("S[0]", False)):
        mod = tvm.script.from_source(Halves.script().replace("S[1]", placement))
        assert ("R.dist.call_tir" in dx.transform.PropagateSharding()(mod).script()) == is_kernel


def test_notes_are_kept_and_not_compared():
    mod = dx.transform.PropagateSharding()(TwoStages)
    parsed = tvm.script.from_source(mod.script())
    assert str(parsed["main"].attrs["distir.stated"]) == str(mod["main"].attrs["distir.stated"])
    assert "stated by an annotation" in str(dx.explain(mod, "w0"))
    assert str(dx.explain(parsed, "w0")) == str(dx.explain(mod, "w0"))
    for note in ("stated", "open", "taken_back", "made", "shardings"):
        changed = _with(mod, f"distir.{note}", {"other": ["w2"]} if note == "made" else ["w2"])
        tvm.ir.assert_structural_equal(changed, mod)
        assert tvm_ffi.structural_hash(changed) == tvm_ffi.structural_hash(mod)
    changed = _with(mod, "distir.true_extents", [[-1, 5]])
    assert not tvm_ffi.structural_equal(changed, mod)
    assert tvm_ffi.structural_hash(changed) != tvm_ffi.structural_hash(mod)


def _with(mod, name, value):
    changed = mod.clone()
    changed.update_func(mod.get_global_var("main"), mod["main"].with_attr(name, value))
    return changed
