"""Attention of which key heads serve several query heads, through dx.build, against NumPy."""

import numpy as np
import pytest
import tvm
from tests.pipelines.target.test_flash_attention import Case, error_of
from tests.targets import QUICK
from tvm import relax

import distir_ext as dx
from distir_ext.compile.kernels.cuda.flash_attention import takes
from distir_ext.compile.kernels.legalizations.attention import as_products

BATCH, LENGTH, HEADS, KEY_HEADS, DEPTH = 2, 6, 8, 2, 4
QUERY, KEY = (BATCH, LENGTH, HEADS, DEPTH), (BATCH, LENGTH, KEY_HEADS, DEPTH)
MESH = dx.Mesh((2,), ("tp",))
TOLERANCE = {"float32": 1e-6, "float16": 3e-3}


def program(dtype, causal, has_bias):
    shapes = {"q": QUERY, "k": KEY, "v": KEY}
    if has_bias:
        shapes["b"] = (BATCH, HEADS, LENGTH, LENGTH)
    params = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            call = relax.op.nn.attention(*params, causal_mask="TopLeft" if causal else None)
            result = builder.emit_output(call)
        builder.emit_func_output(result)
    return builder.get()


def expected(query, key, value, bias=0.0, *, causal):
    key, value = (np.repeat(x, HEADS // KEY_HEADS, axis=2) for x in (key, value))
    scores = np.einsum("bshd,bthd->bhst", query, key) / DEPTH**0.5 + bias
    if causal:
        scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhst,bthd->bshd", weights / weights.sum(-1, keepdims=True), value)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        ("float32", {"q": (None,) * 4}),
        ("float32", {"q": ("tp", None, None, None)}),
        ("float16", {"q": (None, None, "tp", None), "k": (None, None, "tp", None)}),
        ("float16", {"q": (None, "tp", None, None)}),
    ],
)
def test_query_heads_read_their_own_key_head(dtype, plan, causal, has_bias):
    mod = program(dtype, causal, has_bias)
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal([int(size) for size in param.ty.shape]).astype(dtype)
        for param in mod["main"].params
    ]
    with dx.Session(MESH) as session:
        result = session.load(dx.build(dx.annotate(mod, MESH, plan), QUICK))["main"](*inputs)
    wide = [x.astype("float64") for x in inputs]
    np.testing.assert_allclose(
        result.numpy(), expected(*wide, causal=causal), atol=TOLERANCE[dtype], rtol=0
    )


CASES = [
    Case("float32"),
    Case("float32", causal="TopLeft", key_heads=1, queries=5, keys=9),
    Case("float16", causal="BottomRight", queries=9, keys=5, heads=4, depth=20),
    Case("float32", bias=(True, False, True, True), causal="BottomRight", heads=4),
]


@pytest.mark.parametrize("symbolic", [(), ("batch", "queries", "keys")], ids=["static", "symbolic"])
def test_attention_as_products(symbolic):
    """GPUs compute so what has no kernel of its own."""
    for case in CASES[: 3 if symbolic else 4]:  # a bias has no symbolic size here
        mod = as_products(lambda _: False)(case.program(symbolic))
        assert "nn.attention" not in mod.script()
        inputs = list(case.arrays().values())
        annotated = dx.annotate(mod, MESH, {"query": (None, None, None, None)})
        with dx.Session(MESH) as session:
            result = session.load(dx.build(annotated, QUICK))["main"](*inputs).numpy()
        assert error_of(case, result) < {"float32": 1e-6, "float16": 2.0**-11}[case.dtype]


def test_attention_of_gpus_without_a_kernel_of_its_own():
    mod = as_products(takes(tvm.target.Target({"kind": "cuda", "arch": "sm_90"})))
    assert "nn.attention" in mod(Case().program()).script()
    assert "nn.softmax" in mod(Case(dtype="float32").program()).script()
