"""Pipelines that are searched: as fast as believed, no slower than others, numbers right."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tvm

import distir_ext as dx
from distir_ext.autosharding.meshes import meshes_of
from distir_ext.autosharding.search import Program
from distir_ext.autosharding.slices import Slices

from .programs import arguments, decoder

DEVICE = dx.Device("slow", {"float32": 1e11}, 16e9, 2e10, 0, target="llvm")
SLOW = dx.Link(latency=20e-6, bandwidth=2e8)
FAST = dx.Link(latency=1e-6, bandwidth=2e10)
CLUSTER = dx.Cluster.of_hosts(2, 2, FAST, SLOW, launch=1e-6, device=DEVICE)
BATCH = 8


@pytest.fixture(scope="module")
def model():
    return decoder(layers=4, hidden=128, batch=tvm.tirx.Var("n", "int64"), sequence=16)


def test_meshes_of_equal_links_occur_once():
    """All devices alike: by sizes; of hosts, the order counts."""
    assert [mesh.shape for mesh in meshes_of(16)] == [
        (16,),
        (2, 8),
        (4, 4),
        (2, 2, 4),
    ]
    hosts = dx.Cluster.of_hosts(2, 8)
    assert [mesh.shape for mesh in meshes_of(16, hosts, 2)] == [(16,), (2, 8), (4, 4), (8, 2)]
    assert meshes_of(8, hosts) == meshes_of(8)
    assert [mesh.shape for mesh in meshes_of(1)] == [(1,)]


def test_layers_are_recognised(model):
    """Ranges of equal layers are equal programs; parts have all work, and live values are few."""
    slices = Slices(Program(model, "main", {"n": BATCH}, CLUSTER))
    assert len(slices.cuts) == 5
    parts = [slices.part(begin, begin + 1).function for begin in range(4)]
    for left, right in itertools.pairwise(parts[1:3]):
        tvm.ir.assert_structural_equal(left, right, map_free_vars=True)
    assert all(slices.live_bytes(group) == BATCH * 16 * 128 * 4 for group in (1, 2, 3))
    assert max(slices.seconds) == pytest.approx(min(slices.seconds))


@pytest.mark.large
def test_stages_win_where_memory_is_scarce_and_links_are_slow(model):
    """Whole copies do not fit, and collectives between hosts take long: each host is a stage."""
    options = {"cluster": CLUSTER, "devices": 4, "batch": "n", "sizes": {"n": BATCH}}
    free = dx.autoshard(model, **options)
    assert not free.stages
    assert free.microbatches == 1
    limit = 0.48 * free.memory
    found = dx.autoshard(model, **options, memory_limit=limit, microbatches=[1, 4])
    assert [stage.mesh.device_ids for stage in found.stages] == [(0, 1), (2, 3)]
    assert found.microbatches == 4
    assert found.mesh.axis_names[0] == "pp"
    assert found.memory <= limit
    assert found.searched_seconds == pytest.approx(found.seconds, rel=0.03)
    assert all(found.seconds <= other.seconds for other in found.others)
    simulated = dx.analysis.simulate(found.mod, CLUSTER, sizes={"n": 2}, microbatches=4)
    assert simulated.seconds == found.seconds
    for part in ("stages", "microbatches", "runners-up", found.stages[1].begins):
        assert part in str(found), part

    values = arguments(decoder(layers=4, hidden=128, batch=BATCH, sequence=16))
    with dx.Session(1) as session:
        whole = session.load(dx.build(model, devices=1), params=values[1:])
        expected = np.asarray(whole["main"](values[0]))
    with dx.Session(found.mesh) as session:
        loaded = session.load(dx.build(found.mod), params=values[1:])
        pipeline = loaded["main"].pipeline(microbatches=4)
        np.testing.assert_allclose(np.asarray(pipeline(values[0])), expected, rtol=1e-5, atol=1e-6)


def test_the_least_memory_is_named(model):
    """Of all meshes and microbatches."""
    with pytest.raises(ValueError, match=r"at least .* bytes.* in 8 microbatches"):
        dx.autoshard(
            model, cluster=CLUSTER, devices=4, batch="n", sizes={"n": BATCH}, memory_limit=1e4
        )


def test_stages_begin_where_they_are_told(model):
    """One error for names that are none, are too few, or stand in another order."""
    mesh = dx.Mesh(pp=3)
    mod = dx.annotate(decoder(layers=2), mesh, {})
    names = [str(each.var.name) for each in mod["main"].body.blocks[0].bindings]
    staged = dx.transform.AssignStages(mesh, "pp", begins=[names[4], names[9]])(mod)
    assert len(dx.lower(staged).functions) >= 3
    for begins, text in (
        (["none", names[9]], "binds no `none`"),
        ([names[9]], "3 stages have 2 beginnings"),
        ([names[9], names[4]], "in program order"),
    ):
        with pytest.raises(ValueError, match=text):
            dx.transform.AssignStages(mesh, "pp", begins=begins)(mod)
