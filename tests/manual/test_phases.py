"""Regions in functions, branches, pipelines and analyses."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tests.manual.programs import arrays, close, ran, round_trip, written
from tests.targets import QUICK
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

op = relax.op
MESH = dx.Mesh(dp=2, tp=2)


def summed(fn=lambda x: x):
    """The sum of both halves of the columns."""
    return dx.manual(
        lambda x: dx.collectives.psum(fn(x), "tp"), MESH, [(None, "tp")], None, axes=["tp"]
    )


def with_helper(write_helper, write_main, shape, helper_shape):
    builder = relax.BlockBuilder()
    part = relax.Var("part", relax.TensorType(helper_shape, "float32"))
    with builder.function("helper", [part], private=True):
        with builder.dataflow():
            result = builder.emit_output(write_helper(part))
        builder.emit_func_output(result)
    (helper,) = builder.get().get_global_vars()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(write_main(builder, helper, x))
        builder.emit_func_output(result)
    return builder.finalize()


def test_a_region_calls_a_function(session_of):
    def main(builder, helper, x):
        inside = summed(lambda part: builder.emit(relax.Call(helper, [part])))(x)
        whole = builder.emit(relax.Call(helper, [op.strided_slice(x, [1], [0], [6])]))
        return op.add(inside, whole)

    mod = with_helper(lambda part: op.exp(op.add(part, part)), main, (6, 12), (6, 6))
    mod = dx.annotate(mod, MESH, {"x": ("dp", None)}, func="main")
    (x,) = arrays((6, 12))
    expected = np.exp(2 * x).reshape(6, 2, 6).sum(1) + np.exp(2 * x[:, :6])
    close(ran(session_of, mod, MESH, x), expected)


def test_a_function_with_a_region_is_called_twice(session_of):
    def main(builder, helper, x):
        once = builder.emit(relax.Call(helper, [x]))
        constrained = builder.emit(dx.constrain(builder.emit(op.exp(x)), MESH, (None, "dp")))
        return op.add(once, builder.emit(relax.Call(helper, [constrained])))

    mod = with_helper(summed(op.sin), main, (6, 12), (6, 12))
    mod = dx.annotate(mod, MESH, {"x": ("dp", None)}, func="main")
    (x,) = arrays((6, 12))
    expected = (np.sin(x) + np.sin(np.exp(x))).reshape(6, 2, 6).sum(1)
    close(ran(session_of, mod, MESH, x), expected)


def test_a_region_in_tvmscript(session_of):
    region = summed(R.exp)

    @I.ir_module
    class Written:
        @R.function
        def main(x: R.Tensor((6, 12), "float32")) -> R.Tensor((6, 6), "float32"):
            y = region(x)
            return y

    (x,) = arrays((6, 12))
    close(ran(session_of, Written, MESH, x), np.exp(x).reshape(6, 2, 6).sum(1))


def test_a_region_in_a_branch(session_of):
    region = summed()
    other = summed(R.exp)

    @I.ir_module
    class Branching:
        @R.function
        def main(x: R.Tensor((6, 12), "float32"), condition: R.Tensor((), "bool")) -> R.Tensor(
            (6, 6), "float32"
        ):
            if condition:  # noqa: SIM108
                y = region(x)
            else:
                y = other(x)
            return y

    (x,) = arrays((6, 12))
    parts = x.reshape(6, 2, 6)
    close(ran(session_of, Branching, MESH, x, np.array(True)), parts.sum(1))
    close(ran(session_of, Branching, MESH, x, np.array(False)), np.exp(parts).sum(1))


def test_stages_by_hand_have_regions_on_their_meshes(session_of):
    first, second = dx.Mesh(tp=2), dx.Mesh((2,), ("tp",), range(2, 4))

    def region(mesh, fn):
        return dx.manual(
            lambda x: dx.collectives.psum(fn(x), "tp"), mesh, [(None, "tp")], None, axes=["tp"]
        )

    def of(x):
        hidden = region(first, op.exp)(x)
        return region(second, op.sin)(hidden)

    mod = written(of, x=(6, 12))
    lowered = dx.lower(mod)
    assert sorted(var.name_hint for var in lowered.get_global_vars()) == [
        "main_stage0",
        "main_stage1",
    ]
    (x,) = arrays((6, 12))
    hidden = np.exp(x).reshape(6, 2, 6).sum(1)
    model = session_of((4,)).load(dx.build(mod, target=QUICK))
    close(model["main"](x).numpy(), np.sin(hidden).reshape(6, 2, 3).sum(1))


def test_a_collective_counts_by_the_names_of_its_axes():
    mod = dx.annotate(written(summed(), x=(64, 128)), MESH, {"x": ("dp", None)}, func="main")
    cluster = dx.Cluster.uniform(dx.NVLINK, device=dx.DEVICES["H100"])
    estimate = dx.analysis.estimate(mod, cluster)
    (program,) = estimate.programs
    (collective,) = program.collectives
    assert (collective.kind, collective.axes) == ("all_reduce", ("tp",))
    timeline = dx.analysis.simulate(mod, cluster)
    assert timeline.seconds > 0


def test_the_chain_of_an_axis_crosses_the_border():
    mod = dx.annotate(written(summed(), x=(6, 12)), MESH, {"x": ("dp", None)}, func="main")
    mod = dx.transform.PropagateSharding()(mod)
    text = str(dx.explain(mod, "lv1"))
    assert "in `main` dimension 0 through enter_manual" in text
    assert "from `x` in `main` dimension 0" in text
    assert "stated by" in text
    unstated = dx.transform.PropagateSharding()(written(summed(), x=(6, 12)))
    assert "enter_manual" in str(dx.explain(unstated, "x"))


def test_reductions_inside_are_not_taken_for_equal_along_manual_axes(session_of):
    """An all-reduce over dp and a slice over dp become a reduce-scatter, per part along tp."""

    def part(x, w):
        product = dx.constrain(op.matmul(x, w), MESH, ("dp", None))
        return dx.collectives.psum(op.nn.relu(product), "tp")

    region = dx.manual(part, MESH, [None, (None, "tp")], None, axes=["tp"])
    mod = written(region, x=(8, 16), w=(16, 12))
    mod = dx.annotate(mod, MESH, {"x": (None, "dp"), "w": ("dp", None)}, func="main")
    groups = dx.lower(mod)["main"].script()
    assert "R.ccl.reduce_scatter" in groups
    x, w = arrays((8, 16), (16, 12))
    expected = np.maximum(x @ w, 0).reshape(8, 2, 6).sum(1)
    close(ran(session_of, mod, MESH, x, w), expected)


@pytest.mark.parametrize("phase", ["propagated", "legalized", "lowered"])
def test_modules_parse_in_every_phase(phase):
    mod = dx.annotate(written(summed(), x=(6, 12)), MESH, {"x": ("dp", None)}, func="main")
    round_trip(dx.lower(mod, until=phase))


def test_names_of_operators_print_as_they_are_called():
    text = written(summed(), x=(6, 12)).script()
    for name in ("enter_manual", "leave_manual", "manual_all_reduce"):
        assert f"R.dist.{name}(" in text
        assert tvm.ir.Op.get(f"relax.dist.{name}")
