"""LowerGlobalViewToLocalView: kernels on DTensors become local views, in any order of passes."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.testing import verify, violations

MESHES = {
    "2": dx.Mesh((2,), ("a",)),
    "4": dx.Mesh((4,), ("a",)),
    "3x2": dx.Mesh((3, 2), ("a", "b")),
}
ORDERS = {
    "upstream": ["LowerGlobalViewToLocalView", "LegalizeRedistribute"],
    "collectives first": [
        "LegalizeRedistribute",
        "OptimizeCollectives",
        "LowerGlobalViewToLocalView",
    ],
    "collectives last": ["LowerGlobalViewToLocalView", "OptimizeCollectives"],
}


PHASE = {"PropagateSharding": "propagated", "LowerDistIR": "lowered"}  # others: legalized


def through(mod, names):
    """The module after passes, each of which leaves what its phase promises."""
    for name in names:
        mod = getattr(dx.transform, name)()(mod)
        verify(mod, PHASE.get(name, "legalized"))
    return mod


def operators(mod):
    """The names of the operators that a module calls."""
    found = set()

    def visit(node):
        if isinstance(node, tvm.ir.Call) and isinstance(node.op, tvm.ir.Op):
            found.add(node.op.name)

    for function in mod.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function.body, visit)
    return found


def assert_prints_and_parses(mod):
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def run(mod, mesh, *arguments, function="main"):
    with dx.Session(mesh) as session:
        result = session.load(dx.build(mod))[function](*arguments)
    return result.numpy() if hasattr(result, "numpy") else [each.numpy() for each in result]


# ---- kernels that PropagateSharding has placed


def perceptron(rows, number):
    """Copies of a perceptron as kernels, with a residual; ``rows`` may be the name of a size."""
    builder = relax.BlockBuilder()
    for i in range(number):
        size = tvm.tirx.Var(rows, "int64") if isinstance(rows, str) else rows
        x, up, down, bias = (
            relax.Var(name, R.Tensor(shape, "float32"))
            for name, shape in {
                "x": (size, 12),
                "up": (12, 24),
                "down": (24, 12),
                "bias": (12,),
            }.items()
        )
        with builder.function(f"f{i}", [x, up, down, bias]):
            with builder.dataflow():
                hidden = builder.emit(op.nn.relu(builder.emit(op.matmul(x, up))))
                summed = builder.emit(op.add(builder.emit(op.matmul(hidden, down)), bias))
                result = builder.emit_output(op.add(x, summed))
            builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def plans_on(mesh):
    """A reduction behind a kernel; a redistribution behind one; shards of rows too on 2 axes."""
    *_, last = mesh.axis_names
    yield {"up": (None, last), "down": (last, None)}
    if len(mesh.axis_names) == 1:
        yield {"x": (last, None), "up": (last, None), "return": (None, last)}
    else:
        yield {"x": ("a", None), "up": (None, "b"), "return": ("b", None)}


def inputs(rows):
    rng = np.random.default_rng(0)
    shapes = [(rows, 12), (12, 24), (24, 12), (12,)]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def wanted(x, up, down, bias):
    return x + np.maximum(x @ up, 0) @ down + bias


# 12 rows divide into shards, 7 do not, and "n" rows are known at run time.
@pytest.mark.parametrize(
    ("mesh", "rows", "size", "order"),
    [
        ("2", "n", 6, "upstream"),
        ("4", 7, 7, "collectives first"),
        ("3x2", 12, 12, "collectives last"),
        ("3x2", 7, 7, "upstream"),
    ],
    ids=str,
)
def test_numbers_are_those_of_the_whole_program(mesh, rows, size, order):
    mesh = MESHES[mesh]
    plans = list(plans_on(mesh))
    mod = perceptron(rows, len(plans))
    for i, plan in enumerate(plans):
        mod = dx.annotate(mod, mesh, plan, func=f"f{i}")
    local = through(dx.transform.PropagateSharding()(mod), ORDERS[order])
    assert dx.phase(local) == "legalized"
    assert "relax.call_tir" not in operators(local)
    assert "relax.dist.call_tir_local_view" in operators(local)
    assert_prints_and_parses(local)
    arguments = inputs(size)
    with dx.Session(mesh) as session:
        model = session.load(dx.build(local))
        for i, plan in enumerate(plans):
            result = model[f"f{i}"](*arguments).numpy()
            np.testing.assert_allclose(result, wanted(*arguments), 1e-4, 1e-4, err_msg=str(plan))


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


@I.ir_module(s_tir=True)
class ByHand:
    I.module_global_infos({"mesh": [R.device_mesh((2, 2), I.Range(0, 4))]})

    @T.prim_func(private=True, s_tir=True)
    def scale(A: T.Buffer((4, 3), "float32"), B: T.Buffer((4, 3), "float32")):
        for i, j in T.grid(4, 3):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * T.float32(2)

    @T.prim_func(private=True, s_tir=True)
    def exponential(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32")):
        for i, j in T.grid(8, 12):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = T.exp(A[vi, vj])

    @T.prim_func(private=True, s_tir=True)
    def total(A: T.Buffer((8, 3), "float32"), B: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, 3):
            with T.sblock("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = T.float32(0)
                B[vi] = B[vi] + A[vi, vk]

    @R.function
    def main(
        x: R.DTensor((8, 6), "float32", "mesh[0]", "S[0], S[1]"),
        w: R.DTensor((6, 12), "float32", "mesh[0]", "R, S[0]"),
    ):
        cls = ByHand
        twice = R.dist.call_tir_local_view(
            cls.scale, (x,), out_ty=R.DTensor((8, 6), "float32", "mesh[0]", "S[0], S[1]")
        )
        product = R.matmul(twice, w)
        grown = R.dist.call_tir(
            cls.exponential, (product,), out_ty=R.DTensor((8, 12), "float32", "mesh[0]", "S[0], R")
        )
        spread = R.dist.redistribute(grown, "mesh[0]", "S[1], S[1]")
        parts = R.dist.call_tir_local_view(
            cls.total, (spread,), out_ty=R.DTensor((8,), "float32", "mesh[0]", "R, R")
        )
        sums = R.ccl.allreduce(parts, op_type="sum", in_group=False)
        return (sums, grown)


@pytest.mark.parametrize(
    "names", [["PropagateSharding", *ORDERS["collectives last"]], ["LowerDistIR"]]
)
def test_local_views_beside_global_kernels(names):
    mod = through(ByHand, names)
    assert_prints_and_parses(mod)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((8, 6), (6, 12)))
    sums, grown = run(mod, 4, x, w)
    np.testing.assert_allclose(grown, np.exp(2 * x @ w), 1e-4)
    np.testing.assert_allclose(sums, np.exp(2 * x @ w).sum(1), 1e-4)


def test_a_local_view_is_in_its_phase():
    assert dx.phase(ByHand) == "propagated"
    marked = tvm.IRModule(ByHand.functions, attrs=ByHand.attrs, global_infos=ByHand.global_infos)
    marked["main"] = ByHand["main"].with_attr("distir.explicit_reductions", True)
    assert dx.phase(marked) == "propagated"  # a redistribution and R.ccl.allreduce are left
    assert dx.phase(dx.transform.LegalizeRedistribute()(ByHand)) == "legalized"


def reduced_by(name, placement="R"):
    @I.ir_module(s_tir=True)
    class Reduced:
        I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

        @T.prim_func(private=True, s_tir=True)
        def scale(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
            for i in range(4):
                with T.sblock("B"):
                    vi = T.axis.spatial(4, i)
                    B[vi] = A[vi] * T.float32(2)

        @R.function
        def main(x: R.DTensor((8,), "float32", "mesh[0]", "S[0]")):
            cls = Reduced
            each = R.dist.call_tir_local_view(
                cls.scale, (x,), out_ty=R.DTensor((4,), "float32", "mesh[0]", placement)
            )
            y = R.ccl.allreduce(each, op_type=name)
            return y

    return Reduced


@pytest.mark.parametrize(
    ("name", "function"),
    [("sum", np.sum), ("prod", np.prod), ("min", np.min), ("max", np.max), ("avg", np.mean)],
)
def test_reductions_of_copies(name, function):
    x = np.arange(1, 9, dtype="float32")
    (result,) = [run(reduced_by(name), 2, x)]
    np.testing.assert_allclose(result, function(2 * x.reshape(2, 4), axis=0), 1e-6)


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


SMALL = """
@I.ir_module(s_tir=True)
class Small:
    I.module_global_infos({"mesh": [R.device_mesh((2,), I.Range(0, 2))]})

    @T.prim_func(private=True, s_tir=True)
    def scale(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.sblock("B"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] * T.float32(2)

    @R.function
    def main(x: R.{given}):
        cls = Small
        y = R.exp(x)
        each = R.dist.call_tir_local_view(
            cls.scale, (y,), out_ty=R.DTensor(({size},), "float32", "mesh[0]", "{placement}")
        )
        z = R.negative(each)
        return z
"""


def small(given, placement="S[0]", size=8):
    text = SMALL.replace("{given}", given).replace("{placement}", placement)
    return tvm.script.from_source(text.replace("{size}", str(size)))


def test_tensors_are_placed_for_the_local_view_that_takes_them():
    mod = small('Tensor((8,), "float32")')
    (param,) = dx.transform.PropagateSharding()(mod)["main"].params
    assert str(param.ty.placement) == '"S[0]"'
    x = np.linspace(0, 1, 8, dtype="float32")
    np.testing.assert_allclose(run(mod, 2, x), -2 * np.exp(x), 1e-6)


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


def test_upstream_s_local_views_and_reductions_are_understood():
    mesh = MESHES["2"]
    (plan, *_) = plans_on(mesh)
    mod = dx.transform.PropagateSharding()(dx.annotate(perceptron(12, 1), mesh, plan, func="f0"))
    mod = relax.distributed.transform.LowerGlobalViewToLocalView()(mod)
    assert "relax.ccl.allreduce" in operators(mod)
    verify(dx.transform.LegalizeRedistribute()(mod), "legalized")
    arguments = inputs(12)
    np.testing.assert_allclose(
        run(mod, mesh, *arguments, function="f0"), wanted(*arguments), 1e-4, 1e-4
    )
