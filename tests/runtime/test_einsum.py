"""The runtime's einsum equals NumPy's, with OpenBLAS and without it."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tvm
import tvm_ffi

from distir_ext.native.machine import blas_library

EQUATIONS = [
    ("ab,bc->ac", (5, 7), (7, 3)),
    ("ab,cb->ac", (65, 70), (33, 70)),
    ("ba,cb->ac", (70, 65), (33, 70)),
    ("ab,bc->ca", (65, 70), (70, 33)),
    ("abc,cd->abd", (3, 65, 70), (70, 33)),
    ("abc,acd->abd", (1, 65, 70), (4, 70, 33)),
    ("bskgd,btkd->bkgst", (2, 40, 2, 3, 16), (2, 40, 2, 16)),
    ("bkgst,btkd->bskgd", (2, 2, 3, 40, 40), (2, 40, 2, 16)),
    ("abcd,bd->ca", (6, 5, 7, 8), (5, 8)),
    ("abdc,bd->ca", (6, 5, 7, 8), (5, 7)),
    ("a,ab->b", (33,), (33, 50)),
    ("ab,b->a", (33, 50), (50,)),
    ("ba,b->a", (33, 50), (33,)),
    ("a,a->", (33,), (33,)),
    ("ab,b->a", (33, 50), (1,)),
    ("ab,bc->ac", (33, 1), (1, 20)),
    ("ab,bc->ac", (33, 0), (0, 20)),
    ("ab,bc->ac", (0, 3), (3, 20)),
    ("ab,cd->ac", (33, 7), (20, 5)),
    ("abcd,dcbe->ae", (5, 6, 7, 8), (8, 7, 6, 9)),
    ("badc,ecbd->dae", (5, 6, 7, 8), (9, 8, 5, 7)),
    ("ab,bc->ac", (300, 200), (200, 250)),
    ("abc,acd->abd", (9, 130, 70), (9, 70, 33)),
    # Few rows or columns: whole registers and what is left of them, with strides of all kinds.
    ("ab,cb->ac", (8, 131), (133, 131)),
    ("ba,cb->ca", (70, 5), (33, 70)),
    ("ab,bc->ac", (7, 70), (70, 150)),
    ("ba,bc->ca", (40, 3), (40, 83)),
    ("ab,cb->ac", (1, 300), (70, 300)),
    ("bkgd,btkd->bkgt", (2, 3, 3, 37), (2, 67, 3, 37)),
    ("bkgt,btkd->bkgd", (2, 3, 7, 67), (2, 67, 3, 83)),
    ("aebf,cfeb->ac", (6, 4, 20, 5), (50, 5, 4, 20)),
]
# Relative to the largest value: sums of up to 336 products, and one rounding to 16 bits.
TOLERANCE = {"float32": 1e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 8e-3}


def einsum(a, b, subscripts, shape, dtype):
    out = tvm.runtime.tensor(np.full(shape, np.nan, dtype))
    function = tvm_ffi.get_global_func("distir.runtime.einsum")
    function(tvm.runtime.tensor(a), tvm.runtime.tensor(b), subscripts, out)
    return out.numpy()


def expected(a, b, subscripts):
    """NumPy's, with operands of size 1 stretched also where a label is summed over."""
    operands, _ = subscripts.split("->")
    sizes = {}
    for labels, array in zip(operands.split(","), (a, b), strict=True):
        for label, size in zip(labels, array.shape, strict=True):
            if sizes.get(label, 1) == 1:
                sizes[label] = size
    stretched = [
        np.broadcast_to(array.astype("float64"), [sizes[label] for label in labels])
        for labels, array in zip(operands.split(","), (a, b), strict=True)
    ]
    return np.einsum(subscripts, *stretched)


def check(subscripts, left, right, dtype):
    generator = np.random.default_rng(0)
    numpy_dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    a, b = (generator.standard_normal(shape).astype(numpy_dtype) for shape in (left, right))
    wanted = expected(a, b, subscripts)
    found = einsum(a, b, subscripts, wanted.shape, numpy_dtype).astype("float64")
    assert found.shape == wanted.shape
    if wanted.size:
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("subscripts", "left", "right"), EQUATIONS)
def test_equals_numpy(subscripts, left, right, dtype):
    check(subscripts, left, right, dtype)


def test_the_check_sees_a_wrong_equation():
    generator = np.random.default_rng(0)
    a = generator.standard_normal((8, 8), "float32")
    found = einsum(a, a, "ab,bc->ac", (8, 8), "float32")
    assert np.abs(found - expected(a, a, "ab,cb->ac")).max() > 0.1


def test_result_of_another_dtype():
    a = np.random.default_rng(0).standard_normal((40, 50)).astype("float16")
    found = einsum(a, a, "ab,cb->ac", (40, 40), "float32")
    wanted = a.astype("float64") @ a.astype("float64").T
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_integers_of_8_bits_are_exact():
    """Also sums of more products than float32 has exactly, over several axes; int32 wraps."""
    generator = np.random.default_rng(0)
    dtypes = ("int8", "uint8")
    for left, right in [(a, b) for a in dtypes for b in dtypes]:
        for subscripts, *shapes in [*EQUATIONS, ("abc,acbd->d", (9, 300, 70), (9, 70, 300, 5))]:
            a, b = (
                generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape).astype(
                    dtype
                )
                for dtype, shape in zip((left, right), shapes, strict=True)
            )
            wanted = expected(a, b, subscripts)
            found = einsum(a, b, subscripts, wanted.shape, "int32")
            wanted = wanted.astype("int64").astype("int32")  # wraps around
            assert (found == wanted).all(), (left, right, subscripts, shapes)
    most = np.full((3, 5000), 255, "uint8")
    assert (einsum(most, most, "ab,cb->ac", (3, 3), "int32") == 5000 * 255 * 255).all()


def test_threads_at_the_same_time():
    failures = []

    def work():
        try:
            for _ in range(20):
                check("abc,cd->abd", (3, 65, 70), (70, 33), "float32")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize(
    ("subscripts", "message"),
    [
        ("ab", 'einsum "ab": it is not of the form'),
        ("abc,bd->ad", "a of shape [4, 6] has not 3 dimensions"),
        ("ab,ac->bc", 'b of shape [6, 4] has 6 for "a", which has 4'),
        ("aa,ab->b", 'a has "a" more than once'),
    ],
)
def test_errors(subscripts, message):
    a, b = np.zeros((4, 6), "float32"), np.zeros((6, 4), "float32")
    with pytest.raises(ValueError, match=re.escape(message)):
        einsum(a, b, subscripts, (6, 4), "float32")


def test_dtypes_that_do_not_fit():
    with pytest.raises(ValueError, match="float64"):
        einsum(np.zeros((4, 4), "float64"), np.zeros((4, 4), "float32"), "ab,bc->ac", (4, 4), "f4")


def test_without_the_library_loops_give_the_same_and_say_so_once():
    program = """
import sys
sys.modules["scipy_openblas32"] = None
import test_einsum
from distir_ext.native.machine import blas_library
assert blas_library.LIBRARY is None
for subscripts, left, right in test_einsum.EQUATIONS:
    for dtype in test_einsum.TOLERANCE:
        test_einsum.check(subscripts, left, right, dtype)
"""
    folder = Path(__file__).parent
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}",
        "DISTIR_EXT_BLAS": "openblas",
    }
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("pip install scipy-openblas32") == 1


def test_this_environment_has_the_library():
    assert blas_library.LIBRARY is not None
