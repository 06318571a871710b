"""Programs with ``jax.shard_map``, which are cases as those of programs.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .programs import CASES, case, on

__all__ = ["CASES", "on"]


@case((2, 4), ("dp", "tp"))
def every_collective(mesh, normal):
    ring = [(source, (source + 1) % 4) for source in range(4)]

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P("dp", "tp"), P(("tp", "dp"))),
        out_specs=(P(), P("dp"), P(("dp", "tp")), P("dp", "tp")),
        check_vma=False,
    )
    def f(x, i):  # (6, 8) and (2,) on each device
        both = ("tp", "dp")
        place = lax.axis_index("dp") * 10 + lax.axis_index("tp")
        reduced = lax.psum(x, both), lax.pmax(x, both), lax.pmin(x, both), lax.pmean(x, both)
        gathered = (
            lax.all_gather(x, "tp", axis=1, tiled=True),
            lax.all_gather(i, "tp"),
            lax.all_gather(i, both, tiled=True),
            lax.psum(lax.pmax(i > 9, "dp").astype(jnp.int32), "tp"),
        )
        moved = (
            lax.ppermute(x, "tp", ring),
            lax.ppermute(i, both, [(0, 7), (7, 1), (3, 3)]),
            lax.ppermute(x, "dp", [(1, 0)]),
            lax.psum_scatter(x.T, "tp", scatter_dimension=0, tiled=True),
            lax.psum_scatter(jnp.stack([x[0], x[1]]), "dp"),
        )
        exchanged = (
            lax.all_to_all(x, "tp", 1, 0, tiled=True),
            lax.all_to_all(x, "tp", 1, 1, tiled=True),
            lax.all_to_all(x[:4, :6], "tp", 0, 0),
        )
        constant = lax.psum(jnp.arange(8.0), "tp")  # what has not entered
        apart = [each.reshape(-1) for each in (*moved, *exchanged)]
        return reduced, gathered, apart, x * place + constant

    x, i = normal(12, 32), np.arange(16, dtype=np.int32)
    return f, (x, i), (P("dp", "tp"), P())


@case((2, 4), ("dp", "tp"), ("params",))
def feed_forward_by_hand(mesh, normal):
    """Manual along tp only; dp stays automatic."""

    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(), P(None, "tp"), P("tp", None)),
        out_specs=P(),
        axis_names={"tp"},
    )
    def block(x, up, down):
        hidden = jax.nn.gelu(x @ up)
        hidden = lax.with_sharding_constraint(hidden, P("dp", None))
        share = (1 + lax.axis_index("tp")).astype(x.dtype)
        return lax.psum(hidden @ down * share, "tp")

    def f(params, x):
        def loss(up):
            y = x + block(x, up, params["down"])
            return (y * y).sum(), y

        return jax.grad(loss, has_aux=True)(params["up"])

    params = {"up": normal(16, 24), "down": normal(24, 16)}
    specs = {"up": P(None, "tp"), "down": P("tp", None)}
    return f, (params, normal(8, 16)), (specs, P("dp"))


@case((2, 2, 2), ("a", "b", "c"))
def regions_within_regions(mesh, normal):
    def inner(x):
        return x * (1 + lax.axis_index("b")) + lax.psum(lax.psum(x, "b"), "a")

    def outer(x, y):
        nested = jax.shard_map(
            inner, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names={"b"}
        )
        return nested(jnp.sin(x)) + y, lax.pmax(x, "a")

    def f(x, y):
        region = jax.shard_map(
            outer,
            mesh=mesh,
            in_specs=(P("a"), P(None)),
            out_specs=(P("a"), P()),
            axis_names={"a"},
        )
        return region(x, y)

    return f, (normal(8, 8), normal(8)), (P("c", "b"), P("a"))


@case((2, 4), ("dp", "tp"))
def ring_attention(mesh, normal):
    """Keys and values go round in a loop whose end is not known before it runs."""
    both = ("dp", "tp")

    @jax.jit
    def scores(q, k):  # is no small function, and is called twice
        for _ in range(6):
            k = jnp.tanh(k) + lax.pmean(k, both) / 8
        return jnp.exp(jnp.einsum("shd,thd->hst", q, k))

    spec = P(both)

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec, check_vma=False
    )
    def f(q, k, v):
        ring = [(source, (source + 1) % 8) for source in range(8)]

        def step(carry):
            count, k, v, total, weight, _ = carry
            part = scores(q, k)
            total = total + jnp.einsum("hst,thd->shd", part, v)
            weight = weight + part.sum(-1).T[..., None]
            k, v = (lax.ppermute(each, both, ring) for each in (k, v))
            left = lax.pmin(7 - count, both)
            return count + 1, k, v, total, weight, left

        zeros = jnp.zeros_like(q), jnp.zeros_like(q[..., :1])
        start = 0, k, v, *zeros, jnp.int32(1)
        total, weight = lax.while_loop(lambda carry: carry[-1] > 0, step, start)[3:5]
        return total / weight + scores(q, k).sum()

    arguments = tuple(normal(16, 2, 4) for _ in range(3))
    return f, arguments, (spec, P(None, None, "tp"), P())
