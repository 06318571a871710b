"""Attention with fewer heads of keys than devices: groups of devices have copies of a head."""

import numpy as np
import pytest
from tests.targets import QUICK
from tvm import relax
from tvm.relax import op

import distir_ext as dx

TOKENS, WIDTH, SIZE = 6, 16, 4
QUERIES_ONLY = {"wq": (None, "tp"), "wo": ("tp", None)}


def shapes(heads, key_heads):
    inner, keys = heads * SIZE, key_heads * SIZE
    weights = {"wq": (WIDTH, inner), "wk": (WIDTH, keys), "wv": (WIDTH, keys), "wo": (inner, WIDTH)}
    return {"x": (2, TOKENS, WIDTH), **weights}


def attention(heads, key_heads, repeats):
    """main(x, wq, wk, wv, wo); keys and values are repeated as ``repeats`` says."""
    sizes = shapes(heads, key_heads)
    params = {name: relax.Var(name, relax.TensorType(s, "float32")) for name, s in sizes.items()}
    builder = relax.BlockBuilder()
    emit = builder.emit

    def heads_of(weight, count):
        wide = emit(op.matmul(params["x"], params[weight]))
        apart = emit(op.reshape(wide, (2, TOKENS, count, SIZE)))
        each = emit(op.permute_dims(apart, [0, 2, 1, 3]))
        if count == heads:
            return each
        times = heads // count
        if repeats == "repeat":
            return emit(op.repeat(each, times, 1))
        shape = (2, count, times, TOKENS, SIZE)
        copies = emit(op.broadcast_to(emit(op.expand_dims(each, 2)), shape))
        return emit(op.reshape(copies, (2, heads, TOKENS, SIZE)))

    with builder.function("main", list(params.values())):
        with builder.dataflow():
            q, k, v = heads_of("wq", heads), heads_of("wk", key_heads), heads_of("wv", key_heads)
            scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2]))))
            mixed = emit(op.matmul(emit(op.nn.softmax(scores)), v))
            back = emit(op.permute_dims(mixed, [0, 2, 1, 3]))
            joined = emit(op.reshape(back, (2, TOKENS, heads * SIZE)))
            result = builder.emit_output(op.matmul(joined, params["wo"]))
        builder.emit_func_output(result)
    return builder.get()


def by_numpy(heads, key_heads, x, wq, wk, wv, wo):
    def apart(weight, count):
        return (x @ weight).reshape(2, TOKENS, count, SIZE).transpose(0, 2, 1, 3)

    times = heads // key_heads
    q, k, v = apart(wq, heads), *(np.repeat(apart(w, key_heads), times, 1) for w in (wk, wv))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2))
    mixed = scores / scores.sum(-1, keepdims=True) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(2, TOKENS, heads * SIZE) @ wo


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
    ],
)
def test_devices_share_heads(session_of, heads, key_heads, tp, held, repeats):
    mesh = dx.Mesh(tp=tp)
    mod = dx.annotate(attention(heads, key_heads, repeats), mesh, QUERIES_ONLY)
    lowered = dx.lower(mod)
    assert [each.kind for each in dx.analysis.collectives(lowered)] == ["all_reduce"]
    local = {param.name: int(param.ty.shape[1]) for param in lowered["main"].params[1:4]}
    assert local["wk"] == local["wv"] == held * SIZE
    rng = np.random.default_rng(0)
    args = [
        (rng.standard_normal(s) / s[0] ** 0.5).astype("float32")
        for s in shapes(heads, key_heads).values()
    ]
    got = session_of(mesh.shape).load(dx.build(lowered, QUICK))["main"](*args).numpy()
    wanted = by_numpy(heads, key_heads, *args)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
