"""Programs with symbolic shapes: one module for all sizes, sharded in two, against JAX."""

import math

import numpy as np
import pytest
from tests.targets import QUICK

import distir_ext as dx

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax = jax.numpy, jax.lax

MESH = jax.sharding.AbstractMesh((2,), ("dp",), axis_types=(jax.sharding.AxisType.Auto,))


def like(shape, dtype="float32", *, rows=False):
    """An argument; of a text, "rows, 16", sizes are symbols."""
    dims = jax.export.symbolic_shape(shape, scope=SCOPE) if isinstance(shape, str) else shape
    spec = jax.sharding.PartitionSpec(*(["dp"] if rows else []))
    return jax.ShapeDtypeStruct(dims, dtype, sharding=jax.sharding.NamedSharding(MESH, spec))


SCOPE = jax.export.SymbolicScope()


def exported(function, *arguments, platforms=("cpu",), **options):
    return jax.export.export(jax.jit(function), platforms=list(platforms), **options)(*arguments)


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def assert_equal_to_jax(program, function, *argument_sets, **options):
    """One program gives what JAX gives, for all of these arguments."""
    mod = dx.interop.jax.from_exported(program, **options)
    if not dx.meshes(mod):
        x = mod["main"].params[0]
        mod = dx.annotate(mod, dx.Mesh(dp=2), {x.name: ("dp", *[None] * (x.ty.ndim - 1))})
    exe = dx.build(mod, target=QUICK)
    with dx.Session(2) as session:
        model = session.load(exe)
        for arguments in argument_sets:
            found = model["main"](*jax.tree.leaves(arguments))
            found = found if isinstance(found, tuple | list) else [found]
            wanted = jax.tree.leaves(jax.jit(function)(*arguments))
            assert len(found) == len(wanted)
            for index, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
                ours, theirs = ours.numpy(), np.asarray(theirs)
                assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), index
                np.testing.assert_allclose(
                    ours, theirs, rtol=2e-5, atol=2e-5, err_msg=f"result {index}"
                )


def test_mlp_of_any_batch():
    def mlp(params, x):
        hidden = jax.nn.gelu(x @ params["up"] + params["b"])
        y = x + hidden @ params["down"]
        return y, hidden.mean(), (y * y).sum(0)

    params = {"b": normal(12), "down": normal(12, 8), "up": normal(8, 12)}
    program = exported(
        mlp, jax.tree.map(lambda a: like(a.shape), params), like("2*rows, 8", rows=True)
    )
    mod = dx.interop.jax.from_exported(program, weights=["params"])
    x = mod["main"].params[0]
    assert (x.name, x.ty.shape.values[0].name) == ("x", "rows")
    assert_equal_to_jax(program, mlp, *((params, normal(rows, 8)) for rows in (2, 10)))


def test_attention_of_any_batch_and_length():
    @jax.jit
    def block(w, x, mask):
        q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w[name]) for name in "qkv")
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / math.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((x.shape[1],) * 2, bool)) & mask[:, None, None, :]
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhst,bhtk->bshk", weights, v).reshape(*x.shape[:2], -1)
        return x + mixed @ w["o"]

    def function(w, x, mask):
        positions = jnp.arange(x.shape[1], dtype=jnp.float32)
        x = x + jnp.cos(positions)[:, None]
        return block(w, block(w, x, mask), mask)

    w = {"k": normal(8, 2, 4), "o": normal(8, 8), "q": normal(8, 2, 4), "v": normal(8, 2, 4)}
    shapes = jax.tree.map(lambda a: like(a.shape), w)
    program = exported(
        function, shapes, like("2*rows, s, 8", rows=True), like("2*rows, s", "bool", rows=True)
    )
    mod = dx.interop.jax.from_exported(program)
    names = [each.name_hint for each in mod.get_global_vars()]
    assert [each for each in names if each.startswith("block")] == ["block"]
    sizes = (2, 3), (6, 1)
    assert_equal_to_jax(
        program, function, *((w, normal(b, s, 8), normal(b, s) > -1) for b, s in sizes)
    )


