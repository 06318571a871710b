"""Attention with fewer heads of keys than devices: groups of devices have copies of a head."""

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx

TOKENS, WIDTH, SIZE = 6, 16, 4
PAST = 3
QUERIES_ONLY = {"wq": (None, "tp"), "wo": ("tp", None)}
TABLES = [
    function(np.linspace(0, 3, TOKENS * SIZE)).reshape(1, TOKENS, 1, SIZE).astype("float32")
    for function in (np.cos, np.sin)
]
NAMED = {"w(q|k|v)": (None, "tp"), "b(k|v)": ("tp",), "wo": ("tp", None)}
"""As plans of Hugging Face say it of all models: keys and values by columns, too."""


def shapes(heads, key_heads, is_cached=False):
    inner, keys = heads * SIZE, key_heads * SIZE
    weights = {"wq": (WIDTH, inner), "wk": (WIDTH, keys), "wv": (WIDTH, keys), "wo": (inner, WIDTH)}
    biases = {"bk": (keys,), "bv": (keys,)}
    cache = dict.fromkeys(("ck", "cv"), (2, key_heads, PAST, SIZE)) if is_cached else {}
    return {"x": (2, TOKENS, WIDTH), **cache, **weights, **biases}


def attention(heads, key_heads, repeats, is_cached=False, dtype="float32"):
    """main(x, wq, wk, wv, wo, bk, bv); keys and values are repeated as ``repeats`` says.

    Of "rotated", queries and keys are turned by their positions; "operator" is R.nn.attention of
    what is repeated, "grouped" of fewer heads of keys. With caches, ck and cv behind x, the result
    has what is in them now, too.
    """
    sizes = shapes(heads, key_heads, is_cached)
    params = {name: relax.Var(name, relax.TensorType(s, dtype)) for name, s in sizes.items()}
    length = TOKENS + PAST if is_cached else TOKENS
    builder = relax.BlockBuilder()
    emit = builder.emit

    def heads_of(which, count):
        wide = emit(op.matmul(params["x"], params["w" + which]))
        if which != "q":
            wide = emit(op.add(wide, params["b" + which]))
        apart = emit(op.reshape(wide, (2, TOKENS, count, SIZE)))
        if repeats == "rotated" and which != "v":
            apart = rotated(apart)
        each = emit(op.permute_dims(apart, [0, 2, 1, 3]))
        return emit(op.concat([params["c" + which], each], 2)) if "c" + which in params else each

    def rotated(each):
        halves = emit(op.split(each, 2, -1))
        first, second = (emit(relax.TupleGetItem(halves, at)) for at in (0, 1))
        turned = emit(op.concat([emit(op.negative(second)), first], -1))
        cosines, sines = (relax.const(table) for table in TABLES)
        return emit(op.add(emit(op.multiply(each, cosines)), emit(op.multiply(turned, sines))))

    def mixed_heads(q, k, v):
        if repeats in ("operator", "grouped"):
            if repeats == "operator":
                k, v = repeated(k), repeated(v)
            back = [emit(op.permute_dims(each, [0, 2, 1, 3])) for each in (q, k, v)]
            return emit(op.nn.attention(*back, scale=1.0))
        scores = emit(op.matmul(q, emit(op.permute_dims(repeated(k), [0, 1, 3, 2]))))
        mixed = emit(op.matmul(emit(op.nn.softmax(scores)), repeated(v)))
        return emit(op.permute_dims(mixed, [0, 2, 1, 3]))

    def repeated(each):
        times = heads // key_heads
        if times == 1:
            return each
        if repeats != "broadcast":
            return emit(op.repeat(each, times, 1))
        shape = (2, key_heads, times, length, SIZE)
        copies = emit(op.broadcast_to(emit(op.expand_dims(each, 2)), shape))
        return emit(op.reshape(copies, (2, heads, length, SIZE)))

    with builder.function("main", list(params.values())):
        with builder.dataflow():
            q, k, v = heads_of("q", heads), heads_of("k", key_heads), heads_of("v", key_heads)
            joined = emit(op.reshape(mixed_heads(q, k, v), (2, TOKENS, heads * SIZE)))
            result = emit(op.matmul(joined, params["wo"]))
            output = builder.emit_output(relax.Tuple([result, k, v]) if is_cached else result)
        builder.emit_func_output(output)
    return builder.get()


def by_numpy(heads, key_heads, x, *others, rotates=False):
    cached, (wq, wk, wv, wo, bk, bv) = others[:-6], others[-6:]

    def apart(columns, count, past=()):
        each = columns.reshape(2, TOKENS, count, SIZE).transpose(0, 2, 1, 3)
        return np.concatenate([*past, each], 2)

    def turned(each):
        cosines, sines = (table.transpose(0, 2, 1, 3) for table in TABLES)
        first, second = np.split(each, 2, -1)
        return each * cosines + np.concatenate([-second, first], -1) * sines if rotates else each

    q = turned(apart(x @ wq, heads))
    k = turned(apart(x @ wk + bk, key_heads, cached[:1]))
    v = apart(x @ wv + bv, key_heads, cached[1:])
    times = heads // key_heads
    scores = np.exp(q @ np.repeat(k, times, 1).transpose(0, 1, 3, 2))
    mixed = scores / scores.sum(-1, keepdims=True) @ np.repeat(v, times, 1)
    result = mixed.transpose(0, 2, 1, 3).reshape(2, TOKENS, heads * SIZE) @ wo
    return [result, k, v] if cached else [result]


