"""Programs of JAX with shardings, for 8 devices; on_devices.py runs them, too."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

CASES = {}


def case(shape, names, weights=(), kind=AxisType.Auto, tolerance=2e-5):
    """Enters make(mesh, normal) -> (function, arguments, specs) as a case of its name."""

    def enter(make):
        def built():
            devices = np.array(jax.devices()[: math.prod(shape)]).reshape(shape)
            mesh = Mesh(devices, names, axis_types=(kind,) * len(names))
            rng = np.random.default_rng(0)

            def normal(*shape, scale=0.3, dtype="float32"):
                return (rng.standard_normal(shape) * scale).astype(dtype)

            return mesh, *make(mesh, normal)

        CASES[make.__name__] = (built, weights, tolerance)
        return make

    return enter


def on(mesh, specs):
    """Specs with a mesh, in the pytree that they are in; None stays open."""
    is_leaf = lambda each: each is None or isinstance(each, P)  # noqa: E731
    return jax.tree.map(lambda s: s and NamedSharding(mesh, s), specs, is_leaf=is_leaf)


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def rms_norm(x, scale):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


@case((2, 4), ("dp", "tp"), ("params",))
def mlp(mesh, normal):
    def f(params, x):
        hidden = jax.nn.gelu(x @ params["up"]["w"] + params["up"]["b"])
        hidden = lax.with_sharding_constraint(hidden, NamedSharding(mesh, P("dp", "tp")))
        return x + hidden @ params["down"]["w"]

    params = {"up": {"w": normal(16, 32), "b": normal(32)}, "down": {"w": normal(32, 16)}}
    specs = {"up": {"w": P(None, "tp"), "b": P("tp")}, "down": {"w": P("tp", None)}}
    return f, (params, normal(8, 16)), (specs, P("dp"))


@case((2, 4), ("dp", "tp"), ("w",))
def attention(mesh, normal):
    def f(w, x, mask):
        q, k, v = (jnp.einsum("bsd,dhk->bhsk", x, w[name]) for name in "qkv")
        scores = jnp.einsum("bhsk,bhtk->bhst", q, k) / math.sqrt(q.shape[-1])
        causal = jnp.tril(jnp.ones((x.shape[1],) * 2, bool)) & mask[:, None, None, :]
        weights = jax.nn.softmax(jnp.where(causal, scores, -1e9), axis=-1)
        mixed = jnp.einsum("bhst,bhtk->bshk", weights, v)
        return jnp.einsum("bshk,hkd->bsd", mixed, w["o"])

    w = {name: normal(16, 4, 8) for name in "qkv"} | {"o": normal(4, 8, 16)}
    specs = dict.fromkeys("qkv", P(None, "tp")) | {"o": P("tp")}
    mask = np.array([[True] * 6 + [False] * 2, [True] * 8])
    return f, (w, normal(2, 8, 16), mask), (specs, P("dp"), P("dp"))


@case((2, 4), ("dp", "tp"), ("params",))
def llama_block(mesh, normal):
    heads, groups, size = 8, 4, 4

    def rotated(x, positions):
        angles = positions[:, None] / 10000.0 ** (jnp.arange(0, size, 2) / size)
        cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
        even, odd = x[..., ::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def f(params, x):
        inner = rms_norm(x, params["norm"])
        positions = jnp.arange(x.shape[1], dtype=jnp.float32)
        q = rotated((inner @ params["q"]).reshape(*x.shape[:2], heads, size), positions)
        k = rotated((inner @ params["k"]).reshape(*x.shape[:2], groups, size), positions)
        v = (inner @ params["v"]).reshape(*x.shape[:2], groups, size)
        k, v = (jnp.repeat(each, heads // groups, axis=2) for each in (k, v))
        scores = jnp.einsum("bshk,bthk->bhst", q, k) * size**-0.5
        causal = positions[:, None] >= positions[None, :]
        weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf), axis=-1)
        mixed = jnp.einsum("bhst,bthk->bshk", weights, v).reshape(*x.shape[:2], heads * size)
        x = x + mixed @ params["o"]
        inner = rms_norm(x, params["mlp_norm"])
        return x + (jax.nn.silu(inner @ params["gate"]) * (inner @ params["up"])) @ params["down"]

    wide, narrow = heads * size, groups * size
    columns, rows = P(None, "tp"), P("tp")
    shapes = {
        "norm": ((16,), P()),
        "mlp_norm": ((16,), P()),
        "q": ((16, wide), columns),
        "k": ((16, narrow), columns),
        "v": ((16, narrow), columns),
        "o": ((wide, 16), rows),
        "gate": ((16, 24), columns),
        "up": ((16, 24), columns),
        "down": ((24, 16), rows),
    }
    params = {name: normal(*shape) for name, (shape, _) in shapes.items()}
    specs = {name: spec for name, (_, spec) in shapes.items()}
    return f, (params, normal(2, 6, 16)), (specs, P("dp"))


@case((2, 4), ("dp", "ep"), ("params",))
def mixture_of_experts(mesh, normal):
    def f(params, x):
        gates, chosen = lax.top_k(jax.nn.softmax(x @ params["router"]), 2)
        gates = gates / gates.sum(-1, keepdims=True)
        routed = jax.nn.one_hot(chosen, params["up"].shape[0], dtype=x.dtype)
        shares = jnp.einsum("nk,nke->ne", gates, routed)
        hidden = jax.nn.silu(jnp.einsum("nd,edh->enh", x, params["up"]))
        hidden = lax.with_sharding_constraint(hidden, NamedSharding(mesh, P("ep", "dp")))
        return jnp.einsum("enh,ehd,ne->nd", hidden, params["down"], shares), chosen

    params = {"router": normal(12, 8), "up": normal(8, 12, 16), "down": normal(8, 16, 12)}
    specs = {"router": P(), "up": P("ep"), "down": P("ep")}
    return f, (params, normal(10, 12, scale=1)), (specs, P("dp"))


@case((4, 2), ("data", "model"), ("kernels", "dense"))
def conv_net(mesh, normal):
    def f(kernels, dense, images):
        x = lax.conv_general_dilated(
            images, kernels[0], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
        x = lax.conv_general_dilated(
            x,
            kernels[1],
            (1, 1),
            [(1, 1), (2, 2)],
            rhs_dilation=(1, 2),
            feature_group_count=2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "SAME")
        return jax.nn.log_softmax(x.mean((1, 2)) @ dense)

    kernels = [normal(3, 3, 3, 8), normal(3, 3, 4, 6)]
    specs = ([P(None, None, None, "model"), P()], P(), P("data"))
    return f, (kernels, normal(6, 5), normal(4, 12, 10, 3)), specs


@case((8,), ("x",), ("cell",))
def recurrent_by_scan(mesh, normal):
    def f(cell, sequence):
        def step(state, x):
            update = jax.nn.sigmoid(x @ cell["update"] + state @ cell["carry"])
            state = update * state + (1 - update) * jnp.tanh(x @ cell["new"])
            return state, (state.sum(-1), state[:, :2])

        start = jnp.zeros((sequence.shape[1], 16))
        last, (sums, firsts) = lax.scan(step, start, sequence, reverse=True)
        return last, sums, firsts

    cell = {"update": normal(12, 16), "carry": normal(16, 16), "new": normal(12, 16)}
    specs = dict.fromkeys(cell, P(None, "x"))
    return f, (cell, normal(5, 8, 12)), (specs, P())


@case((2, 4), ("dp", "tp"), ("table", "w"))
def loss_with_gradients(mesh, normal):
    def f(table, w, tokens, labels):
        def loss(table, w):
            hidden = jnp.tanh(table[tokens] @ w)
            logits = jax.nn.log_softmax(hidden @ table.T)
            return -jnp.take_along_axis(logits, labels[..., None], axis=-1).mean()

        return jax.value_and_grad(loss, argnums=(0, 1))(table, w)

    rng = np.random.default_rng(1)
    tokens, labels = (rng.integers(0, 24, (4, 6), dtype=np.int32) for _ in range(2))
    specs = (P("tp"), P(), P("dp"), P("dp"))
    return f, (normal(24, 16), normal(16, 16), tokens, labels), specs


@case((2, 2, 2), ("dp", "sp", "tp"), ("layers",), tolerance=1e-2)
def encoder_in_bfloat16(mesh, normal):
    @jax.jit
    def layer(x, w):
        inner = layer_norm(x.astype(jnp.float32), w["scale"], w["bias"]).astype(x.dtype)
        q, k, v = jnp.split((inner @ w["qkv"]).reshape(*x.shape[:2], 4, 12), 3, axis=-1)
        weights = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", q, k) / 2.0, axis=-1)
        mixed = jnp.einsum("bhst,bthk->bshk", weights, v).reshape(x.shape)
        x = x + mixed
        hidden = jax.nn.gelu(x @ w["up"], approximate=False)
        return x + hidden @ w["down"]

    def f(layers, x):
        for w in layers:
            x = layer(x, w)
        return x.astype(jnp.float32)

    def weights():
        half = jnp.bfloat16
        return {
            "scale": 1 + normal(16),
            "bias": normal(16),
            "qkv": normal(16, 48, scale=0.1, dtype=half),
            "up": normal(16, 32, scale=0.1, dtype=half),
            "down": normal(32, 16, scale=0.1, dtype=half),
        }

    spec = {"scale": P(), "bias": P(), "qkv": P(None, "tp"), "up": P(None, "tp"), "down": P("tp")}
    x = normal(2, 4, 16, dtype=jnp.bfloat16)
    return f, ([weights(), weights()], x), ([spec, spec], P("dp", "sp"))


@case((2, 2, 2), ("a", "b", "c"), kind=AxisType.Explicit)
def einsums_along_three_axes(mesh, normal):
    def f(x, w, v):
        y = jnp.einsum("bik,bkj->bji", x, w, out_sharding=P("a", "c", "b"))
        y = jax.sharding.reshard(y, P(("c", "a"), None, "b"))
        z = jnp.einsum("bji,ij->bj", y, v, out_sharding=P(("c", "a"), None))
        return jnp.flip(jax.nn.relu(z), 0), y.astype(jnp.int32)

    specs = (P("a", "b", None), P("a", None, "c"), P("b", None))
    return f, (normal(4, 6, 10, scale=3), normal(4, 10, 8), normal(6, 8)), specs


@case((4, 2), ("dp", "tp"))
def loops_and_branches(mesh, normal):
    def f(matrix, x, kind):
        def more(carry):
            count, _, change = carry
            return (count < 50) & (change > 1e-3)

        def step(carry):
            count, vector, _ = carry
            new = matrix @ vector
            new = new / jnp.abs(new).max()
            return count + 1, new, jnp.abs(new - vector).max()

        count, vector, _ = lax.while_loop(more, step, (0, x, jnp.float32(1)))
        branches = [lambda v: v * 2, lambda v: jnp.cumsum(v), lambda v: jnp.sort(v)[::-1]]
        vector = lax.switch(kind, branches, vector)
        return count, vector, jnp.argmax(vector), lax.fori_loop(0, 3, lambda i, v: v + i, vector)

    matrix = np.abs(normal(8, 8)) + np.eye(8, dtype="float32")
    specs = (P("dp", "tp"), P("tp"), P())
    return f, (matrix, np.ones(8, "float32"), np.int32(2)), specs
