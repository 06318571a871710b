"""Steps of functions that are planned once for several equal ones, compared with full planning."""

from __future__ import annotations

import dataclasses

import pytest
import tvm
from tests.analysis.programs import function
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

import distir_ext as dx
from distir_ext.analysis.programs import planned_steps
from distir_ext.analysis.programs.planned import lowered_programs
from distir_ext.analysis.programs.planned_program import plan
from distir_ext.analysis.programs.planned_steps import StepsOfModule

CPU = dx.Device("CPU", {"float32": 1e11}, 64e9, 5e10, 1e-5, target="llvm")
CLUSTERS = {
    "H100": dx.Cluster.preset("H100"),
    "CPU": dx.Cluster.uniform(dx.Link(1e-5, 1e10), device=CPU),
}
PLAN = {"x": ("dp", None), r".*up": (None, "tp"), r".*down": ("tp", None)}


def layers(count=8):
    """Layers whose weights have names of their own, with a scale that is a constant."""
    shapes = {"x": (16, 512)}
    for i in range(count):
        shapes |= {f"layers.{i}.up": (512, 1024), f"layers.{i}.down": (1024, 512)}

    def write(emit, x, *weights):
        scale = tvm.relax.const(0.5, "float32")
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            hidden = emit(op.nn.relu(emit(op.matmul(x, up))))
            x = emit(op.add(x, emit(op.multiply(emit(op.matmul(hidden, down)), scale))))
        return x

    return function(shapes, write, num_input=1)


def in_stages(mod, mesh, dims=PLAN):
    return dx.transform.AssignStages(mesh, "pp")(dx.annotate(mod, mesh, dims))


@I.ir_module
class Kernels:
    """A kernel of its own in every layer."""

    @T.prim_func(s_tir=True)
    def twice(x: T.Buffer((16, 64), "float32"), y: T.Buffer((16, 64), "float32")):
        for i, j in T.grid(16, 64):
            with T.sblock("twice"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)

    @R.function
    def main(
        x: R.Tensor((16, 64), "float32"),
        w0: R.Tensor((64, 64), "float32"),
        w1: R.Tensor((64, 64), "float32"),
        w2: R.Tensor((64, 64), "float32"),
        w3: R.Tensor((64, 64), "float32"),
    ):
        R.func_attr({"num_input": 1})
        cls = Kernels
        with R.dataflow():
            a = R.matmul(x, w0)
            b = R.call_tir(cls.twice, (a,), out_ty=R.Tensor((16, 64), "float32"))
            c = R.matmul(b, w1)
            d = R.call_tir(cls.twice, (c,), out_ty=R.Tensor((16, 64), "float32"))
            e = R.matmul(d, w2)
            f = R.call_tir(cls.twice, (e,), out_ty=R.Tensor((16, 64), "float32"))
            g = R.matmul(f, w3)
            h = R.call_tir(cls.twice, (g,), out_ty=R.Tensor((16, 64), "float32"))
            R.output(h)
        return h


def pipelines():
    mesh = dx.Mesh(dp=2, tp=2, pp=4)
    yield "stages", in_stages(layers(), mesh)
    yield "calls of layers", in_stages(dx.transform.OutlineRepeats()(layers()), mesh)
    yield "five stages", in_stages(layers(10), dx.Mesh(tp=2, pp=5, dp=1))


def kernels():
    return in_stages(Kernels, dx.Mesh(dp=2, pp=4), {"x": ("dp", None)})


def arguments_of(mod, cluster):
    lowered = lowered_programs(mod, cluster)
    return lowered.with_runtime_calls, lowered.target, cluster.as_data()


@pytest.mark.parametrize("device", CLUSTERS)
@pytest.mark.parametrize(("name", "mod"), list(pipelines()))
def test_steps_are_those_of_the_module_planned_as_it_is(name, mod, device):
    check(mod, CLUSTERS[device])


def test_kernels_of_the_module():
    check(kernels(), CLUSTERS["CPU"])


def check(mod, cluster):
    arguments = arguments_of(mod, cluster)
    shared = planned_steps.planned_steps(*arguments)
    assert not isinstance(shared, StepsOfModule)
    whole = StepsOfModule(plan(*arguments[:2]), arguments[2])
    for found, wanted in ((shared.kernels, whole.kernels), (shared.operators, whole.operators)):
        assert found.keys() == wanted.keys()
        for key, steps in wanted.items():
            assert dataclasses.asdict(found[key]) == dataclasses.asdict(steps)
    communicating = [
        step
        for steps in shared.kernels.values()
        for step in steps.body.flat()
        if step.kind == "collective"
    ]
    assert all(step.collective for step in communicating)


def test_fewer_functions_are_planned(monkeypatch):
    planned = []

    def counted(mod, target):
        planned.extend(f for f in mod.functions.values() if isinstance(f, tvm.relax.Function))
        return plan(mod, target)

    monkeypatch.setattr(planned_steps, "plan", counted)
    mod = in_stages(layers(), dx.Mesh(dp=2, tp=2, pp=8))
    timeline = dx.analysis.simulate(mod, CLUSTERS["H100"])
    assert len(timeline.stages) == 8
    assert len(planned) == 3  # the first stage, the last one, and those between
    assert len({operation.name for operation in timeline.operations}) > 8 * 4


@pytest.mark.parametrize(
    "mod",
    [dx.annotate(layers(2), dx.Mesh(dp=2, tp=2), PLAN), kernels()],
    ids=["one function", "kernels that TVM does not fuse for GPUs"],
)
def test_modules_that_are_planned_as_they_are(mod):
    arguments = arguments_of(mod, CLUSTERS["H100"])
    assert isinstance(planned_steps.planned_steps(*arguments), StepsOfModule)
