"""Numbers of what SplitFused has split, and bytes after every order of TVM's passes."""

import math

import numpy as np
import pytest
from tests.targets import QUICK
from tests.unfuse import layer
from tests.unfuse.programs import PLAN, TP4, AnySize, Linear, Numbered, Smaller, fused

import distir_ext as dx

# By plan: whether keys are grouped, and the devices. 12 heads, 4 of keys, over 5 devices do not
# divide, nor do 4 over 3; 6 devices share the heads of keys.
CASES = {
    "megatron": (False, dx.Mesh(tp=4)),
    "megatron, uneven": (False, dx.Mesh(tp=5)),
    "megatron, grouped": (True, dx.Mesh(tp=6)),
    "megatron, grouped, uneven": (True, dx.Mesh(tp=3)),
    "dp, megatron": (False, dx.Mesh(dp=2, tp=3)),
    "dp, megatron, grouped": (True, dx.Mesh(dp=2, tp=5)),
    "fsdp": (False, dx.Mesh(dp=2)),
}
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
    """Returns the number of collectives, and the bytes that a device sends in them."""
    found = dx.analysis.collectives(dx.lower(dx.annotate(mod, mesh, plan)))
    return sum(each.count for each in found), sum(
        each.count * each.bytes_per_device for each in found
    )


def plan_of(case):
    """The longest name of a plan that a case begins with."""
    return layer.PLANS[max((name for name in layer.PLANS if case.startswith(name)), key=len)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("order", layer.ORDERS)
def test_an_order_of_passes_sends_nothing_more(order, case):
    is_grouped, mesh = CASES[case]
    mod = layer.layer(is_grouped=is_grouped)
    changed = layer.after(layer.ORDERS[order], mod)
    (collectives, size), (wanted_collectives, wanted_size) = (
        sent(each, mesh, plan_of(case)) for each in (changed, mod)
    )
    assert collectives <= wanted_collectives
    assert size <= wanted_size


@pytest.mark.parametrize("order", layer.ORDERS)
def test_an_order_of_passes_keeps_numbers(session_of, order):
    """Heads of keys and of queries in shards of different sizes, where the order has kernels."""
    mesh, plan, args = dx.Mesh(dp=2, tp=3), layer.PLANS["dp, megatron"], layer.inputs(True)
    mod = layer.layer(is_grouped=True)
    wanted = run(session_of, mesh, mod, plan, *args)
    got = run(session_of, mesh, layer.after(layer.ORDERS[order], mod), plan, *args)
    tolerance = 2e-2 if "ToMixedPrecision" in order else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
