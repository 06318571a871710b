"""Exports of recursive functions and branches to JAX as loops and conditionals; other recursion."""

import re

import numpy as np
import pytest
import tvm
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax

X = np.linspace(-1, 2, 32, dtype="float32").reshape(4, 8)


def exported(mod, **axes):
    mesh = dx.Mesh(**(axes or {"a": 1}))
    plan = {"x": (None, mesh.axis_names[0])}
    return dx.interop.jax.to_exported(dx.annotate(mod, mesh, plan))


def results(mod, *arguments):
    """Runs the exported program on one device with these arguments."""
    return [np.asarray(each) for each in jax.tree.leaves(jax.jit(exported(mod).call)(*arguments))]


@I.ir_module
class TailCalls:
    """Doubles until the sum is 300 or more, by two functions, one of which ends in two ways."""

    @R.function(private=True)
    def start(n: R.Tensor((), "int32"), x: R.Tensor((4, 8), "float32")) -> R.Tuple(
        R.Tensor((), "int32"), R.Tensor((4, 8), "float32")
    ):
        cls = TailCalls
        total = R.sum(x)
        if R.less(total, R.const(300.0, "float32")):  # noqa: SIM108
            r = cls.on(x, n)
        else:
            r = (n, x)
        return r

    @R.function(private=True)
    def on(x: R.Tensor((4, 8), "float32"), n: R.Tensor((), "int32")) -> R.Tuple(
        R.Tensor((), "int32"), R.Tensor((4, 8), "float32")
    ):
        cls = TailCalls
        more = R.add(n, R.const(1, "int32"))
        if R.equal(n, R.const(3, "int32")):
            added = R.add(x, R.const(1.0, "float32"))
            r = cls.start(more, added)
        else:
            doubled = R.multiply(x, R.const(2.0, "float32"))
            r = cls.start(more, doubled)
        return r

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"),
    ) -> R.Tuple(R.Tensor((), "int32"), R.Tensor((4, 8), "float32")):
        cls = TailCalls
        r = cls.start(R.const(0, "int32"), x)
        return r


def test_functions_whose_last_step_is_a_call_of_themselves():
    n, x = 0, X
    while x.sum() < 300:
        x = x + 1 if n == 3 else x * 2
        n += 1
    assert n > 4
    found = results(TailCalls, X)
    assert found[0] == n
    np.testing.assert_allclose(found[1], x, rtol=1e-6)


def test_collectives_stay_in_the_loop():
    text = exported(TailCalls, a=4).mlir_module()
    before, _, loop = text.partition("stablehlo.while")
    assert "stablehlo.all_reduce" not in before
    assert len(re.findall("stablehlo.while", text)) == 1
    assert len(re.findall("stablehlo.all_reduce", loop)) == 1


def halves(depth=2, less="1", second="half", limit="n", going=True):
    """A program that adds 1 up to 2**depth times, as long as the sum is below ``limit``."""
    again = f"r = cls.run({second}, middle, n)"
    condition, taken, other = (
        (f"R.less(total, {limit})", again, "r = middle")
        if going
        else (f"R.greater_equal(total, {limit})", "r = middle", again)
    )
    source = f"""
@I.ir_module
class Module:
    @R.function(private=True)
    def run(
        depth: R.Tensor((), "int32"), x: R.Tensor((4, 8), "float32"), n: R.Tensor((), "float32")
    ) -> R.Tensor((4, 8), "float32"):
        cls = Module
        if R.equal(depth, R.const(0, "int32")):
            r = R.add(x, R.const(1.0, "float32"))
        else:
            half = R.subtract(depth, R.const({less}, "int32"))
            middle = cls.run(half, x, n)
            total = R.sum(middle)
            if {condition}:
                {taken}
            else:
                {other}
        return r

    @R.function
    def main(
        x: R.Tensor((4, 8), "float32"), n: R.Tensor((), "float32")
    ) -> R.Tensor((4, 8), "float32"):
        cls = Module
        r = cls.run(R.const({depth}, "int32"), x, n)
        return r
"""
    return tvm.script.from_source(source)


@pytest.mark.parametrize(
    ("depth", "limit", "count"), [(0, 1e4, 1), (2, 1e4, 4), (3, 1e4, 8), (3, 100.0, 3), (3, 0, 1)]
)
@pytest.mark.parametrize("going", [True, False])
def test_two_calls_of_itself_are_a_loop_with_a_bound(depth, limit, count, going):
    (found,) = results(halves(depth, going=going), X, np.float32(limit))
    np.testing.assert_allclose(found, X + count, rtol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"less": "2"},
        {"second": "depth"},
        {"limit": "R.sum(x)"},
    ],
)
def test_recursion_that_is_no_loop_is_refused(changes):
    mod = halves(**changes)
    with pytest.raises(ValueError, match="run, which calls itself in another way than a loop"):
        exported(mod)


def by_way_of_relax(function, *arguments, unroll_limit):
    mod = dx.interop.jax.from_exported(
        jax.jit(function).lower(*arguments), unroll_limit=unroll_limit
    )
    return results(mod, *arguments)


def test_loops_of_jax_come_back():
    def function(x, n):
        def row(carry, values):
            return carry + values.sum(), lax.fori_loop(0, n, lambda i, v: v * i + carry, values)

        total, rows = lax.scan(row, jnp.float32(0), x)
        steps, rows = lax.while_loop(
            lambda c: (c[0] < 100) & (c[1].sum() < 1000),
            lambda c: (c[0] + n, c[1] * 1.5),
            (0, rows),
        )
        none = lax.while_loop(lambda v: v < 0, lambda v: v - 1, n)
        pick = lax.switch(n, [lambda v: v, lambda v: v * 2, lambda v: -v], rows)
        return total, rows, steps, none, lax.cond(total > 0, lambda v: v + n, lambda v: v * n, pick)

    arguments = X, np.int32(2)
    found = by_way_of_relax(function, *arguments, unroll_limit=0)
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
