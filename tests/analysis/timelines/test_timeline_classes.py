"""Devices that are simulated together have the times that each has alone."""

import importlib
import random

import numpy as np
import pytest
from tests.analysis.pipelines import placed, staged
from tests.analysis.programs import CPU, GPU, function
from tests.analysis.timelines.device_by_device import begins
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.analysis import simulate


@pytest.fixture
def problems(monkeypatch):
    """Records the problems that are passed to the native simulator."""
    found = []
    simulation = importlib.import_module("distir_ext.analysis.simulate")._Simulation
    ask = simulation._problem
    monkeypatch.setattr(simulation, "_problem", lambda self: found.append(ask(self)) or found[-1])
    return found


def check(problems, mod, cluster, **options):
    timeline = simulate(mod, cluster, **options)
    expected = begins(problems[-1])
    assert list(timeline.devices) == sorted(expected)
    for device in timeline.devices:
        np.testing.assert_allclose(
            timeline.group_of(device).starts, expected[device], rtol=1e-12, atol=1e-18
        )
    return timeline


LINK = dx.Link(latency=1e-6, bandwidth=1e8)


def clusters():
    for device in (CPU, GPU):
        yield dx.Cluster.uniform(LINK, 2e-6, device=device)


def chain_on(all_meshes, seed):
    """Products whose operands lie on random meshes, which may overlap."""
    rng = random.Random(seed)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float32"))
    with builder.function("main", [x, w]):
        values = [x]
        for _ in range(6):
            mesh = rng.choice(all_meshes)
            dims = rng.choice([(None, "a"), ("a", None), (None, None)])
            value = builder.emit(placed(rng.choice(values), mesh, *dims))
            other = builder.emit(placed(w, mesh, *rng.choice([("a", None), (None, None)])))
            values.append(builder.emit(op.matmul(value, other)))
        builder.emit_func_output(relax.Tuple(values[1:]))
    mod = builder.get()
    mod.update_global_info("mesh", [mesh.device_mesh for mesh in all_meshes])
    return mod


@pytest.mark.parametrize("seed", range(6))
def test_meshes_that_overlap(problems, seed):
    all_meshes = [
        dx.Mesh((4,), ("a",), range(4)),
        dx.Mesh((4,), ("a",), range(2, 6)),
        dx.Mesh((2,), ("a",), [1, 6]),
    ]
    mod = chain_on(all_meshes, seed)
    for cluster in clusters():
        check(problems, mod, cluster, microbatches=2)
        check(problems, mod, cluster, microbatches=2, overlap=True)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages(problems, schedule):
    for cluster in clusters():
        found = check(
            problems,
            staged([(0, 3), (1, 5), (2, 1)], size=2),
            cluster,
            microbatches=5,
            schedule=schedule,
        )
        assert len(found.groups) == 3
    interleaved = staged([(0, 3), (1, 5), (0, 1), (1, 1)], size=2, loops=True)
    check(problems, interleaved, next(clusters()), microbatches=5)


def test_devices_of_a_mesh_of_two_axes(problems):
    mesh = dx.Mesh((2, 2, 2), ("a", "b", "c"))
    shapes = {"x": (8, 8), "w": (8, 8), "v": (8, 8)}
    mod = function(shapes, lambda emit, x, w, v: op.matmul(emit(op.matmul(x, w)), v))
    plan = {"x": ("a", "b"), "w": ("b", "c"), "v": ("c", ("a", "b"))}
    slow = dx.Link(latency=1e-6, bandwidth=1e7)
    hosts = dx.Mesh((2, 4), ("host", "device"))
    on_hosts = dx.Cluster(hosts, {"host": slow, "device": LINK}, 2e-6, device=CPU)
    for cluster in (*clusters(), on_hosts):
        found = check(problems, dx.annotate(mod, mesh, plan), cluster)
        assert len(found.groups) == 1
