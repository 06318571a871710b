"""Products of matrices by cuBLASLt, or what stands in for it, against NumPy in float64."""

from __future__ import annotations

import itertools
import re

import ml_dtypes
import numpy as np
import pytest
import tvm
from tests.gpu.conftest import HOST, run_alone
from tvm import relax
from tvm.relax import op

import distir_ext as dx
from distir_ext.compile.gpu_products import dispatch_products
from distir_ext.gpu_check.programs import programs
from distir_ext.native.machine import nvidia as _nvidia

BUILTIN = "distir.runtime.cublaslt"


def permuted(*axes):
    return lambda x: op.permute_dims(x, axes or None)


def matmul(x, w):
    return op.matmul(x, w)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


# By name: the shapes of the arguments, the program, what NumPy computes, and what the call has: its
# subscripts and its epilogue.
CASES = {
    "as they are": ([(5, 48), (48, 7)], matmul, np.matmul, "ab,bc->ac", ""),
    "right transposed": (
        [(5, 48), (7, 48)],
        lambda x, w: op.matmul(x, op.permute_dims(w)),
        lambda x, w: x @ w.T,
        "ab,cb->ac",
        "",
    ),
    "all transposed": (
        [(48, 5), (7, 48)],
        lambda x, w: op.permute_dims(op.matmul(op.permute_dims(x), op.permute_dims(w))),
        lambda x, w: (x.T @ w.T).T,
        "ab,ca->cb",
        "",
    ),
    "one row": (
        [(1, 48), (40, 48)],
        lambda x, w: op.matmul(x, op.permute_dims(w)),
        lambda x, w: x @ w.T,
        "ab,cb->ac",
        "",
    ),
    "one column": ([(40, 48), (48, 1)], matmul, np.matmul, "ab,bc->ac", ""),
    "vectors": ([(48,), (48, 40)], matmul, np.matmul, "a,ab->b", ""),
    "a vector behind": ([(40, 48), (48,)], matmul, np.matmul, "ab,b->a", ""),
    "rows of two dimensions": ([(3, 5, 48), (48, 7)], matmul, np.matmul, "abc,cd->abd", ""),
    "batches": ([(3, 5, 48), (3, 48, 7)], matmul, np.matmul, "abc,acd->abd", ""),
    "broadcast batches": ([(1, 5, 48), (3, 48, 7)], matmul, np.matmul, "abc,acd->abd", ""),
    "batches of two strides": (
        [(2, 5, 3, 16), (2, 7, 3, 16)],
        lambda q, k: op.matmul(permuted(0, 2, 1, 3)(q), permuted(0, 2, 3, 1)(k)),
        lambda q, k: np.einsum("bqhd,bkhd->bhqk", q, k),
        "abcd,aecd->acbe",
        "",
    ),
    "leading dimensions above the rows": (
        [(5, 3, 48), (48, 7)],
        lambda x, w: permuted(1, 0, 2)(op.matmul(x, w)),
        lambda x, w: (x @ w).transpose(1, 0, 2),
        "abc,cd->bad",
        "",
    ),
    "bias and relu": (
        [(5, 48), (48, 7), (7,)],
        lambda x, w, b: op.nn.relu(op.add(op.matmul(x, w), b)),
        lambda x, w, b: np.maximum(x @ w + b, 0),
        "ab,bc->ac",
        "bias relu",
    ),
    "bias of one column": (
        [(40, 48), (48, 1), (1,)],
        lambda x, w, b: op.add(b, op.matmul(x, w)),
        lambda x, w, b: x @ w + b,
        "ab,bc->ac",
        "bias",
    ),
    "gelu": (
        [(5, 48), (48, 7)],
        lambda x, w: op.nn.gelu_tanh(op.matmul(x, w)),
        lambda x, w: gelu(x @ w),
        "ab,bc->ac",
        "gelu_tanh",
    ),
    "residual": (
        [(3, 5, 48), (7, 48), (3, 5, 7)],
        lambda x, w, r: op.add(r, op.matmul(x, op.permute_dims(w))),
        lambda x, w, r: r + x @ w.T,
        "abc,dc->abd",
        "add",
    ),
    "all terms": (
        [(2, 5, 48), (2, 48, 7), (7,), (2, 5, 7)],
        lambda x, w, b, r: op.nn.gelu_tanh(op.add(op.add(op.matmul(x, w), r), b)),
        lambda x, w, b, r: gelu(x @ w + r + b),
        "abc,acd->abd",
        "bias add gelu_tanh",
    ),
}

