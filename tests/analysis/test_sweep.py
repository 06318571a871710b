"""Sweeps against estimates and simulations of each configuration, made by hand."""

from __future__ import annotations

import json

import pytest
import tvm
from tests.analysis.programs import function
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx
from distir_ext.analysis import Sweep, SweepRow, factorizations, sweep
from distir_ext.analysis.sweeps import figures
from distir_ext.structure.sizes import bind_sizes

CLUSTER = dx.Cluster.preset("H100")
TENSOR = {r".*up": (None, "tp"), r".*down": ("tp", None)}
PLANS = {"both": {"x": ("dp", None), **TENSOR}, "data": {"x": ("dp", None)}}


def network():
    """Four layers of two products; the batch is n."""
    shapes = {"x": (tvm.tirx.Var("n", "int64"), 512)}
    for i in range(4):
        shapes |= {f"layers.{i}.up": (512, 2048), f"layers.{i}.down": (2048, 512)}

    def write(emit, x, *weights):
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            hidden = emit(op.nn.relu(emit(op.matmul(x, up))))
            for _ in range(3):
                hidden = emit(op.nn.relu(emit(op.negative(hidden))))
            x = emit(op.add(x, emit(op.matmul(hidden, down))))
        return x

    return function(shapes, write, num_input=1)


def gated_network():
    """Four layers of which the first weight holds gate and up."""
    shapes = {"x": (64, 512)}
    for i in range(4):
        shapes |= {f"layers.{i}.up": (512, 4096), f"layers.{i}.down": (2048, 512)}

    def write(emit, x, *weights):
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            parts = emit(op.split(emit(op.matmul(x, up)), 2, -1))
            gate, value = (emit(relax.TupleGetItem(parts, index)) for index in range(2))
            hidden = emit(op.multiply(emit(op.nn.silu(gate)), value))
            for _ in range(3):
                hidden = emit(op.nn.relu(emit(op.negative(hidden))))
            x = emit(op.add(x, emit(op.matmul(hidden, down))))
        return x

    return function(shapes, write, num_input=1)


@pytest.fixture(scope="module")
def found():
    return swept()


def swept(**options):
    stated = {
        "stages": "pp",
        "microbatches": (1, 2, 3),
        "batch": "n",
        "sizes": {"n": 16},
        **options,
    }
    return sweep(network(), factorizations(4, ("dp", "tp", "pp")), PLANS, CLUSTER, **stated)


@pytest.mark.parametrize("sizes", [(4, 1), (3, 1), (2, 2)], ids=str)
def test_weights_that_hold_several_are_cut_as_annotate_does(sizes):
    mod, mesh = gated_network(), dx.Mesh(sizes, ("tp", "pp"))
    (row,) = sweep(mod, [mesh], {"tensor": TENSOR}, CLUSTER, stages="pp").configurations
    made = dx.transform.OutlineRepeats()(dx.annotate(mod, mesh, TENSOR))
    assert len(made["main"].params) == 1 + 4 * 3
    if sizes[1] > 1:
        made = dx.transform.AssignStages(mesh, "pp")(made)
    kinds = {each.kind for each in dx.analysis.collectives(dx.lower(made))}
    assert kinds - {"send", "recv"} == {"all_reduce"}
    assert row.bytes_sent == dx.analysis.estimate(made, CLUSTER).bytes_sent
    assert row.seconds == pytest.approx(dx.analysis.simulate(made, CLUSTER).seconds, rel=1e-9)


