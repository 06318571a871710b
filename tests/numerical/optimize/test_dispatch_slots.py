"""Numbers of tokens that a mask puts into slots of experts, against token by token."""

from dataclasses import replace

import numpy as np
import pytest
from tests.numerical.optimize.checks import QUICK
from tests.optimize.checks import optimized
from tests.optimize.experts import balanced, one_in_eight
from tests.optimize.slots import Slots

import distir_ext as dx

NAME = "dispatch_slots"
EP8 = dx.Mesh(ep=8)
MESHES = {
    "ep8": (EP8, "ep", "ep"),
    "ep3": (dx.Mesh(ep=3), "ep", "ep"),
    "dp2_ep4": (dx.Mesh(dp=2, ep=4), ("dp", "ep"), "ep"),
    "ep2x2": (dx.Mesh(a=2, b=2), ("a", "b"), ("a", "b")),
}


def plan_of(tokens, experts):
    placed = dict.fromkeys(("up", "down"), (experts, None, None))
    return {**dict.fromkeys(("x", "ids", "scores"), (tokens, None)), **placed}


def dispatched(layer, mesh=EP8, tokens="ep", experts="ep"):
    mod = dx.annotate(layer.module(), mesh, plan_of(tokens, experts))
    return optimized(dx.lower(mod, until="LegalizeRedistribute"), NAME)


CHOICES = {
    "balanced": balanced,
    "imbalanced": one_in_eight,
    "random": lambda layer: (
        lambda rng: rng.integers(0, layer.experts, layer.tokens * layer.choices)
    ),
}


def check(session, layer, mod, choose, tolerance=1e-5):
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds.count("dispatch_slots") == kinds.count("combine_slots") == 1
    assert "reduce_scatter" not in kinds
    inputs = layer.inputs(choose(layer))
    got = session.load(dx.build(mod, QUICK))["main"](*inputs).numpy().astype("float64")
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=tolerance, atol=tolerance)
    return got


@pytest.mark.parametrize("choose", CHOICES)
@pytest.mark.parametrize("name", MESHES)
def test_meshes_and_choices(session_of, name, choose):
    mesh, tokens, experts = MESHES[name]
    layer = Slots(experts=24 if name == "ep3" else 16)
    mod = dispatched(layer, mesh, tokens, experts)
    check(session_of(mesh.shape), layer, mod, CHOICES[choose])


@pytest.mark.parametrize("einsum", [True, False])
@pytest.mark.parametrize("one_hot", [True, False])
@pytest.mark.parametrize("choices", [1, 3])
def test_forms(session_of, choices, one_hot, einsum):
    layer = Slots(choices=choices, one_hot=one_hot, einsum=einsum)
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight)


@pytest.mark.parametrize("capacity", [1, 24, 48])
def test_what_has_no_slot_is_dropped_and_nothing_else(session_of, capacity):
    layer = Slots(capacity=capacity)
    got = check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight)
    # A control: what is dropped shows.
    all_kept = replace(layer, capacity=48).dense(*layer.inputs(one_in_eight(layer)))
    assert (np.abs(got - all_kept).max() > 1e-2) == (capacity < 48)


@pytest.mark.parametrize("sizes", [{"tokens": 21}, {"experts": 10}, {"experts": 9, "tokens": 19}])
@pytest.mark.parametrize("einsum", [True, False])
def test_sizes_that_do_not_divide(session_of, sizes, einsum):
    layer = Slots(**sizes, einsum=einsum)
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight)


def test_float16(session_of):
    layer = Slots(dtype="float16")
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight, tolerance=5e-3)


def test_workers_that_are_processes():
    mesh, layer = dx.Mesh(ep=2), Slots()
    with dx.Session(mesh, workers="processes") as session:
        check(session, layer, dispatched(layer, mesh), one_in_eight)


def test_workers_send_what_has_a_slot_elsewhere():
    """Counted bytes are those of the rows that leave, and one byte per slot of the others."""
    layer = Slots(tokens=64, capacity=8)
    exe = dx.build(dispatched(layer), QUICK)
    with dx.Session(EP8) as session:
        model = session.load(exe)
        for choose in (balanced, one_in_eight):
            inputs = layer.inputs(choose(layer))
            session.reset_statistics()
            model["main"](*inputs).numpy()
            leave = kept(layer, inputs[1])
            for device in range(8):
                sent = session.statistics().of_devices(device).by_kind()
                told = layer.experts * layer.capacity * 7 // 8
                away = leave[device].sum() - leave[device, device]
                back = leave[:, device].sum() - leave[device, device]
                assert sent["dispatch_slots"] == away * layer.width * 4 + told
                assert sent["combine_slots"] == back * layer.width * 4 + told


def kept(layer, ids):
    """Choices that have a slot, by the device of the token and that of the expert."""
    found, taken = np.zeros((8, 8), int), np.zeros(layer.experts, int)
    for choice in range(layer.choices):
        for token in range(layer.tokens):
            expert = ids[token, choice]
            if taken[expert] < layer.capacity:
                found[token * 8 // layer.tokens, expert * 8 // layer.experts] += 1
            taken[expert] += 1
    return found


def test_scores_of_any_sign(session_of):
    layer = Slots(tokens=16, experts=8, capacity=2)
    inputs = layer.inputs(balanced(layer))
    inputs[2] = np.where(np.arange(32).reshape(16, 2) % 3 == 0, 0, -inputs[2]).astype("float32")
    model = session_of(EP8.shape).load(dx.build(dispatched(layer), QUICK))
    got = model["main"](*inputs).numpy()
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)