DTYPES = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-20, "float64": 2**-48}


def module(cases, dtype):
    """One function that computes all cases, and returns a tuple."""
    builder = relax.BlockBuilder()
    count = itertools.count()
    arguments = [
        [relax.Var(f"p{next(count)}", relax.TensorType(shape, dtype)) for shape in shapes]
        for shapes, *_ in cases
    ]
    with builder.function("main", [each for some in arguments for each in some]):
        with builder.dataflow():
            results = [
                builder.emit(emit(*some))
                for (_, emit, *_), some in zip(cases, arguments, strict=True)
            ]
            out = builder.emit_output(tuple(results))
        builder.emit_func_output(out)
    return builder.get()


def build(mod, target, **options):
    plan = {"p0": (None,) * mod["main"].params[0].ty.ndim}
    return dx.build(dx.annotate(mod, dx.Mesh(x=1), plan), target=target, **options)


def arrays_of(cases, dtype):
    """Arguments of each case."""
    rng = np.random.default_rng(0)
    kind = getattr(ml_dtypes, dtype, dtype)
    return [[rng.standard_normal(shape).astype(kind) for shape in shapes] for shapes, *_ in cases]


def count(what):
    """Counts what the stand-in did since this was asked last."""
    return HOST.cuda_on_host_count(what.encode())


@pytest.fixture
def cublaslt():
    """Skips a test where cuBLASLt is not installed."""
    if not _nvidia.has_cublaslt():
        pytest.skip("cuBLASLt is not installed")


@pytest.mark.parametrize("dtype", DTYPES)
def test_products(cublaslt, target, worker_kind, open_session, dtype):
    names = [name for name in CASES if dtype != "float64" or CASES[name][4] in ("", "add")]
    cases = [CASES[name] for name in names]
    mod = module(cases, dtype)
    text = dispatch_products()(mod).script()
    for name, (*_, subscripts, epilogue) in zip(names, cases, strict=True):
        assert f'R.str("{subscripts}"), R.str("{epilogue}")' in text, (name, text)
    assert text.count(BUILTIN) == len(cases)
    assert "permute_dims" not in text, text
    exe = build(mod, target)
    arguments = arrays_of(cases, dtype)
    with open_session(1) as session:
        main = session.load(exe)["main"]
        flat = [each for some in arguments for each in some]
        found = main(*flat)
        if HOST is not None and worker_kind == "threads":
            for what in ("product", "heuristic", "legacy stream"):
                count(what)
            found = main(*flat)
            assert count("product") == len(cases) + 1  # a batch of two strides is two
            assert [count("heuristic"), count("legacy stream")] == [0, 0]
        found = [np.asarray(each.numpy()).astype("float64") for each in found]
    for name, case, result, given in zip(names, cases, found, arguments, strict=True):
        expected = case[2](*[each.astype("float64") for each in given])
        assert result.shape == expected.shape, name
        error = np.linalg.norm(result - expected) / np.linalg.norm(expected)
        assert error <= DTYPES[dtype], (name, error)


def test_symbolic_sizes_and_sums_of_nothing(cublaslt, target, worker_kind, open_session):
    """Rows are as many as each call has; a product over nothing is 0."""
    n, k = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("k", "int64")
    cases = [
        ([(n, 48), (48, 40)], matmul),
        ([(4, k), (6, k)], lambda x, w: op.matmul(x, op.permute_dims(w))),
    ]
    exe = build(module(cases, "float32"), target)
    rng = np.random.default_rng(0)
    with open_session(1) as session:
        main = session.load(exe)["main"]
        for rows, depth in ((3, 5), (1, 1), (0, 7), (9, 0)):
            shapes = [(rows, 48), (48, 40), (4, depth), (6, depth)]
            x, w, y, v = (rng.standard_normal(shape, "float32") for shape in shapes)
            for found, expected in zip(main(x, w, y, v), (x @ w, y @ v.T), strict=True):
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_what_stays_with_tvm():
    """Products that cuBLASLt does not compute stay, and the report says why."""
    cases = [
        ([(8, 16), (16, 32)], matmul, "int32"),
        ([(4, 8, 16), (4, 16, 32)], lambda x, w: op.einsum((x, w), "abc,acd->bda"), "float16"),
        (
            [(32, 8, 20, 16), (32, 16, 20, 7)],
            lambda x, w: op.einsum((x, w), "abcd,adce->acbe"),
            "float16",
        ),
    ]
    reasons = {}
    for shapes, emit, dtype in cases:
        mod = module([(shapes, emit)], dtype)
        with dx.pass_reports() as reports:
            assert BUILTIN not in dispatch_products()(mod).script()
        reasons |= reports[-1].skipped["products"]
    assert set(reasons) == {
        "dtypes that cuBLASLt lacks",
        "a batch dimension is innermost",
        "too many batches of several strides",
    }
    row = module([([(1, 48), (48, 40)], matmul)], "float16")
    assert BUILTIN in dispatch_products()(row).script()


