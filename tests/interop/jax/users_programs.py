"""Programs as users of JAX write them, in plain jax.numpy and lax: functions of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CASES = {}


def case(*shapes):
    """Enters a function; an operand is a shape of floats, or an array."""

    def enter(function):
        CASES[function.__name__] = (function, shapes)
        return function

    return enter


def arguments_of(name):
    """The case's function and its arrays, which are the same each time."""
    function, operands = CASES[name]
    rng = np.random.default_rng(7)
    return function, [
        rng.standard_normal(each).astype("float32") if isinstance(each, tuple) else each
        for each in operands
    ]


def _heads(x, w, heads):
    return jnp.einsum("bsd,dhk->bhsk", x, w.reshape(w.shape[0], heads, -1))


@case((3, 7, 8), (8, 8), (8, 4), (8, 4), (8, 8))
def grouped_query_attention(x, wq, wk, wv, wo):
    q, k, v = _heads(x, wq, 4), _heads(x, wk, 2), _heads(x, wv, 2)
    k, v = jnp.repeat(k, 2, 1), jnp.repeat(v, 2, 1)
    scores = q @ k.swapaxes(-1, -2) / 2**0.5
    mask = jnp.arange(7)[:, None] >= jnp.arange(7)
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    return (weights @ v).transpose(0, 2, 1, 3).reshape(3, 7, 8) @ wo


@case((2, 9, 4), (2, 9, 4), (2, 9, 4))
def attention_in_a_window(q, k, v):
    i = jnp.arange(9)
    near = jnp.abs(i[:, None] - i) <= 2
    scores = jnp.where(near, jnp.einsum("bid,bjd->bij", q, k), -1e9)
    return jnp.einsum("bij,bjd->bid", jax.nn.softmax(scores), v)


@case((4, 6, 3), (4, 6, 3), (4, 6, 3))
def linear_attention_by_scan(q, k, v):
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1

    def step(state, each):
        q, k, v = each
        state = state + jnp.einsum("bk,bv->bkv", k, v)
        return state, jnp.einsum("bk,bkv->bv", q, state)

    state, out = lax.scan(
        step, jnp.zeros((4, 3, 3)), tuple(each.swapaxes(0, 1) for each in (q, k, v))
    )
    return out.swapaxes(0, 1), state


@case((2, 4, 6), (2, 5, 6), (5, 2))
def alibi_and_bias_by_position(q, k, slopes):
    distance = jnp.abs(jnp.arange(4)[:, None] - jnp.arange(5)).astype("float32")
    scores = jnp.einsum("bid,bjd->bij", q, k) - distance * slopes.mean()
    return jax.nn.log_softmax(scores, axis=1)


@case((3, 6, 8))
def rotary_embedding(x):
    half = x.shape[-1] // 2
    angles = jnp.arange(6)[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1
    )


@case((4, 6, 10), (10, 5), (5,))
def group_norm(x, w, b):
    groups = x.reshape(4, 6, 2, 5)
    mean = groups.mean((1, 3), keepdims=True)
    variance = groups.var((1, 3), keepdims=True)
    return ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) @ w + b


@case((6, 5), (5,), (5,))
def batch_norm_with_gradients(x, scale, bias):
    def loss(x, scale, bias):
        normal = (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-5)
        return jnp.sum(jnp.tanh(normal * scale + bias) ** 3)

    return jax.grad(loss, (0, 1, 2))(x, scale, bias)


@case((4, 6), (6, 9), (9, 6))
def gated_feed_forward_with_gradients(x, up, down):
    def loss(up, down):
        gate, value = jnp.split(jnp.concatenate([x @ up, x @ (up * 2)], -1), 2, -1)
        return jnp.mean((jax.nn.silu(gate) * value @ down - x) ** 2)

    return jax.value_and_grad(loss, (0, 1))(up, down)


