"""Results of every class that has a view, from one program with hostile names only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.hostile_names.entities import everywhere, module
from tests.targets import QUICK

import distir_ext as dx
from distir_ext.analysis.shardings import TensorShardings


def _of_runs(mesh: dx.Mesh, exe: Any, main: str, estimate: Any) -> Iterator[Any]:
    """Objects and measurements of a session."""
    x, w = np.ones((16, 8), np.float32), np.ones((8, 16), np.float32)
    with dx.Session(mesh, workers="threads") as session:
        model = session.load(exe)
        function = model[main]
        yield from (session, model, function)
        found = function(x, w)
        yield from (found, found.sharding)
        profile = function.profile(x, w, repeat=1, warmup=0)
        yield from (profile, dx.analysis.compare(estimate, profile), session.statistics())


def results(name: str) -> Iterator[Any]:
    """All of them, with ``name`` in the names of functions, parameters, axes, devices and plans."""
    main = f"main{name}"
    mod = everywhere(name)
    mesh = dx.Mesh((2, 2), ("dp", name))
    link = dx.Link(latency=1e-6, bandwidth=1e9)
    device = dx.Device(name, {"float32": 1e12}, memory=1e10, bandwidth=1e11, launch=5e-6)
    cluster = dx.Cluster(mesh, {"dp": link, name: link}, device=device)
    yield from (mesh, device, cluster, dx.Cluster.uniform(link, device=device))
    yield from (dx.summary(mod), dx.visualize(mod, f"x{name}"), dx.analysis.graph(mod, func=main))
    with dx.pass_reports() as reports:
        lowered = dx.lower(mod)
    yield from (reports[0], dx.pipelines.load({"passes": {"PadShards": {}}}))
    yield from (TensorShardings(dx.analysis.shardings(mod)), dx.analysis.collectives(lowered))
    estimate = dx.analysis.estimate(lowered, cluster)
    yield from (estimate, dx.analysis.diff(estimate, estimate), dx.analysis.reshards(mod, cluster))
    yield dx.analysis.simulate(lowered, cluster, function=main)
    yield dx.analysis.redistribution(mesh, (name, None), (None, name), (4, 4), cluster=cluster)
    plans = {name: {"(?s).*": (None, name)}}
    yield dx.analysis.sweep(module(main=main), [mesh], plans, cluster, func=main)
    yield dx.autoshard(module(main=main), mesh, cluster, func=main)
    weights = module(main=main, w=name)
    yield dx.hints.apply(weights, dx.hints.DistConfig(world_size=2), func=main, inputs=["x"]).report
    yield dx.stages.simulate(dx.stages.schedule("gpipe", 2, 3))
    exe = dx.build(mod, target=QUICK)
    yield from _of_runs(mesh, exe, main, estimate)