def test_whether_a_program_has_cublaslt_is_decided_when_it_is_built(monkeypatch):
    mod = module([([(8, 16), (16, 32)], matmul)], "float16")
    cuda = {"kind": "cuda", "arch": "sm_90"}
    asked = {**cuda, "libs": ["cublaslt"]}
    for has, target, blas, expected in (
        (True, cuda, True, True),
        (True, cuda, False, False),
        (False, cuda, True, False),
        (False, asked, True, True),
        (False, asked, False, False),
    ):
        monkeypatch.setattr(_nvidia, "has_cublaslt", lambda has=has: has)
        text = build(mod, target, blas=blas).as_text()
        assert (BUILTIN in text) == ("distir_libraries" in text) == expected


_ONE_PRODUCT = """
from tests.gpu.test_products import build, matmul, module
HOST.cuda_on_host_blocking(1)
target = {"kind": "llvm", "target_device_type": 2, "libs": ["cublaslt"]}
exe = build(module([([(8, 16), (16, 32)], matmul)], "float32"), target)
runner.workers.close()
x, w = np.ones((8, 16), "float32"), np.ones((16, 32), "float32")
def run():
    try:
        with dx.Session(1, ccl="nccl") as session:
            main = session.load(exe)["main"]
            print("loaded", end=" ")
            print(main(x, w)[0].numpy()[0, 0])
    except Exception as error:
        print(str(error).replace(chr(10), " "))
FILE = "DISTIR_EXT_CUBLASLT_LIBRARY"
there = os.environ[FILE]
os.environ[FILE] = "/nowhere/libcublasLt.so"
run()
os.environ |= {FILE: there, "CUDA_ON_HOST_CUBLASLT": "110800"}
run()
os.environ["CUDA_ON_HOST_CUBLASLT"] = "131000"
for fault in (b"refused product", b"wrong product", b""):
    HOST.cuda_on_host_fault(fault)
    run()
"""


def test_a_library_that_lacks_or_refuses_is_an_error_with_its_name():
    """At load time: none, one that is too old; when it is called: a product that it refuses."""
    done = run_alone(_ONE_PRODUCT)
    missing, old, refused, wrong, right = done.stdout.splitlines()
    for line, parts in (
        (missing, ("cuBLASLt cannot be loaded", "/nowhere", "distir-ext[cuda]", "blas=False")),
        (old, ("cuBLASLt 11.8.0 of", "is too old: 12.0.0 or later", "distir-ext[cuda]")),
        (refused, ("loaded", "cuBLASLt 13.10.0 of", "8 x 16", "32 columns", "not supported")),
    ):
        for part in parts:
            assert part in line, (part, line, done.stderr)
    assert not missing.startswith("loaded")
    assert not old.startswith("loaded")
    assert (wrong, right) == ("loaded 17.0", "loaded 16.0")


def test_launches_of_a_decode_step_are_counted():
    """A layer of Llama 3 8B: seven products and seven kernels."""
    mod = programs("float16", dx.Mesh(tp=1), names="decode")
    asked = {"kind": "cuda", "arch": "sm_90", "libs": ["cublaslt"]}
    called = re.findall(r"call  (\S+)", dx.build(mod, asked).as_text())
    launched = [name for name in called if not name.startswith("vm.")]
    assert launched.count(BUILTIN) == 7
    assert len(launched) == 14
