"""Numbers of what SplitFused has split, and bytes after every order of TVM's passes."""

import math

import numpy as np
import pytest
from tests.split import layer
from tests.split.programs import PLAN, TP4, AnySize, Linear, Numbered, Smaller, fused
from tests.targets import QUICK

import distir_ext as dx

MESHES = {"megatron": dx.Mesh(tp=4), "dp, megatron": dx.Mesh(dp=2, tp=3), "fsdp": dx.Mesh(dp=2)}
erf = np.vectorize(math.erf)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def run(session_of, mesh, mod, plan, *args):
    exe = dx.build(dx.annotate(mod, mesh, plan), QUICK)
    return session_of(mesh.shape).load(exe)["main"](*args).numpy()


@pytest.mark.parametrize("mesh", [TP4, dx.Mesh(tp=3), dx.Mesh(dp=2, tp=2)], ids=str)
def test_a_kernel_in_two(session_of, mesh):
    x, w, b, r = normal(8, 32), normal(32, 24), normal(24), normal(8, 24)
    y = x @ w + b
    wanted = y * 0.5 * (1 + erf(y / np.sqrt(2))) + r
    got = run(session_of, mesh, fused(Linear), PLAN, x, w, b, r)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_sizes_that_are_symbolic(session_of):
    x, w, r = normal(5, 32), normal(32, 24), normal(5, 24)
    got = run(session_of, TP4, fused(AnySize), PLAN, x, w, r)
    np.testing.assert_allclose(got, r - x @ w, rtol=1e-4, atol=1e-4)


def test_a_kernel_that_is_given_a_number(session_of):
    x, w, y = normal(8, 32), normal(32, 24), normal(7, 2)
    mod = dx.transform.SplitFused()(dx.annotate(Numbered, TP4, PLAN))
    assert len(list(mod.functions)) == 4
    got = run(session_of, TP4, Numbered, PLAN, x, w, y)
    np.testing.assert_allclose(got, x @ w + 7, rtol=1e-4, atol=1e-4)


def test_a_sum_in_float16(session_of):
    x, w, b = (each.astype("float16") for each in (normal(8, 32), normal(32, 24), normal(24)))
    got = run(session_of, TP4, fused(Smaller), PLAN, x, w, b)
    wanted = (x.astype("float32") @ w.astype("float32")) * 0.5 + b
    np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)


def sent(mod, mesh, plan):
    """How many collectives there are, and what a device sends in all of them."""
    found = dx.analysis.collectives(dx.lower(dx.annotate(mod, mesh, plan)))
    return sum(each.count for each in found), sum(
        each.count * each.bytes_per_device for each in found
    )


@pytest.mark.parametrize("plan", MESHES)
@pytest.mark.parametrize("order", layer.ORDERS)
def test_an_order_of_passes_sends_nothing_more(order, plan):
    mesh, mod = MESHES[plan], layer.layer()
    changed = layer.after(layer.ORDERS[order], mod)
    (collectives, size), (wanted_collectives, wanted_size) = (
        sent(each, mesh, layer.PLANS[plan]) for each in (changed, mod)
    )
    assert collectives <= wanted_collectives
    assert size <= wanted_size


@pytest.mark.parametrize("order", layer.ORDERS)
def test_an_order_of_passes_keeps_numbers(session_of, order):
    name, args = "dp, megatron", layer.inputs()
    mesh, plan = MESHES[name], layer.PLANS[name]
    wanted = run(session_of, mesh, layer.layer(), plan, *args)
    got = run(session_of, mesh, layer.after(layer.ORDERS[order], layer.layer()), plan, *args)
    tolerance = 2e-2 if order == "ToMixedPrecision" else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
