"""Numbers of pairs of tokens and experts whose weight is not zero, against all pairs."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tests.numerical.optimize.checks import QUICK
from tests.optimize.checks import optimized
from tests.optimize.dense_experts import FORMS, DenseExperts
from tvm import tirx

import distir_ext as dx

NAME = "dispatch_weighted"
EP8 = dx.Mesh(ep=8)
MESHES = {
    "ep8": (EP8, "ep", "ep"),
    "ep3": (dx.Mesh(ep=3), "ep", "ep"),
    "dp2_ep4": (dx.Mesh(dp=2, ep=4), ("dp", "ep"), "ep"),
    "ep2x2": (dx.Mesh(a=2, b=2), ("a", "b"), ("a", "b")),
    "ep2_dp3": (dx.Mesh(ep=2, dp=3), ("ep", "dp"), "ep"),
    "copies": (EP8, None, "ep"),
    "copies_dp2": (dx.Mesh(dp=2, ep=4), "dp", "ep"),
}


def dispatched(layer, mesh=EP8, tokens="ep", experts="ep"):
    mod = dx.annotate(layer.module(), mesh, layer.plan(tokens, experts))
    return optimized(dx.lower(mod, until="LegalizeRedistribute"), NAME)


def check(session, layer, mod, choose, tolerance=1e-5):
    assert dx.testing.violations(mod, "legalized") == []
    text = mod.script()
    assert text.count("R.dist.grouped_matmul(") == 3
    assert text.count("R.dist.place_pairs(") == 1
    inputs = layer.inputs(choose)
    got = session.load(dx.build(mod, QUICK))["main"](*inputs).numpy().astype("float64")
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=tolerance, atol=tolerance)
    return got


def random(layer):
    """Each token's choices are different experts."""
    return lambda rng: np.stack(
        [rng.permutation(layer.experts)[: layer.choices] for _ in range(layer.tokens)]
    )


def one_in_eight(layer):
    """Of eight tokens, seven choose the first expert, and the others what comes."""

    def choose(rng):
        ids = random(layer)(rng)
        ids[:, 0] = np.where(np.arange(layer.tokens) % 8 < 7, 0, ids[:, 0])
        ids[:, 1:] = np.where(ids[:, 1:] == ids[:, :1], layer.experts - 1, ids[:, 1:])
        return ids

    return choose


@pytest.mark.parametrize("choose", [random, one_in_eight])
@pytest.mark.parametrize("name", MESHES)
def test_meshes_and_choices(session_of, name, choose):
    mesh, tokens, experts = MESHES[name]
    layer = DenseExperts(experts=24 if name == "ep3" else 16)
    mod = dispatched(layer, mesh, tokens, experts)
    check(session_of(mesh.shape), layer, mod, choose(layer))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", ["scatter", "one_hot"])
def test_forms(session_of, weights, form):
    layer = DenseExperts(form=form, weights=weights)
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight(layer))


@pytest.mark.parametrize("name", ["ep8", "dp2_ep4", "copies"])
@pytest.mark.parametrize("form", ["stacked", "einsum", "columns", "inside"])
def test_a_number_of_tokens_that_is_symbolic(session_of, form, name):
    mesh, tokens, experts = MESHES[name]
    layer = DenseExperts(tokens=tirx.Var("n", "int64"), form=form)
    mod = dispatched(layer, mesh, tokens, experts)
    assert mod.script().count("R.dist.grouped_matmul(") == 3
    model = session_of(mesh.shape).load(dx.build(mod, QUICK))
    for number in (8, 48):
        known = replace(layer, tokens=number)
        inputs = known.inputs(one_in_eight(known))
        got = model["main"](*inputs).numpy()
        np.testing.assert_allclose(got, known.dense(*inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [{"tokens": 21}, {"experts": 10}, {"experts": 9, "tokens": 21}])
def test_sizes_that_do_not_divide(session_of, sizes):
    layer = DenseExperts(**sizes)
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight(layer))


def test_the_inside_of_experts_may_be_sharded(session_of):
    mesh = dx.Mesh(ep=4, tp=2)
    for form in ("stacked", "repeated"):
        layer = DenseExperts(form=form)
        plan = layer.plan("ep", "ep", "tp")
        mod = dx.lower(dx.annotate(layer.module(), mesh, plan), until="LegalizeRedistribute")
        check(session_of(mesh.shape), layer, optimized(mod), one_in_eight(layer))


def test_float16(session_of):
    layer = DenseExperts(dtype="float16")
    check(session_of(EP8.shape), layer, dispatched(layer), one_in_eight(layer), tolerance=2e-3)


def test_all_weights_count(session_of):
    """Every expert may have every token, whatever the program looks like."""
    layer = DenseExperts(weights="added")
    check(session_of(EP8.shape), layer, dispatched(layer), random(layer))


def test_workers_that_are_processes():
    mesh, layer = dx.Mesh(ep=2), DenseExperts()
    with dx.Session(mesh, workers="processes") as session:
        check(session, layer, dispatched(layer, mesh), one_in_eight(layer))


def test_workers_send_the_rows_of_weights_that_are_not_zero():
    """A row goes once to a device, however many of its experts a token has, and comes back once."""
    layer = DenseExperts(tokens=64)
    exe = dx.build(dispatched(layer), QUICK)
    with dx.Session(EP8) as session:
        model = session.load(exe)
        for choose in (random, one_in_eight):
            inputs = layer.inputs(choose(layer))
            session.reset_statistics()
            model["main"](*inputs).numpy()
            has = np.zeros((64, 8), bool)
            np.put_along_axis(has, inputs[1] * 8 // layer.experts, True, axis=1)
            has = has.reshape(8, 8, 8).sum(axis=1)  # rows by home and device of the experts
            for device in range(8):
                sent = session.statistics().of_devices(device).by_kind()
                told = 7 * 8
                there = has[device].sum() - has[device, device]
                back = has[:, device].sum() - has[device, device]
                assert sent["gather_rows"] == there * layer.width * 4 + told
                assert sent["scatter_rows"] == back * layer.width * 4 + told


def test_wrong_pairs_show(session_of):
    """A control: rows that are added to their neighbours' are not what dense gives."""
    layer = DenseExperts()
    inputs = layer.inputs(one_in_eight(layer))
    usual = tvm_ffi.get_global_func("distir.runtime.place_pairs")

    def shifted(rows, weights, out):
        wrong = np.roll(np.from_dlpack(weights), 1, axis=0).copy()
        usual(rows, tvm_ffi.from_dlpack(wrong), out)

    tvm_ffi.register_global_func("tests.shifted_place_pairs", shifted, override=True)
    text = dx.lower(dispatched(layer)).script()
    text = text.replace("distir.runtime.place_pairs", "tests.shifted_place_pairs")
    exe = dx.build(tvm.script.from_source(text), QUICK)
    got = session_of(EP8.shape).load(exe)["main"](*inputs).numpy()
    assert np.abs(got - layer.dense(*inputs)).max() > 1e-2


def test_what_is_skipped_is_not_computed(session_of):
    """0 times infinity is not a number; here it is nothing."""
    layer = DenseExperts()
    inputs = layer.inputs(lambda _: np.tile([0, 1], (layer.tokens, 1)))
    inputs[5][15] = np.inf  # `down` of an expert that nobody chooses
    got = session_of(EP8.shape).load(dx.build(dispatched(layer), QUICK))["main"](*inputs).numpy()
    inputs[5][15] = 0
    np.testing.assert_allclose(got, layer.dense(*inputs), rtol=1e-5, atol=1e-5)
