"""Single operations of StableHLO, in all their forms, sharded in two, against JAX."""

import numpy as np
import pytest
from tests.interop.jax.against_jax import check

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax


def rows(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


X = rows(6, 4)
I8 = np.array([[3, -7, 0, 100], [5, 2, -1, -128], [1, 1, 127, 9], [-4, 6, 8, 2]], "int8")
I32 = (I8.astype("int32") * 1000)[:, :]
UNSIGNED = np.array([[0, 1, 2**31, 2**32 - 1], [7, 8, 9, 10]], "uint32")
PICKS = np.array([[0, 5], [9, -3], [2, 2]], "int32")  # some of them outside
SPECIAL = np.array(
    [
        [1, np.nan, -3, 4],
        [-5, np.inf, 2, -np.inf],
        [np.nan] * 4,
        [-np.inf] * 4,
        [3e9, -3e9, 300, -0.0],
        [0.0, 7, -7, 1e20],
    ],
    "float32",
)
FINE = np.append(SPECIAL, [[1e-40, 65519, 65520, 1e-5], [6e-8, 1.00195313, 3e38, -1e-6]], 0)
FINE = FINE.astype("float32")
GROUPS = {
    "values": (
        lambda x, b, u: (
            *(jnp.isnan(x), x != x, x == x, ~(x < 1), (x <= 1) | (x > 1), jnp.isnan(x).any()),
            *(jnp.nan_to_num(x), jnp.nansum(x, 1), jnp.nanmax(x, 0), x * 0, 0 / x),
            *(x.max(0), x.max(1), x.min(1), x.max(), x.argmax(0), x.argmax(1), x.argmin(1)),
            *(jnp.maximum(x, 0), jnp.minimum(x, x[::-1]), jnp.clip(x, -1, 1), jnp.sign(x)),
            *(jax.nn.relu(x), jax.nn.softmax(x, 1), lax.cummax(x, 0), lax.cummin(x, 1)),
            *(jnp.where(x < 0, -1, jnp.where(x >= 0, 1, 0)), jnp.sort(x, 0), jnp.sort(x, 1)),
            *(jnp.argsort(x, 1), *lax.top_k(x, 2), *lax.top_k(x.astype(jnp.bfloat16), 3)),
            *(x.astype(dtype) for dtype in ("int8", "uint8", "int16", "int32", "uint32")),
            *(jnp.sort(x.astype(jnp.bfloat16), 1), x.astype(jnp.bfloat16).argmax(1)),
            *(jnp.sort(b, 1), jnp.argsort(b, 0), jnp.sort(u, 1), jnp.sort(b > 0, 1)),
            *((b > 0).max(1), (b > 0).argmax(1), jnp.isnan(x.astype(jnp.bfloat16))),
            jnp.arctan2(x.astype(jnp.float16), 1),
        ),
        (SPECIAL, I8, UNSIGNED),
    ),
    "arithmetic": (
        lambda x: (
            jnp.expm1(x * 1e-4),
            jnp.expm1(x * 10),
            jnp.log1p(jnp.abs(x) * 1e-4),
            jnp.log1p(jnp.abs(x)),
            jnp.cbrt(x),
            jnp.round(x * 3),
            lax.round(x * 2, lax.RoundingMethod.AWAY_FROM_ZERO),
            jnp.fmod(x * 5, 2.0),
            jnp.remainder(x * 5, 2.0),
            lax.erf(x),
            lax.erfc(x),
            jnp.arctan2(x, x[::-1]),
            jnp.tan(x),
            jnp.sinh(x),
            jnp.arcsinh(x),
            jnp.clip(x, -0.5, 0.25),
            jnp.sign(x),
            x.astype(jnp.bfloat16),
            jnp.isfinite(1 / jnp.floor(x)),
            jnp.select([x > 1, x > 0], [x, -x], 7.0),
        ),
        (X,),
    ),
    "fewer bits": (
        lambda *given: tuple(
            lax.reduce_precision(x, *bits).astype("float32")
            for x in given
            for bits in ((5, 10), (8, 7), (4, 3), (8, 3), (5, 7), (3, 23))
        ),
        (FINE, FINE.clip(-6e4, 6e4).astype("float16"), FINE.astype(jnp.bfloat16)),
    ),
    "8-bit floats": (
        lambda x, y, z: (
            *(z.astype(dtype).astype("float32") for dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2)),
            *(x + 1, x * y, jnp.maximum(x, y), -x, jnp.where(x > y, x, 2 * y), jax.nn.relu(x)),
            *(jnp.exp(x), jnp.tanh(y), jnp.sort(x, 1), jnp.max(x, 0), jnp.isnan(x), x.argmax(1)),
            *(x[::-1], jnp.concatenate([x, y]).T[1:3], x + jnp.asarray([1, 0.5, 448, 0], x.dtype)),
            *(x @ y.T, lax.dot(x, y.T, preferred_element_type="float32")),
            lax.bitcast_convert_type(x, jnp.uint8),
        ),
        (X.astype(jnp.float8_e4m3fn), 3 * X[::-1].astype(jnp.float8_e4m3fn), SPECIAL),
    ),
    "integers": (
        lambda a, b, u: (
            a // 7,
            a % 7,
            lax.rem(a, jnp.int32(7)),
            lax.div(a, jnp.int32(7)),
            a << 2,
            a >> 3,
            lax.shift_right_logical(a, jnp.int32(3)),
            u >> 3,
            lax.shift_right_arithmetic(u, jnp.uint32(3)),
            ~a,
            a ^ (a + 1),
            b.astype(jnp.int32) * 2,
            (b > 0) & (b < 50) | (b == -128),
            (b > 0) ^ (b < 50),
            (b > 0) == (b < 50),
            b.astype(jnp.bool_),
            jnp.abs(b),
            a.max(1),
            (b > 0).any(1),
            (b > 0).all(0),
            (a > 0).sum(),
            (a * 0.001).astype(jnp.int8),
        ),
        (I32, I8, UNSIGNED),
    ),
    "movement": (
        lambda x, cube: (
            jnp.pad(x, ((1, 2), (0, 3)), constant_values=2.5),
            lax.pad(x, jnp.float32(-jnp.inf), ((1, 0, 2), (-1, 2, 0))),
            lax.pad(x, jnp.float32(7), ((-8, 9, 0), (3, -6, 0))),
            lax.pad(x[:, :0], jnp.float32(7), ((0, 0, 0), (2, 0, 1))),
            x[::-1, 1:4:2],
            x[4:1:-1],
            jnp.flip(cube, (0, 2)),
            jnp.concatenate([x, x[:1] * 2], 0),
            jnp.stack([x, x + 1], 1),
            lax.broadcast_in_dim(cube[0].T, (2, 3, 2, 5), (3, 1)),
            lax.transpose(cube, (2, 0, 1)).reshape(5, 6),
            jnp.tile(x, (1, 2)),
            jnp.repeat(x, 2, axis=0),
            jnp.roll(x, 2, 0),
            lax.iota(jnp.float32, 5) + x[:5, 0],
            jnp.tril(x),
            jnp.arange(6, dtype=jnp.int8)[:, None] * jnp.ones((1, 2), jnp.int8),
            jnp.linspace(0, 1, 6) + x[:, 0],
            jnp.eye(4, dtype=bool),
            jnp.broadcast_to(x[:, :1], (6, 4)) + jnp.float32(2),
        ),
        (X, rows(2, 3, 5)),
    ),
    "places_that_the_program_reads": (
        lambda x, cube, i: (
            lax.dynamic_slice(cube, (0, i, 0), (2, 2, 5)),
            lax.dynamic_slice(cube, (i, i, i - 9), (1, 2, 3)),
            lax.dynamic_update_slice(x, x[:2] * 10, (i, 0)),
            lax.dynamic_update_slice(x, x[:2, :3] * 10, (i - 5, i)),
            lax.dynamic_update_slice(x, x[:2, :3] * 10, (7, 1)),
            lax.dynamic_update_slice(x, x[:, :3] * 10, (0, 1)),
            x.at[i].set(0.0),
            x[i],
        ),
        (X, rows(2, 3, 5), np.int32(2)),
    ),
    "lookups": (
        lambda x, cube, picks: (
            x[picks],
            jnp.take(x, picks, axis=1, mode="clip"),
            jnp.take(x, picks, axis=0),
            cube[:, picks],
            cube[:, :, picks[0]],
            jnp.take_along_axis(x[3:], picks[:, :1] % 4, axis=1),
            jnp.take_along_axis(x[:3], picks % 4, axis=1),
            jnp.take_along_axis(cube, picks[None, :, :] % 5, axis=2),
            x[picks % 6, picks % 4],
            cube[picks[0] % 2, :, picks[1] % 5],
            jax.vmap(lambda m, i: lax.dynamic_slice(m, (i,), (2,)))(x[:3], picks[:, 0]),
        ),
        (X, rows(2, 3, 5), PICKS),
    ),
    "writes": (
        lambda x, cube, picks: (
            x.at[picks].add(1.0),
            x.at[picks[:, 0]].set(x[:3] * 2),
            x.at[:, picks[:, 1]].max(0.5),
            x.at[picks % 6, picks % 4].multiply(3.0),
            cube.at[:, :, jnp.array([0, 4])].min(0.0),
            cube.at[1, :, 2].set(9.0),
            x.at[1:3, 2].set(4.0),
            jax.grad(lambda m: (jnp.take_along_axis(m, picks % 4, 1) ** 2).sum())(x[:3]),
            jax.grad(lambda m: (m[picks] ** 2).sum())(x),
        ),
        (X, rows(2, 3, 5), PICKS),
    ),
    "contractions": (
        lambda x, cube, y: (
            jnp.einsum("ij,kj->ik", x, x),
            jnp.einsum("ij,kj->ki", x, x),
            jnp.einsum("bij,bkj->bik", cube, cube),
            jnp.einsum("bij,bij->b", cube, cube),
            jnp.einsum("bij,cij->bc", cube, cube),
            jnp.einsum("bij,dj->dbi", cube, y),
            jnp.einsum("bij,j->ib", cube, y[0]),
            jnp.einsum("i,j->ij", y[0], x[0]),
            jnp.dot(y[0], y[1]),
            jnp.einsum("bij,bkl->bijkl", cube, cube[:, :1]),
            jnp.matmul(
                x.astype(jnp.bfloat16), x.T.astype(jnp.bfloat16), preferred_element_type=jnp.float32
            ),
            jnp.einsum("ij,jk->ik", x.astype(jnp.int32), x.T.astype(jnp.int32)),
        ),
        (X, rows(2, 3, 5), rows(4, 5)),
    ),
    "convolutions": (
        lambda image, kernel, line, volume: (
            lax.conv_general_dilated(image, kernel, (1, 1), "VALID"),
            lax.conv_general_dilated(image, kernel, (2, 1), ((1, 0), (-1, 2)), (1, 2), (2, 1)),
            lax.conv_transpose(
                image,
                kernel.transpose(2, 3, 0, 1),
                (2, 2),
                "SAME",
                dimension_numbers=("NCHW", "HWOI", "NHWC"),
            ),
            lax.conv_general_dilated(
                line, kernel[:, :, 0], (1,), "SAME", dimension_numbers=("NWC", "OIW", "CNW")
            ),
            lax.conv_general_dilated(volume, kernel[..., None], (1, 1, 1), "SAME"),
            lax.conv_general_dilated(image, kernel[:, :2], (1, 1), "SAME", feature_group_count=2),
            jax.grad(lambda k: (lax.conv(image, k, (1, 1), "SAME") ** 2).sum())(kernel),
        ),
        (rows(2, 4, 6, 7), rows(2, 4, 3, 2), rows(2, 6, 4), rows(2, 4, 3, 4, 2)),
    ),
    "windows_and_orders": (
        lambda x, image: (
            jnp.cumsum(x, 1),
            jnp.cumsum(x, 0, dtype=jnp.float32)[::-1],
            lax.cumsum(x, 0, reverse=True),
            lax.cumprod(x, 1),
            lax.cummax(x, 0),
            lax.reduce_window(image, 0.0, lax.add, (1, 1, 2, 3), (1, 1, 2, 1), "SAME"),
            lax.reduce_window(image, -jnp.inf, lax.max, (1, 1, 2, 3), (1, 1, 1, 2), "VALID"),
            lax.reduce_window(image, 0.5, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
            lax.reduce_window(
                x,
                0.0,
                lax.add,
                (2, 2),
                (1, 1),
                "VALID",
                base_dilation=(2, 1),
                window_dilation=(1, 2),
            ),
            jnp.sort(x, 0),
            jnp.argsort(x, 1),
            lax.sort((x, x * 2), num_keys=1),
            lax.top_k(x, 2),
            jnp.argmax(x, 0),
            jnp.argmin(x, 1),
            x.prod(1),
            x.mean(),
            jnp.var(x, 0),
            jax.nn.logsumexp(x, 1),
            lax.reduce(x, 3.0, lax.max, (1,)),
            jnp.median(x, 0),
        ),
        (X, rows(2, 4, 6, 7)),
    ),
    "calls_and_loops": (
        lambda x, n: (
            lax.fori_loop(0, 3, lambda i, v: v * i + 1, x),
            lax.fori_loop(0, n, lambda i, v: v * 0.5 + i, x),
            lax.scan(lambda c, row: (c + row, c.sum()), jnp.zeros(4), x),
            lax.scan(lambda c, _: (c * 1.01, None), x, None, length=100)[0],
            lax.map(lambda row: row[::-1] @ row, x),
            lax.cond(n > 2, lambda v: v + n, lambda v: v * 2, x),
            lax.switch(n - 1, [lambda v: v, lambda v: v - 1, lambda v: v * 3], x),
            lax.associative_scan(jnp.add, x, axis=0),
            jax.jit(jax.nn.gelu)(x) + jax.jit(jax.nn.gelu)(x * 2),
            lax.while_loop(
                lambda c: c[0].sum() < 50, lambda c: (c[0] + 1, c[1] + n), (jnp.abs(x), n)
            ),
        ),
        (X, np.int32(3)),
    ),
}
SMALL_SAMPLE = ("values", "arithmetic")


@pytest.mark.parametrize(
    "group",
    [
        name if name in SMALL_SAMPLE else pytest.param(name, marks=pytest.mark.large)
        for name in GROUPS
    ],
)
def test_results_are_those_of_jax(group):
    function, arguments = GROUPS[group]
    check(function, *arguments)


def test_products_in_every_form():
    def product(x, y, contracting, batch=((), ()), dtype=None):
        dims = contracting, batch
        return lax.dot_general(x, y, dims, preferred_element_type=dtype)

    def products(x, y, z, i, b):
        half, none = x.astype(jnp.bfloat16), ((), ())
        return (
            product(x, z, none),
            product(x[0, 0], z[0], none),
            product(x, y, ((1, 2), (0, 1))),
            product(x, y, ((1,), (0,)), ((0,), (2,))),
            product(x, y, none, ((0, 1), (2, 0))),
            product(x, x, ((0, 1, 2), (0, 1, 2))),
            product(x[:, :, :1], y[:1], ((2,), (0,))),
            product(x[:, :0], y[:0], ((1,), (0,)), ((0,), (2,))),
            product(half, half, ((2,), (2,)), dtype=jnp.float32),
            product(half, y, ((1,), (0,)), dtype=jnp.float32),
            product(i, i, ((1,), (1,)), dtype=jnp.int32),
            product(i, i, ((1,), (1,)), dtype=jnp.float32),
            product(b, b, ((0,), (0,))),
            product(b, b, none, ((0, 1), (0, 1))),
        )

    arguments = rows(6, 4, 3), rows(4, 3, 6), rows(3, 5), I8, X > 0
    plan = {"x": ("x", None, None), "y": (None, None, "x"), "i": (None, "x"), "b": ("x", None)}
    for devices in (2, 3):
        check(products, *arguments, plan=plan, devices=devices)


def test_scatters_of_booleans():
    places, updates = np.array([1, 3, 1, 9, 5]), np.array([True, False, False, True, True])
    check(lambda b, u: (b.at[places].min(u), b.at[places].max(u)), X[:, 0] > 0, updates)
    check(lambda b: (b.at[:, [1, 3]].min(False), b.at[:, [0]].max(True)), X > 0)


def test_integers_are_divided_by_any_number():
    x = np.array([7, -7, 0, -(2**31), 5, 12], "int32")
    y = np.array([0, -1, 0, -1, 3, -5], "int32")

    def divided(x, y):
        return (
            *(lax.div(x, y), lax.rem(x, y), lax.div(x, 0), lax.rem(x, 0), lax.div(x, -1)),
            *(x // y, x % y, *jnp.divmod(x, y), jnp.power(y, abs(y))),
            *(jnp.gcd(x[4:], y[4:]), jnp.lcm(x[4:], y[4:]), jnp.gcd(x * 0, y)),
            jnp.where(y == 0, -5, lax.div(x, y)),  # of two constants, JAX itself ends here
            lax.reduce(x, np.int32(0), lambda a, b: lax.max(a, lax.rem(b, b * 0)), (0,)),
            lax.reduce(x, np.int32(-7), lambda a, b: lax.max(a, lax.div(b, b * 0)), (0,)),
            *(jnp.arange(6) // jnp.arange(6), jnp.arange(6) % jnp.arange(6)),
        )

    check(divided, x, y, exact=True, devices=3)
    for dtype in ("uint32", "int8"):
        check(
            lambda x, y: (lax.div(x, y), lax.rem(x, y)),
            *(each.astype(dtype) for each in (x, y)),
            exact=True,
        )
