"""StableHLO without an operator in Relax, sharded in two: bits, random numbers, regions."""

import numpy as np
import pytest
from tests.interop.jax.against_jax import check
from tests.targets import QUICK

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax


def rows(*shape, dtype="float32"):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


X = rows(6, 4)
I8 = np.array([[3, -7, 0, 100], [5, 2, -1, -128]], "int8")
U32 = np.array([[0, 1, 2**31, 2**32 - 1], [7, 8, 9, 10]], "uint32")
COUNTS = np.array([[1, -7, 2**31 - 1, -(2**31)], [0, 31, 32, 100]], "int32")


def test_bits():
    special = np.array([[np.nan, np.inf, -0.0, 1e-40], [1.5, -2.0, 3e38, 1.00390625]], "float32")

    def bits(x, special, small, u):
        cast = lax.bitcast_convert_type
        return (
            *(cast(x, each) for each in (jnp.int32, jnp.uint8, jnp.uint16, jnp.bfloat16)),
            cast(small, jnp.int32),
            cast(small.reshape(4, 2), jnp.float16),
            cast(special, jnp.uint32),
            cast(special.astype(jnp.bfloat16), jnp.uint16),
            cast(x.astype(jnp.float16), jnp.int16),
            cast(u.astype(jnp.uint16), jnp.bfloat16),
            *(lax.population_count(each) for each in (u, small)),
            *(lax.clz(each) for each in (u, small, u.astype(jnp.uint16))),
        )

    check(bits, X, special, I8, U32, exact=True)


def test_shifts_by_all_bits_and_more():
    def shifts(i):
        logical, arithmetic = lax.shift_right_logical, lax.shift_right_arithmetic
        other, small = i[::-1], i.astype(jnp.uint16)
        return (
            *(shift(i, other) for shift in (lax.shift_left, logical, arithmetic)),
            *(shift(i, jnp.int32(32)) for shift in (lax.shift_left, logical, arithmetic)),
            arithmetic(small, other.astype(jnp.uint16)),
        )

    check(shifts, COUNTS, exact=True)


@pytest.mark.large
def test_random_numbers():
    def draw(key, x):
        normal, mask = jax.random.split(key)
        kept = jax.random.bernoulli(mask, 0.5, x.shape)
        return jax.random.normal(normal, (3, 5)), jnp.where(kept, x / 0.5, 0)  # dropout

    check(draw, jax.random.PRNGKey(3), X, plan={"x": ("x", None)})
    check(lambda x: x + jax.random.bits(jax.random.key(3, impl="rbg"), (6, 4)), X.astype("uint32"))


def test_generators_of_bits():
    threefry, philox = lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX
    forms = [(threefry, (5, 3), 32), (threefry, (3, 4), 32), (threefry, (5, 3), 64)]
    forms += [(threefry, (), 32), (philox, (5, 3), 64), (philox, (5, 3), 16)]

    def generate(state, x):
        made = [
            lax.rng_bit_generator(state, shape, f"uint{bits}", algorithm=algorithm)
            for algorithm, shape, bits in forms
        ]
        return *made, x

    with jax.enable_x64(True):
        state = np.array([7, 2**63 + 5], "uint64")
        check(generate, state, X, plan={"x": ("x", None)}, exact=True)


def test_reductions_by_regions():
    def reduce(x, start):
        both = lax.reduce(
            (x, x * 2), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1] + 0 * b[0]), (0,)
        )
        windows = lax.reduce_window(
            (x, x + 1),
            (0.0, 1.0),
            lambda a, b: (a[0] + b[0], jnp.fmin(a[1], b[1])),
            (3, 1),
            (1, 1),
            "SAME",
        )
        return (
            *both,
            *windows,
            lax.reduce(x, -jnp.inf, jnp.logaddexp, (1,)),
            lax.reduce(x.astype(jnp.int32), 0, lax.bitwise_or, (1,)),
            lax.cumlogsumexp(x, 0),
            lax.cumlogsumexp(x, 1, reverse=True),
            lax.reduce_window(x, -jnp.inf, jnp.logaddexp, (2, 3), (1, 2), ((1, 0), (0, 2))),
            lax.cummax(jnp.tile(x, (50, 1)), 0),
            lax.reduce(x, start, jnp.logaddexp, (1,)),
            lax.reduce_window(x, start, lax.add, (2, 2), (1, 1), "VALID"),
            lax.pad(x, start, ((1, -1, 2), (0, 2, 0))),
        )

    check(reduce, X, np.float32(0.3))