def test_rows_are_what_estimate_and_simulate_say(found):
    assert len(found) == 6 * 2 * 3
    for row in found.configurations:
        if row.microbatches == 3:
            assert row.error == "n = 16 does not divide into 3 microbatches"
            continue
        assert row.error is None
        mod = bind_sizes(network(), {"n": 16 // row.microbatches})
        mod = dx.transform.OutlineRepeats()(mod)
        assert "layer" in {name.name_hint for name in mod.get_global_vars()}
        mod = dx.annotate(mod, row.mesh, PLANS[row.plan])
        if row.mesh.shape[2] > 1:
            mod = dx.transform.AssignStages(row.mesh, "pp")(mod)
        estimate = dx.analysis.estimate(mod, CLUSTER)
        timeline = dx.analysis.simulate(mod, CLUSTER, microbatches=row.microbatches)
        assert row.seconds == pytest.approx(timeline.seconds)
        assert row.throughput == pytest.approx(16 / timeline.seconds)
        assert row.peak_memory == estimate.peak_memory
        assert row.bytes_sent == estimate.bytes_sent * row.microbatches
        assert row.bubble == pytest.approx(timeline.bubble, abs=1e-9)
        assert row.exposed_communication == pytest.approx(timeline.exposed_communication)
        assert row.fits


def test_equal_configurations_are_computed_once(monkeypatch):
    computed = []
    costs = figures.ProgramCosts.__call__

    def counted(*args):
        computed.append(args)
        return costs(*args)

    monkeypatch.setattr(figures.ProgramCosts, "__call__", counted)
    meshes = [dx.Mesh(dp=2), dx.Mesh(dp=2, tp=1), dx.Mesh(other=2)]
    plans = {"a": {"x": ("dp", None)}, "b": {"x": [("dp",), None]}, "c": {"x": ("other", None)}}
    found = sweep(network(), meshes, plans, CLUSTER, sizes={"n": 8})
    assert len(computed) == 1
    assert len({row.seconds for row in found.configurations if row.error is None}) == 1
    errors = [(row.mesh.axis_names[0], row.plan) for row in found.configurations if row.error]
    assert errors == [("dp", "c"), ("dp", "c"), ("other", "a"), ("other", "b")]


@I.ir_module
class Branches:
    @R.function
    def main(
        x: R.Tensor((16, 512), "float32"),
        flag: R.Tensor((), "bool"),
        w: R.Tensor((512, 512), "float32"),
    ):
        R.func_attr({"num_input": 2})
        if flag:
            y = R.matmul(x, w)
            z = R.nn.relu(y)
        else:
            z = R.add(x, x)
        return R.matmul(z, w)


def test_functions_that_cannot_be_planned_apart(monkeypatch):
    whole = []
    planned = figures.ProgramCosts._of_whole_module

    def counted(*args):
        whole.append(args)
        return planned(*args)

    monkeypatch.setattr(figures.ProgramCosts, "_of_whole_module", counted)
    plan = {"x": (None, "tp"), "w": ("tp", None)}
    (row,) = sweep(Branches, [dx.Mesh(tp=2)], {"sum": plan}, CLUSTER).configurations
    assert len(whole) == 1
    mod = dx.annotate(Branches, dx.Mesh(tp=2), plan)
    estimate = dx.analysis.estimate(mod, CLUSTER)
    assert row.peak_memory == estimate.peak_memory
    assert row.bytes_sent == estimate.bytes_sent > 0
    assert row.seconds == pytest.approx(dx.analysis.simulate(mod, CLUSTER).seconds)


def test_memory_limit(found):
    sizes = sorted(row.peak_memory for row in found.configurations if row.error is None)
    limit = sizes[len(sizes) // 2]
    limited = swept(memory_limit=limit)
    fitting = [row for row in limited.configurations if row.fits]
    assert len(fitting) == sum(size <= limit for size in sizes) < len(sizes)
    assert limited.best.seconds == min(row.seconds for row in fitting)
    assert swept(memory_limit=1).best is None
    assert " no " in str(swept(memory_limit=1))


def test_errors_are_rows_counted_by_reason(found):
    text = str(found)
    assert "12 cannot be partitioned" in text
    assert "does not divide into 3 microbatches" in text
    assert "12 cannot be partitioned" in found._repr_html_()
    data = json.loads(found.to_json())["configurations"]
    assert [row["error"] for row in data] == [row["error"] for row in found.rows()]
    assert data[0]["mesh"] == {"dp": 1, "tp": 1, "pp": 4}


@pytest.mark.large
def test_processes_give_the_same(found):
    assert swept(processes=2).rows() == found.rows()


def test_pareto_front_is_that_of_its_definition():
    mesh = dx.Mesh(tp=2)
    points = [(t, m, s) for t in (1, 2, 3) for m in (1, 2, 3) for s in (1, 2) if t + m + s > 5]
    points += [(2, 2, 2), (9, 0, 0)]
    rows = tuple(
        SweepRow(mesh, str(i), 1, t, None, m, fits=m < 3, bytes_sent=s)
        for i, (t, m, s) in enumerate(points)
    )

    def beats(a, b):
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    fitting = [row for row, (_, m, _) in zip(rows, points, strict=True) if m < 3]
    expected = {
        row.plan
        for row in fitting
        if not any(beats(points[int(o.plan)], points[int(row.plan)]) for o in fitting)
    }
    front = Sweep(CLUSTER, 3, rows).pareto()
    assert {row.plan for row in front} == expected
    assert [row.seconds for row in front] == sorted(row.seconds for row in front)


def test_plot(found):
    figure = found.plot()
    labels = {text.get_text() for text in figure.axes[0].texts}
    assert str(found.best) in labels


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": "ppp"}, "no mesh has the axis 'ppp'.*did you mean 'pp'"),
        ({"batch": "m"}, "no symbolic size 'm' for the batch.*they are n"),
        ({"sizes": {"n_": 8}}, "no symbolic size 'n_'; did you mean 'n'"),
        ({"batch": None}, 'batch="n".*they are n'),
        ({"sizes": {}}, "symbolic sizes need values"),
        ({"func": "mian"}, "no function 'mian'; did you mean 'main'"),
        ({"microbatches": (0,)}, "positive integer, not 0"),
        ({"memory_limit": 0}, "must be positive"),
        ({"processes": 0}, "must be at least 1"),
        ({"inputs": ["y"]}, "input 'y' is no parameter of function main, which has x, layers.0.up"),
        ({"inputs": ["layers.0.up"]}, "'x' comes before 'layers.0.up'"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        swept(**options)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"layers.0.upp": ("tp", None)}, "plan 'mine' fits no mesh: pattern 'layers.0.upp' .*"),
        ({"x": ("dpp", None)}, "plan 'mine' fits no mesh: .*'dpp'.*did you mean 'dp'"),
        ({"x": ("dp",)}, "plan 'mine' fits no mesh: .*x"),
    ],
)
def test_a_plan_that_fits_no_mesh_is_one_error(plan, message):
    with pytest.raises(ValueError, match=message) as error:
        sweep(network(), [dx.Mesh(dp=2), dx.Mesh(dp=4)], {"mine": plan}, CLUSTER, sizes={"n": 8})
    assert str(error.value).count("fits no mesh") == 1