@pytest.mark.large
def test_operations_that_are_told_sizes():
    def function(x, table, picks):
        rows = x.shape[0]
        return (
            x[:, 1:3],
            x[1:],
            x[:, ::-1],
            jnp.concatenate([x, x * 2], 0),
            x.reshape(-1, 4),
            x.reshape(rows, 4, 2).transpose(2, 0, 1),
            jnp.argmax(x, -1),
            jnp.cumsum(x, 1),
            jnp.pad(x, ((0, 0), (1, 2))),
            jnp.pad(x, ((0, 0), (1, 2)), mode="edge"),
            jnp.pad(x, ((1, 1), (0, 0)), mode="edge"),
            jnp.concatenate([x[:, :0].reshape(0, rows).T, x], 1),
            lax.top_k(x, 3),
            jnp.sort(x, axis=1),
            table[picks],
            jnp.zeros(((rows + 1) // 2, 3)) + jnp.arange((rows + 1) // 2)[:, None],
            jnp.where(rows % 2 == 0, x, -x),
            x / rows,
            x.mean(0),
            jnp.broadcast_to(x[:, None], (rows, 3, 8)),
            jnp.eye(rows) @ x,
        )

    program = exported(
        function, like("2*rows, 8", rows=True), like((10, 4)), like("2*rows, s", "int32", rows=True)
    )
    sizes = (2, 1), (4, 5)
    assert_equal_to_jax(
        program,
        function,
        *(
            (normal(b, 8), normal(10, 4), np.arange(b * s, dtype="int32").reshape(b, s) % 10)
            for b, s in sizes
        ),
    )


def test_lookups_and_writes_of_any_size():
    def function(x, picks):
        rows = x.shape[0]
        every = jnp.arange(rows)
        return (
            x[every, picks],
            x[jnp.array([0, 1]), jnp.array([1, 2])],
            jnp.take_along_axis(x, picks[:, None], 1),
            x.at[:, 2].set(0),
            x.at[jnp.array([1, 0])].add(1),
            x.at[every, picks].multiply(3),
            jax.ops.segment_sum(x, picks, 3),
            lax.pad(x, jnp.float32(1), ((-1, 2, 0), (0, 1, 1))),
            lax.dynamic_update_slice(x, x[:1], (1, 0)),
            lax.dynamic_update_slice(x, x[1:], (picks[0], 0)),
            lax.scan(lambda carry, row: (carry + row, carry * row), x[0], x)[1],
        )

    program = exported(function, like("rows, 8"), like("rows", "int32"))
    sets = ((normal(rows, 8), np.arange(rows, dtype="int32") % 3) for rows in (4, 3))
    assert_equal_to_jax(program, function, *sets)


@pytest.mark.parametrize("size", ["rows", "4*rows"])
def test_sizes_are_called_as_the_module_calls_them(size):
    program = exported(lambda x, y: x + y, like(f"{size}, 8"), like(f"{size}, 8"))
    for mod in (
        dx.interop.jax.from_exported(program),
        dx.interop.jax.from_stablehlo(program.mlir_module()),
    ):
        rows = [each.ty.shape.values[0] for each in mod["main"].params]
        assert [each.name for each in rows] == ["rows", "rows"]
        assert rows[0].same_as(rows[1])


def test_sizes_that_are_multiples_of_one_another():
    def function(x, y, z):
        rows = x.shape[0] // 2
        return jnp.concatenate([x[:, None], y.reshape(x.shape[0], 2)], 1), z.reshape(rows, 6) / rows

    program = exported(function, like("2*rows", rows=True), like("4*rows"), like("6*rows"))
    sets = ((normal(2 * n), normal(4 * n), normal(6 * n)) for n in (1, 3))
    assert_equal_to_jax(program, function, *sets)
    program = exported(lambda x, y: (x * 2, y * 3), like("2*rows"), like("3*rows"))
    with pytest.raises(ValueError, match=r"sizes 2\*rows and 3\*rows"):
        dx.interop.jax.from_exported(program)


def test_branches_and_loops_of_any_size():
    def function(x, w, kind):
        rows = x.shape[0]
        branches = [
            lambda v: v @ w,
            lambda v: jnp.where(jnp.arange(rows)[:, None] < rows // 2, v, -v),
            lambda v: jnp.zeros((rows, 8)) + rows,
        ]
        x = lax.switch(kind, branches, x)
        count, doubled = lax.while_loop(
            lambda carry: jnp.abs(carry[1]).max() < 50,
            lambda carry: (carry[0] + rows, carry[1] * 2 + w[0] / rows + 1),
            (0, x),
        )
        last, sums = lax.scan(  # more steps than are written out
            lambda carry, row: (jnp.tanh(carry + row), carry.sum(1)),
            x,
            jnp.stack([x, w[0] + 0 * x]),
        )
        to_rows = lax.fori_loop(
            0, rows, lambda i, total: total + lax.dynamic_slice(x, (i, 0), (1, 8)), w[:1]
        )
        return lax.cond(count > 9, lambda: doubled.sum(0), lambda: w[1]), count, last, sums, to_rows

    program = exported(function, like("2*rows, 8", rows=True), like((8, 8)), like((), "int32"))
    w = normal(8, 8)
    sets = [(normal(rows, 8), w, np.int32(kind)) for rows, kind in ((2, 1), (6, 2))]
    assert_equal_to_jax(program, function, *sets, unroll_limit=1)


def test_a_branch_that_only_knows_a_size():
    """Its function is given an argument that has the size."""

    def function(x, flag):
        rows = x.shape[0]
        return lax.cond(flag, lambda: jnp.arange(rows) * 2, lambda: jnp.zeros(rows, int)), x + 1

    program = exported(function, like("rows, 8"), like((), "bool"))
    assert_equal_to_jax(program, function, (normal(3, 8), True), (normal(5, 8), False))


def test_parts_that_are_written_per_device_of_any_size():
    def function(x, w):
        def block(part, w):
            rows = part.shape[0]
            total = lax.psum(part.sum(), "dp") / rows
            return part @ w + total, lax.all_gather(part[:, 0], "dp", tiled=True)

        spec = jax.sharding.PartitionSpec("dp")
        none = jax.sharding.PartitionSpec()
        region = jax.shard_map(
            block, mesh=MESH, in_specs=(spec, none), out_specs=(spec, none), check_vma=False
        )
        return region(x, w)

    def on_one_device(x, w):
        return x @ w + x.sum() / (x.shape[0] / 2), x[:, 0]

    program = exported(function, like("2*rows, 8", rows=True), like((8, 8)))
    sets = [(normal(rows, 8), normal(8, 8)) for rows in (2, 6)]
    assert_equal_to_jax(program, on_one_device, *sets)


def test_a_program_for_several_platforms_runs_as_on_the_first():
    def function(x, y):
        return lax.platform_dependent(x, cpu=jnp.tanh, cuda=jnp.exp) * y

    for function_ in (function, lambda x, y: x + y):
        for shape in ("rows, 8", (4, 8)):
            program = exported(function_, like(shape), like(shape), platforms=("cpu", "cuda"))
            assert_equal_to_jax(program, function_, (normal(4, 8), normal(4, 8)))


def test_sizes_that_do_not_fit_are_refused_in_a_call():
    program = exported(lambda x, y: x * y, like("rows, 8"), like("rows, 8"))
    mod = dx.interop.jax.from_exported(program)
    with dx.Session(2) as session:
        model = session.load(dx.build(mod, target=QUICK))
        with pytest.raises((ValueError, RuntimeError), match=r"rows"):
            model["main"](normal(4, 8), normal(6, 8))


def test_assertions_of_sizes_are_refused():
    with pytest.raises(ValueError, match="is an assertion of sizes that Relax does not check"):
        dx.interop.jax.from_exported(exported(jnp.tanh, like("2*rows + 1, 8")))
