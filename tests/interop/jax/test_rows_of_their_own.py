"""Bytes sent by lookups and writes within a sample or of few rows: none, or just these rows."""

import numpy as np
import pytest
from tests.interop.jax.against_jax import check

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax

B, T, D = 6, 9, 4


def rows(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(dtype)


CACHE, LOGITS, NEW = rows(B, T, D), rows(B, T), rows(B, D)
PLACES = np.array([0, 8, -2, 3, 40, 3], "int32")  # some of them from the end, or outside
BY_SAMPLE = {
    "take_along_axis": (
        lambda c, p: jnp.take_along_axis(c, p[:, None, None], 1, mode="clip"),
        (CACHE, PLACES),
    ),
    "rows": (lambda c, p: c.at[jnp.arange(B), p].get(mode="clip"), (CACHE, PLACES)),
    "rows of int8": (
        lambda c, p: c.at[jnp.arange(B), p].get(mode="clip"),
        (CACHE.astype("int8"), PLACES),
    ),
    "labels": (lambda x, p: x.at[jnp.arange(B), p].get(mode="clip"), (LOGITS, PLACES)),
    "two behind": (
        lambda c, p: c.at[jnp.arange(B), p, 1].get(mode="clip"),
        (CACHE, PLACES),
    ),
    "windows": (
        lambda c, p: jax.vmap(lambda a, i: lax.dynamic_slice(a, (i, 0), (3, D)))(c, p),
        (CACHE, PLACES),
    ),
    "updates of windows": (
        lambda c, n, p: jax.vmap(lambda a, b, i: lax.dynamic_update_slice(a, b, (i, 0)))(c, n, p),
        (CACHE, rows(B, 2, D), PLACES),
    ),
    "set": (lambda c, n, p: c.at[jnp.arange(B), p].set(n), (CACHE, NEW, PLACES)),
    "add": (lambda c, n, p: c.at[jnp.arange(B), p].add(n), (CACHE, NEW, PLACES)),
    "set labels": (lambda x, p: x.at[jnp.arange(B), p].set(1), (LOGITS.astype("int32"), PLACES)),
}
SEVERAL = jnp.array([3, 3, 50, -1])
SINGLE = {
    "first": (lambda x: x.at[0].set(1), 0),
    "last rows": (lambda x: x.at[-2:].set(x[0, 0] * 0 + 2), None),
    "traced": (lambda x, i: x.at[i].set(1), 0),
    "outside": (lambda x, i: x.at[i + 40].add(x[0, 0] * 0 + 1), None),
    "product": (lambda x, i: x.at[i].multiply(3), 0),
    "several": (lambda x: x.at[SEVERAL].add(2), 0),
    "several set": (lambda x: x.at[SEVERAL].set(jnp.arange(4.0)[:, None] * 1), 0),
    "several largest": (lambda x: x.at[SEVERAL].max(2), 0),
    "several smallest": (lambda x: x.at[SEVERAL].min(-2), 0),
    "several of NaN": (lambda x: (x + jnp.nan).at[SEVERAL].max(2), 0),
    "several of bool": (lambda x: (x > 0).at[SEVERAL].set(True), 0),
    "several integers": (lambda x: x.astype("int8").at[SEVERAL].min(-2), 0),
}


def sent(function, arguments, plan):
    mod = dx.interop.jax.from_exported(jax.jit(function).lower(*arguments))
    annotated = dx.annotate(mod, dx.Mesh(x=2), dict(zip(names_of(mod), plan, strict=True)))
    return sum(each.bytes_per_device for each in dx.analysis.collectives(dx.lower(annotated)))


def names_of(mod):
    return [each.name for each in mod["main"].params]


@pytest.mark.parametrize("name", BY_SAMPLE)
def test_samples_keep_their_own_rows(name):
    function, arguments = BY_SAMPLE[name]
    plan = [("x", *[None] * (each.ndim - 1)) for each in arguments]
    assert sent(function, arguments, plan) == 0
    check(function, *arguments)


@pytest.mark.parametrize("name", SINGLE)
def test_writes_of_rows_send_none(name):
    function, right = SINGLE[name]
    arguments = (rows(10, 4), np.int32(7))[: function.__code__.co_argcount]
    plan = [("x", None), ()][: len(arguments)]
    if right is not None:
        assert sent(function, arguments, plan) == right
    check(function, *arguments)
