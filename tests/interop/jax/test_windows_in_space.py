"""Convolutions, their gradients, windows and pads of images that are sharded in space: the bytes
that a device sends are at most XLA's, and the numbers are those of JAX."""

import math

import numpy as np
import pytest
from tests.interop.jax.against_jax import check

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax

SPACE, ROWS = (None, None, "x", None), ("x", None)


def values(*shape):
    return np.random.default_rng(len(shape)).integers(-4, 5, shape).astype("float32")


def convolution(x, w, strides=(1, 1), **options):
    names = ("NCHW", "OIHW", "NCHW")
    return lax.conv_general_dilated(x, w, strides, "SAME", dimension_numbers=names, **options)


def of_filter(x, g, **options):
    filters = jnp.zeros_like(GROUPED if options.get("feature_group_count") else KERNEL)
    return jax.vjp(lambda w: convolution(x, w, **options), filters)[1](g)[0]


def of_image(w, g, **options):
    return jax.vjp(lambda x: convolution(x, w, **options), jnp.zeros_like(IMAGE))[1](g)[0]


HALVED = {"strides": (2, 2)}


IMAGE, KERNEL = values(2, 4, 32, 8), values(4, 4, 3, 3)
HALF, GROUPED = values(2, 4, 16, 4), values(4, 2, 3, 3)
ROW = 2 * 4 * 8 * 4
FILTER = 2 * KERNEL.nbytes * 3 // 4
LINE, TABLE = values(16), values(32, 6)
ONE = TABLE[0].nbytes
# What is computed, its arguments, how they are sharded, and the bytes that XLA's program sends, or
# that are needed where these are more.
CASES = [
    (convolution, (IMAGE, KERNEL), (SPACE, None), 2 * ROW),
    (of_filter, (IMAGE, IMAGE), (SPACE, SPACE), 2 * ROW + FILTER),
    (of_image, (KERNEL, IMAGE), (None, SPACE), 2 * ROW),
    (
        lambda x, g: of_filter(x, g, **HALVED),
        (IMAGE, HALF),
        (SPACE, SPACE),
        ROW + FILTER,
    ),
    (
        lambda x, g: of_filter(x, g, feature_group_count=2),
        (IMAGE, IMAGE),
        (SPACE, SPACE),
        2 * ROW + FILTER,
    ),
    (
        lambda w, g: of_image(w, g, **HALVED),
        (KERNEL, HALF),
        (None, SPACE),
        ROW // 2,
    ),
    (
        lambda w, g: of_image(w, g, feature_group_count=2, **HALVED),
        (GROUPED, HALF),
        (None, SPACE),
        ROW // 2,
    ),
    (
        lambda x, w: lax.conv_transpose(
            x, w, (2, 3), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
        ),
        (IMAGE, KERNEL),
        (SPACE, None),
        2 * ROW,
    ),
    # Windows that reach beyond a neighbour.
    (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (13,), (1,), "SAME"), (LINE,), ("x",), 48),
    (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (7,), (1,), [(6, 0)]),
        (LINE,),
        ("x",),
        24,
    ),
    (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (11,), (1,), [(10, 0)]),
        (LINE,),
        ("x",),
        40,
    ),
    (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 1), (2, 1), "SAME"),
        (TABLE,),
        (ROWS,),
        ONE,
    ),
    # Pads and slices are one move.
    (lambda x: jnp.pad(x, ((3, 5), (0, 0)))[2:34], (TABLE,), (ROWS,), ONE),
    (lambda x: jnp.pad(x[3:][:-5], ((4, 4), (0, 0))), (TABLE,), (ROWS,), ONE),
    (lambda x: lax.pad(x, 0.0, ((-1, 1, 0), (0, 0, 0))), (TABLE,), (ROWS,), ONE),
    (lambda x: lax.pad(x, 0.0, ((0, 1, 1), (0, 0, 0))), (TABLE,), (ROWS,), 0),
    (lambda x: jnp.pad(x, ((2, 2), (0, 0)), mode="wrap")[:32], (TABLE,), (ROWS,), 2 * ONE),
]


@pytest.mark.large
def test_images_send_what_windows_need():
    for index, (function, arguments, dims, most) in enumerate(CASES):
        mod = dx.interop.jax.from_exported(jax.export.export(jax.jit(function))(*arguments))
        names = [each.name for each in mod["main"].params]
        if len(arguments) == 1 and not isinstance(dims[0], tuple):
            dims = (dims,)
        plan = {name: each for name, each in zip(names, dims, strict=True) if each is not None}
        found = dx.analysis.collectives(dx.lower(dx.annotate(mod, dx.Mesh(x=4), plan)))
        sent = sum(each.bytes_per_device * each.count for each in found)
        assert sent <= math.ceil(most), (index, sent, found)
        check(function, *arguments, plan=plan, devices=4)