@case((5, 4, 3), (3, 12), (4, 12))
def lstm_by_scan(x, wx, wh):
    def step(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ wx[:, :12] + h @ wh[:3, :12], 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((4, 3))
    return lax.scan(step, (zero, zero), x)


@case((6, 4, 5), (5, 5))
def recurrence_with_gradients(x, w):
    def loss(w):
        h, _ = lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros((4, 5)), x)
        return jnp.sum(h**2)

    return jax.grad(loss)(w)


@case((3, 7, 7, 2), (3, 3, 2, 4), (4, 5))
def convolutions_with_gradients(x, kernel, w):
    def loss(kernel, w):
        y = lax.conv_general_dilated(
            x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = lax.reduce_window(
            jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return jnp.mean((y.mean((1, 2)) @ w) ** 2)

    return jax.grad(loss, (0, 1))(kernel, w)


@case((2, 6, 8), (3, 1, 8))
def depthwise_convolution_with_gradients(x, kernel):
    def loss(x, kernel):
        y = lax.conv_general_dilated(
            x, kernel, (1,), [(2, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
            feature_group_count=8,
        )  # fmt: skip
        return jnp.sum(y**2)

    return jax.grad(loss, (0, 1))(x, kernel)


@case((2, 5, 5, 4), (3, 3, 4, 6))
def transposed_convolution(x, kernel):
    return lax.conv_transpose(x, kernel, (2, 2), "SAME")


@case((2, 8, 6, 3))
def average_and_resized_images(x):
    pooled = lax.reduce_window(x, 0.0, lax.add, (1, 3, 2, 1), (1, 2, 2, 1), "SAME")
    return jax.image.resize(x, (2, 4, 9, 3), "bilinear"), pooled


@case((6, 11), np.array([3, 10, 0, 7, 7, 2], "int32"))
def cross_entropy_with_smoothing(logits, labels):
    def loss(logits):
        wanted = jax.nn.one_hot(labels, 11) * 0.9 + 0.1 / 11
        return -(wanted * jax.nn.log_softmax(logits)).sum(-1).mean()

    return jax.value_and_grad(loss)(logits)


@case((6, 11), np.array([3, 10, 0, 7, 7, 2], "int32"))
def chosen_logits_and_ignored_labels(logits, labels):
    chosen = jnp.take_along_axis(logits, labels[:, None], -1)[:, 0]
    kept = labels != 7
    losses = jnp.where(kept, jax.nn.logsumexp(logits, -1) - chosen, 0)
    return losses.sum() / kept.sum(), (logits.argmax(-1) == labels).mean()


@case((4, 6), (4, 6))
def losses_of_pairs(x, y):
    similarity = x @ y.T / 0.07
    contrast = -jnp.diag(jax.nn.log_softmax(similarity)).mean()
    difference = jnp.abs(x - y)
    huber = jnp.where(difference < 1, difference**2 / 2, difference - 0.5)
    return contrast, huber.mean(), optax_cosine(x, y)


def optax_cosine(x, y):
    return (x * y).sum(-1) / (jnp.linalg.norm(x, axis=-1) * jnp.linalg.norm(y, axis=-1) + 1e-8)


@case((5, 7), np.array([3, 4], "uint32"))
def dropout_and_noise(x, key):
    first, second = jax.random.split(key)
    kept = jax.random.bernoulli(first, 0.8, x.shape)
    return jnp.where(kept, x / 0.8, 0) + 0.1 * jax.random.normal(second, x.shape)


@case(np.array([0, 9], "uint32"))
def initial_weights(key):
    a, b, c = jax.random.split(key, 3)
    return (
        jax.nn.initializers.he_normal()(a, (6, 5)),
        jax.random.truncated_normal(b, -2, 2, (7,)),
        jax.random.randint(c, (9,), 0, 17),
    )


@case((4, 9), np.array([1, 5], "uint32"))
def sampled_tokens(logits, key):
    kept, positions = lax.top_k(logits, 3)
    chosen = jax.random.categorical(key, kept)
    return jnp.take_along_axis(positions, chosen[:, None], -1)


@case((4, 9))
def nucleus_of_probabilities(logits):
    ordered = jnp.sort(logits, -1)[:, ::-1]
    total = jnp.cumsum(jax.nn.softmax(ordered), -1)
    last = jnp.sum(total < 0.7, -1, keepdims=True)
    threshold = jnp.take_along_axis(ordered, last, -1)
    return jnp.where(logits >= threshold, logits, -jnp.inf)


@case((10, 3), np.array([2, 0, 1, 2, 4, 4, 0, 1, 2, 3], "int32"))
def messages_of_a_graph(x, owner):
    total = jax.ops.segment_sum(x, owner, 5)
    greatest = jax.ops.segment_max(x, owner, 5)
    return total, greatest[owner] - x, jnp.zeros((5, 3)).at[owner].min(x)


@case((6, 4), np.array([5, 0, 3], "int32"), (3, 4))
def updated_rows(x, rows, values):
    return x.at[rows].set(values), x.at[rows, 1].add(2.0), x.at[-1, ::2].multiply(3), x[rows - 6]


@case((3, 8, 4), (3, 1, 4), np.int32(5))
def cache_of_a_decoder(cache, new, position):
    cache = lax.dynamic_update_slice(cache, new, (0, position, 0))
    return cache, lax.dynamic_slice_in_dim(cache, position - 3, 4, 1)


@case((4, 8, 3), (4, 3), np.array([1, 7, 0, 4], "int32"))
def cache_with_a_position_per_sample(cache, new, positions):
    rows = jnp.arange(4)
    cache = cache.at[rows, positions].set(new)
    return cache, cache[rows, positions - 1]


@case((6, 5, 4), (4, 3, 8), (4, 8))
def experts_by_one_hot(x, up, router):
    tokens = x.reshape(30, 4)
    gates = jax.nn.softmax(tokens @ router[:, :3])
    weights, chosen = lax.top_k(gates, 2)
    dispatch = (jax.nn.one_hot(chosen, 3) * weights[..., None]).sum(1)
    return jnp.einsum("te,td,deh->th", dispatch, tokens, up).reshape(6, 5, 8)


@case((4, 5, 6), (6, 5, 3), (3, 4))
def einsums(a, b, c):
    return (
        jnp.einsum("abc,cbd,da->bd", a, b, c),
        jnp.einsum("abc->cb", a),
        jnp.einsum("abb->ab", a[:, :, :5]),
        jnp.tensordot(a, b, ((1, 2), (1, 0))),
    )


@case((5, 6), np.array([7, -3, 12, 0, 5, -8], "int32"))
def integers_and_bits(x, n):
    whole = (x * 4).astype("int32")
    return whole // 3, whole % n, n >> 1, (n & 6) ^ 1, n.astype("uint8"), jnp.sign(n) * abs(n)


@case((5, 6))
def halves(x):
    half = x.astype("bfloat16")
    y = half @ half.T
    return y, jnp.cumsum(x.astype("float16"), 0), jnp.sort(half, 0), half.max(1)


@case((7, 4))
def statistics(x):
    return jnp.median(x, 0), jnp.quantile(x, 0.3, axis=1), jnp.std(x, 0, ddof=1), jnp.cov(x.T)


@case((7, 4))
def shifted_rows(x):
    return (
        jnp.roll(x, (1, -2), (0, 1)), jnp.pad(x, ((1, 2), (0, 1)), mode="reflect"),
        x[::-1, 1::2], jnp.diff(x, axis=0), jnp.tile(x, (2, 1)), jnp.flip(x, 1),
    )  # fmt: skip


@case((5, 5), (5,))
def steps_of_a_solver(a, b):
    a = a @ a.T + 5 * jnp.eye(5)

    def step(state):
        x, r, p, i = state
        ap = a @ p
        alpha = (r @ r) / (p @ ap)
        new = r - alpha * ap
        return x + alpha * p, new, new + (new @ new) / (r @ r) * p, i + 1

    start = (jnp.zeros(5), b, b, 0)
    return lax.while_loop(lambda s: (s[1] @ s[1] > 1e-8) & (s[3] < 20), step, start)[0]


@case((6, 4), (6, 4), (6, 4), (6, 4), np.int32(3))
def step_of_adam(p, g, m, v, count):
    scale = jnp.minimum(1.0, 1.0 / (jnp.sqrt(jnp.sum(g**2)) + 1e-6))
    g = g * scale
    m, v, count = 0.9 * m + 0.1 * g, 0.999 * jnp.abs(v) + 0.001 * g**2, count + 1
    rate = m / (1 - 0.9**count) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return p - 1e-3 * (rate + 0.01 * p), m, v, count


@case((4, 6), (6, 6), (6, 6), (6, 6))
def layers_by_scan_and_remat(x, *layers):
    stacked = jnp.stack(layers)

    def loss(stacked):
        @jax.checkpoint
        def layer(x, w):
            return x + jax.nn.gelu(x @ w), None

        return jnp.mean(lax.scan(layer, x, stacked)[0] ** 2)

    return jax.grad(loss)(stacked)


@case((4, 3), (3, 5))
def jacobians(x, w):
    def f(x):
        return jnp.tanh(x @ w)

    return (
        jax.vmap(jax.jacrev(f))(x),
        jax.jvp(f, (x,), (x * 2,))[1],
        jax.hessian(lambda x: f(x).sum())(x[0]),
    )


@case((5, 4), np.bool_(True))
def branches(x, flag):
    return (
        lax.cond(flag, lambda x: x * 2, lambda x: x - 1, x),
        lax.switch(jnp.int32(x[0, 0] > 0), [jnp.sin, jnp.cos], x),
        lax.fori_loop(0, 4, lambda i, x: x.at[i].add(i * 1.0), x),
        lax.select_n(x > 0, x, -x),
    )


@case((3, 8), (3, 8))
def complex_rotations_by_pairs(x, angle):
    pairs = x.reshape(3, 4, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    c, s = jnp.cos(angle[:, ::2]), jnp.sin(angle[:, ::2])
    return jnp.stack([a * c - b * s, a * s + b * c], -1).reshape(3, 8)


@case((6, 7))
def special_functions(x):
    positive = jnp.abs(x) + 0.1
    return (
        lax.erf(x), lax.lgamma(positive), lax.digamma(positive), jnp.log1p(positive),
        jnp.expm1(x), jax.nn.gelu(x, approximate=False), jnp.arctan2(x, positive), jnp.cbrt(x),
    )  # fmt: skip


@case((6, 7))
def not_a_number(x):
    holes = jnp.where(x > 0.5, jnp.nan, x)
    return (
        jnp.nanmean(holes, 0), jnp.nan_to_num(holes, nan=3.0), jnp.isfinite(holes).all(),
        holes.max(1), jnp.nanargmax(holes[:, :1] * 0 + x, 1), jnp.argsort(holes, 0),
    )  # fmt: skip


@case((4, 16), (16, 3))
def patches_of_images(x, w):
    images = x.reshape(4, 4, 4, 1)
    patches = images.reshape(4, 2, 2, 2, 2, 1).transpose(0, 1, 3, 2, 4, 5).reshape(4, 4, 4)
    token = jnp.broadcast_to(w[:1, :1], (4, 1, 4))
    return jnp.concatenate([token, patches], 1)[:, 0] @ w[:4], patches.mean(1)


@case((6, 5), (3, 4))
def nearest_codes(x, codes):
    codes = jnp.pad(codes, ((0, 0), (0, 1)))
    distance = ((x[:, None] - codes) ** 2).sum(-1)
    index = distance.argmin(1)
    chosen = codes[index]
    straight = x + lax.stop_gradient(chosen - x)
    return straight, index, jnp.bincount(index, length=3)


@case((4, 9, 3), (4, 9, 3))
def scan_of_a_recurrence(decay, x):
    decay = jax.nn.sigmoid(decay)

    def join(a, b):
        return a[0] * b[0], b[0] * a[1] + b[1]

    return lax.associative_scan(join, (decay, x), axis=1)[1]
