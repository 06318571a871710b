"""LowerGlobalViewToLocalView: kernels on DTensors become local views, in any order of passes."""

import pytest
import tvm
from tests.lower.local_views import (
    MESHES,
    ORDERS,
    ByHand,
    assert_prints_and_parses,
    operators,
    perceptron,
    plans_on,
    reduced_by,
    small,
    through,
)
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing.phases import violations

# ---- kernels that PropagateSharding has placed


@pytest.mark.parametrize("order", ["upstream", "collectives last"])
def test_programs_of_workers_are_those_of_the_shortest_order(order):
    mesh = MESHES["3x2"]
    (*_, plan) = plans_on(mesh)
    propagated = dx.transform.PropagateSharding()(
        dx.annotate(perceptron(7, 1), mesh, plan, func="f0")
    )
    short = [] if order == "upstream" else ["OptimizeCollectives"]
    left, right = (
        dx.transform.LowerDistIR()(through(propagated, names)) for names in (ORDERS[order], short)
    )
    tvm.ir.assert_structural_equal(
        left.without_attr("distir.optimizations"), right.without_attr("distir.optimizations")
    )


def test_running_it_twice_changes_nothing():
    mesh = MESHES["2"]
    (plan, *_) = plans_on(mesh)
    mod = dx.lower(
        dx.annotate(perceptron(12, 1), mesh, plan, func="f0"), until="LowerGlobalViewToLocalView"
    )
    tvm.ir.assert_structural_equal(dx.transform.LowerGlobalViewToLocalView()(mod), mod)
    tvm.ir.assert_structural_equal(dx.transform.LegalizeRedistribute()(mod), mod)


def test_explanations_go_through_local_views():
    mesh = MESHES["2"]
    mod = dx.annotate(perceptron(12, 1), mesh, {"up": (None, "a")}, func="f0")
    before = dx.lower(mod, until="LegalizeRedistribute")
    after = dx.lower(mod, until="LowerGlobalViewToLocalView")
    for name in ("lv", "lv1", "lv2"):
        text = str(dx.explain(after, name))
        assert text.replace("dist.call_tir_local_view", "call_tir") == str(dx.explain(before, name))


def test_tvm_removes_the_kernels_that_nothing_calls_any_more():
    mesh = MESHES["2"]
    (plan, *_) = plans_on(mesh)
    mod = dx.annotate(perceptron(12, 1), mesh, plan, func="f0")
    mod = dx.lower(mod, until="LowerGlobalViewToLocalView")
    names = {name.name_hint for name in relax.transform.DeadCodeElimination()(mod).functions}
    assert "matmul_local" in names
    assert "matmul" not in names


# ---- local views that are written by hand


def test_a_local_view_is_in_its_phase():
    assert dx.phase(ByHand) == "propagated"
    marked = tvm.IRModule(ByHand.functions, attrs=ByHand.attrs, global_infos=ByHand.global_infos)
    marked["main"] = ByHand["main"].with_attr("distir.explicit_reductions", True)
    assert dx.phase(marked) == "propagated"  # a redistribution and R.ccl.allreduce are left
    assert dx.phase(dx.transform.LegalizeRedistribute()(ByHand)) == "legalized"


@pytest.mark.parametrize("first", ["PropagateSharding", "LegalizeRedistribute", "LowerDistIR"])
def test_reductions_of_shards_are_refused(first):
    mod = reduced_by("sum", "S[0]")
    with pytest.raises(ValueError, match=r"copies of a replicated DTensor; `each` is sharded"):
        getattr(dx.transform, first)()(mod)


@I.ir_module(s_tir=True)
class WithGradientAndInPlace:
    @T.prim_func(private=True, s_tir=True)
    def double(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def shift(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.sblock("y"):
                vi = T.axis.spatial(8, i)
                y[vi] = y[vi] + x[vi]

    @R.function
    def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
        cls = WithGradientAndInPlace
        a = R.call_tir_with_grad(
            cls.double,
            (x,),
            out_ty=R.Tensor((8,), "float32"),
            te_grad_name="g",
            te_grad_kwargs={"k": 1.0},
        )
        b = R.call_tir_inplace(
            cls.shift, (a, y), inplace_indices=[1], out_ty=R.Tensor((8,), "float32")
        )
        return b


def test_kernels_with_a_gradient_and_in_place_keep_what_they_state():
    mod = dx.annotate(WithGradientAndInPlace, MESHES["2"], {"x": ("a",)})
    local = dx.lower(mod, until="LowerGlobalViewToLocalView")
    assert_prints_and_parses(local)
    names = {"relax.dist.call_tir_local_view", "relax.dist.call_tir_inplace_local_view"}
    assert names <= operators(local)
    lowered = dx.transform.LowerDistIR()(local)
    calls = [binding.value for block in lowered["main"].body.blocks for binding in block.bindings]
    assert [call.op.name for call in calls] == [
        "relax.call_tir_with_grad",
        "relax.call_tir_inplace",
    ]
    assert (calls[0].attrs.te_grad_name, list(calls[1].attrs.inplace_indices)) == ("g", [1])


@pytest.mark.parametrize(
    ("given", "placement", "message"),
    [
        ("R", "S[0]", r"has \(4,\) for `A`, argument 0, of which a device has \(8,\), since"),
        ("S[0]", "R", r"has \(4,\) for `B`, result 0, of which a device has \(8,\), since"),
    ],
)
def test_a_kernel_of_other_shapes_is_an_error(given, placement, message):
    mod = small(f'DTensor((8,), "float32", "mesh[0]", "{given}")', placement)
    with pytest.raises(ValueError, match=f"local view `each` in `main`: kernel `scale` {message}"):
        dx.build(mod)
    (violation,) = violations(dx.lower(mod, until="LegalizeRedistribute"), "legalized")
    assert "kernel `scale` has (4,)" in violation


@pytest.mark.parametrize("name", ["PadShards", "LegalizeRedistribute", "LowerDistIR"])
def test_local_views_of_uneven_shards_are_an_error(name):
    mod = small('DTensor((7,), "float32", "mesh[0]", "S[0]")', size=7)
    with pytest.raises(ValueError, match=r"`each` in `main`: .*local_view cannot be padded along"):
        getattr(dx.transform, name)()(mod)


def test_a_local_view_that_nobody_reduces_is_a_violation():
    text = dx.transform.LegalizeRedistribute()(ByHand).script()
    unreduced = tvm.script.from_source(text.replace("return (sums,", "return (parts,"))
    (violation,) = violations(unreduced, "legalized")
    assert violation == "`parts` in `main`: is partial and used without a reduction"
    assert "partial sum over ('x', 'y')" in str(dx.explain(unreduced, "parts"))


# ---- what upstream's passes leave