def test_what_does_not_fit_a_mesh_is_a_row_in_every_order():
    meshes = [dx.Mesh(dp=2, tp=2), dx.Mesh(dp=1024, tp=1), dx.Mesh(dp=4, tp=1)]
    plans = {"data": {"x": ("dp", None)}, "tensor": TENSOR}  # x has 64 rows
    for order in (meshes, meshes[1:] + meshes[:1], meshes[1:2]):
        rows = sweep(gated_network(), order, plans, CLUSTER).configurations
        assert len(rows) == 2 * len(order)
        failed = {(row.plan, row.mesh.shape): row.error for row in rows if row.error is not None}
        assert list(failed) == [("data", (1024, 1))]
        assert "parameter x" in failed["data", (1024, 1)]


def test_axes_along_which_a_plan_shards_nothing_are_marked():
    found = sweep(
        network(), [dx.Mesh(dp=1, tp=4), dx.Mesh(dp=2, tp=2)], PLANS, CLUSTER, sizes={"n": 8}
    )
    unused = {(row.plan, row.mesh.shape): row.unused_axes for row in found.configurations}
    assert unused == {
        ("both", (1, 4)): (),
        ("both", (2, 2)): (),
        ("data", (1, 4)): ("tp",),
        ("data", (2, 2)): ("tp",),
    }
    assert "dp=1, tp=4 (tp unused)" in str(found)
    assert found.rows()[1]["unused_axes"] == ("tp",)
    data = {"data": PLANS["data"]}
    (staged,) = sweep(
        network(), [dx.Mesh(dp=2, pp=2)], data, CLUSTER, sizes={"n": 8}, stages="pp"
    ).configurations
    assert staged.unused_axes == ()
    named = {"fsdp": "fsdp", "tp": "tp"}
    meshes = [dx.Mesh(dp=1, tp=4), dx.Mesh(dp=2, tp=2)]
    found = sweep(network(), meshes, named, CLUSTER, sizes={"n": 8}, inputs=["x"]).configurations
    assert {(row.plan, row.mesh.shape): row.unused_axes for row in found} == {
        ("fsdp", (1, 4)): ("tp",),
        ("fsdp", (2, 2)): ("tp",),
        ("tp", (1, 4)): (),
        ("tp", (2, 2)): (),
    }


def test_factorizations():
    shapes = [mesh.shape for mesh in factorizations(12, ("a", "b"))]
    assert shapes == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert len(factorizations(64, ("dp", "tp", "pp"))) == 28
    with pytest.raises(ValueError, match="at least 1"):
        factorizations(0, ("a",))
