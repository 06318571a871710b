"""Sampled configurations of stacks with the shapes of Llama, made by hand."""

from __future__ import annotations

import pytest
from tests.benchmark_modules import benchmark_module

import distir_ext as dx
from distir_ext.analysis import sweep
from distir_ext.analysis.sweeps import figures
from distir_ext.structure.sizes import bind_sizes

BATCH = 64
# dp, tp, pp, microbatches, plan, and the cluster.
SAMPLE = [
    ((8, 8, 1), 4, "tensor", "H100"),
    ((2, 4, 4), 8, "tensor", "H100"),
    ((4, 2, 4), 16, "weights over dp", "H100"),
    ((1, 4, 2), 2, "sequence", "H100"),
    ((2, 3, 2), 1, "feed forward", "A100"),  # 3 divides no weight
    ((2, 2, 2), 4, "attention", "CPU"),
    ((1, 1, 4), 64, "tensor", "CPU"),
]


@pytest.fixture(scope="module")
def benchmark():
    with benchmark_module("sweep") as module:
        yield module


def cluster_of(name):
    if name != "CPU":
        return dx.Cluster.preset(name, hosts=8)
    device = dx.Device("CPU", {"float32": 1e11}, 64e9, 5e10, 1e-5, target="llvm")
    return dx.Cluster.uniform(dx.Link(1e-5, 1e10), device=device)


@pytest.mark.parametrize(("shape", "microbatches", "plan", "device"), SAMPLE)
def test_a_configuration_is_what_estimate_and_simulate_say(
    shape, microbatches, plan, device, benchmark, sample, monkeypatch
):
    layers = sample(4, 80, 80) if device != "CPU" else 4
    mod, mesh = benchmark.model("70B", layers), dx.Mesh(shape, ("dp", "tp", "pp"))
    cluster = cluster_of(device)
    with monkeypatch.context() as patched:  # so that the rows come from equal functions

        def refuse(*arguments):
            raise AssertionError("planned as a whole")

        patched.setattr(figures.ProgramCosts, "_of_whole_module", refuse)
        (row,) = sweep(
            mod,
            [mesh],
            {plan: benchmark.PLANS[plan]},
            cluster,
            stages="pp",
            microbatches=[microbatches],
            batch="n",
            sizes={"n": BATCH},
        ).configurations
    assert row.error is None
    bound = bind_sizes(mod, {"n": BATCH // microbatches})
    made = dx.annotate(dx.transform.OutlineRepeats()(bound), mesh, benchmark.PLANS[plan])
    if shape[2] > 1:
        made = dx.transform.AssignStages(mesh, "pp")(made)
    estimate = dx.analysis.estimate(made, cluster)
    timeline = dx.analysis.simulate(made, cluster, microbatches=microbatches)
    assert row.seconds == pytest.approx(timeline.seconds, rel=1e-11)
    assert row.peak_memory == estimate.peak_memory
    assert row.bytes_sent == estimate.bytes_sent * microbatches
    assert row.bubble == pytest.approx(timeline.bubble, abs=1e-9)
    assert row.exposed_communication == pytest.approx(timeline.exposed_communication, rel=1e-9)