def arguments(sizes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(s) / s[0] ** 0.5).astype(dtype) for s in sizes.values()]


@pytest.mark.parametrize("plan", [QUERIES_ONLY, NAMED], ids=["queries", "named"])
@pytest.mark.parametrize("repeats", ["repeat", "broadcast"])
@pytest.mark.parametrize(
    ("heads", "key_heads", "tp", "held"),
    [
        (8, 2, 4, 1),  # pairs of devices have one head
        (8, 2, 8, 1),
        (12, 2, 6, 1),  # groups of three
        (8, 1, 4, 1),  # one head for all
        (12, 4, 4, 1),
        (9, 3, 3, 1),
        (8, 2, 3, 2),  # heads in shards of different sizes: all of them
        (8, 2, 5, 2),
        (8, 2, 6, 2),
        (8, 2, 7, 2),
        (8, 1, 3, 1),
        (12, 4, 6, 2),  # three devices have two heads for six of queries
        (12, 4, 8, 4),
    ],
)
def test_devices_share_heads(session_of, heads, key_heads, tp, held, plan, repeats):
    mesh = dx.Mesh(tp=tp)
    lowered = dx.lower(dx.annotate(attention(heads, key_heads, repeats), mesh, plan))
    (reduced,) = dx.analysis.collectives(lowered)
    assert (reduced.kind, reduced.count) == ("all_reduce", 1)
    assert reduced.bytes_per_device <= 2 * (tp - 1) * -(-2 * TOKENS * WIDTH * 4 // tp)
    local = {param.name: int(param.ty.shape[-1]) for param in lowered["main"].params}
    assert {local[name] for name in ("wk", "wv", "bk", "bv")} == {held * SIZE}
    assert local["wq"] == -(-heads // tp) * SIZE
    args = arguments(shapes(heads, key_heads))
    got = session_of(mesh.shape).load(dx.build(lowered, QUICK))["main"](*args).numpy()
    (wanted,) = by_numpy(heads, key_heads, *args)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("form", "heads", "key_heads", "tp", "held"),
    [
        ("rotated", 8, 2, 4, 1),
        ("rotated", 8, 2, 5, 2),
        ("rotated", 8, 1, 3, 1),
        ("operator", 8, 2, 4, 1),
        ("operator", 8, 2, 5, 2),
        ("operator", 8, 1, 4, 1),
        ("grouped", 8, 2, 4, 1),
        ("grouped", 8, 1, 3, 1),
        ("grouped", 8, 4, 3, 2),
        ("grouped", 16, 8, 5, 2),
    ],
)
def test_other_ways_to_write_it(session_of, form, heads, key_heads, tp, held):
    mesh = dx.Mesh(tp=tp)
    lowered = dx.lower(dx.annotate(attention(heads, key_heads, form), mesh, NAMED))
    assert [each.kind for each in dx.analysis.collectives(lowered)] == ["all_reduce"]
    local = {param.name: int(param.ty.shape[-1]) for param in lowered["main"].params}
    assert local["wk"] == local["wv"] == held * SIZE
    args = arguments(shapes(heads, key_heads))
    got = session_of(mesh.shape).load(dx.build(lowered, QUICK))["main"](*args).numpy()
    (wanted,) = by_numpy(heads, key_heads, *args, rotates=form == "rotated")
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float16", 1e-2)])
@pytest.mark.parametrize(
    ("heads", "key_heads", "tp", "held"), [(8, 2, 4, 1), (8, 2, 3, 2), (8, 1, 4, 1), (8, 2, 8, 1)]
)
def test_caches_are_shared_as_heads_are(session_of, heads, key_heads, tp, held, dtype, tolerance):
    """Nothing but the sum of the results is sent, and a device keeps the heads that it uses."""
    mesh = dx.Mesh(tp=tp)
    mod = attention(heads, key_heads, "broadcast", True, dtype)
    lowered = dx.lower(dx.annotate(mod, mesh, NAMED))
    assert [each.kind for each in dx.analysis.collectives(lowered)] == ["all_reduce"]
    local = {param.name: list(map(int, param.ty.shape)) for param in lowered["main"].params}
    assert local["ck"] == local["cv"] == [2, held, PAST, SIZE]
    args = arguments(shapes(heads, key_heads, True), dtype)
    got = session_of(mesh.shape).load(dx.build(lowered, QUICK))["main"](*args)
    wanted = by_numpy(heads, key_heads, *(each.astype("float64") for each in args))
    for left, right in zip(got, wanted, strict=True):
        np.testing.assert_allclose(left.numpy(), right, rtol=tolerance, atol=tolerance)


def test_other_halves_of_heads_are_as_stated(session_of):
    """Of queries, too, there are fewer heads than devices: nobody has a whole one."""
    mesh = dx.Mesh(tp=4)
    lowered = dx.lower(dx.annotate(attention(2, 2, "repeat"), mesh, NAMED))
    assert int(lowered["main"].params[2].ty.shape[1]) == 2
    args = arguments(shapes(2, 2))
    got = session_of(mesh.shape).load(dx.build(lowered, QUICK))["main"](*args).numpy()
    np.testing.assert_allclose(got, by_numpy(2, 2, *args)[0], rtol=1e-4, atol=1e-4)