def test_gradients_of_pooling_and_of_grouped_convolutions():
    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 3), (1, 1, 2, 2), "SAME")

    def convolved(x, kernel, groups):
        return lax.conv_general_dilated(x, kernel, (2, 1), "SAME", feature_group_count=groups)

    def gradients(image, grouped, depthwise):
        return (
            jax.grad(lambda x: (pooled(x) ** 2).sum())(image),
            *jax.grad(lambda x, k: (convolved(x, k, 2) ** 2).sum(), (0, 1))(image, grouped),
            *jax.grad(lambda x, k: (convolved(x, k, 4) ** 2).sum(), (0, 1))(image, depthwise),
        )

    check(gradients, rows(2, 4, 6, 7), rows(6, 2, 3, 2), rows(8, 1, 3, 2))


def test_orders_by_several_keys():
    keys = np.random.default_rng(0).integers(0, 3, (6, 8)).astype("int32")

    def order(i, x):
        return (
            *lax.sort((i, x), num_keys=2, dimension=1),
            *lax.sort((i, i[::-1], x), num_keys=2, dimension=0),
            jnp.lexsort((x[0], i[0])),
            *lax.approx_max_k(x, 2),
            *lax.approx_min_k(x, 3, reduction_dimension=0),
        )

    check(order, keys, rows(6, 8))


def test_decompositions_of_matrices():
    """By LAPACK, as JAX's are on CPUs; each device decomposes its own."""
    x = rows(3, 5, 4)
    square = np.einsum("bij,bkj->bik", x[:, :4], x[:, :4]) + 4 * np.eye(4, dtype="float32")

    def decompose(x, square):
        linalg = jnp.linalg
        return (
            linalg.cholesky(square),
            *lax.linalg.lu(x),
            lax.linalg.triangular_solve(square, x, left_side=False, lower=True),
            *linalg.qr(x),
            *linalg.svd(x.mT, full_matrices=False),
            *linalg.eigh(square),
        )

    check(decompose, x, square, tolerance=1e-4)
    with pytest.raises(ValueError, match=r"complex.*test_kernels.py:\d+"):
        dx.interop.jax.from_exported(jax.jit(jnp.linalg.eig).lower(square))
    # Within JAX's function there is no line of a user, but where it is called.
    with pytest.raises(ValueError, match=r"sgehrd.* has no translation.*test_kernels.py:\d+"):
        dx.interop.jax.from_exported(
            jax.jit(lambda x: jax.scipy.linalg.hessenberg(x)).lower(x[0, :4])
        )


def test_sizes_that_are_known_when_it_runs():
    (rows_,) = jax.export.symbolic_shape("2*rows")

    def function(x):
        square = jnp.eye(4) + 0 * x[:, :, None] * x[:, None, :]
        return (
            lax.bitcast_convert_type(x, jnp.uint8),
            lax.population_count(x.astype(jnp.int32)),
            lax.reduce(x, -jnp.inf, jnp.logaddexp, (1,)),
            lax.reduce(x, -jnp.inf, jnp.logaddexp, (0,)),
            jnp.linalg.cholesky(square),
        )

    given = jax.ShapeDtypeStruct((rows_, 4), "float32")
    mod = dx.interop.jax.from_exported(jax.export.export(jax.jit(function))(given))
    exe = dx.build(dx.annotate(mod, dx.Mesh(x=2), {"x": ("x", None)}), target=QUICK)
    with dx.Session(2) as session:
        model = session.load(exe)
        for count in (4, 6):
            x = rows(count, 4)
            for ours, theirs in zip(model["main"](x), function(x), strict=True):
                np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5)


def test_programs_without_arguments():
    """All that a program computes may be of constants."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("x",), axis_types=auto)
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))

    def made():
        return lax.with_sharding_constraint(jnp.arange(6.0).reshape(3, 2), spec)

    mod = dx.interop.jax.from_exported(jax.jit(made).lower())
    with dx.Session(1) as session:
        found = session.load(dx.build(mod, target=QUICK))["main"]().numpy()
    np.testing.assert_array_equal(found, made())
