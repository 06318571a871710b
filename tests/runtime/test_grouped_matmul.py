"""The runtime's grouped_matmul, which multiplies each row by the matrix of its expert."""

import numpy as np
import pytest
import tvm_ffi

GROUPED = tvm_ffi.get_global_func("distir.runtime.grouped_matmul")


def grouped(rows, experts, counts, transposed=False):
    columns = experts.shape[1 if transposed else 2]
    out = np.full((rows.shape[0], columns), np.nan, rows.dtype)
    tensors = [tvm_ffi.from_dlpack(each) for each in (rows, experts, counts)]
    GROUPED(*tensors, int(transposed), 1.0, tvm_ffi.from_dlpack(out))
    return out


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_behind_those_that_count_are_zeros(dtype, transposed):
    rng = np.random.default_rng(0)
    counts = np.array([[2, 0, 1], [1, 0, 3]], "int64")
    rows = rng.standard_normal((12, 5)).astype(dtype)
    experts = rng.standard_normal((3, 5, 4)).astype(dtype)
    given = np.ascontiguousarray(experts.transpose(0, 2, 1)) if transposed else experts
    got = grouped(rows, given, counts, transposed)
    expert_of = np.repeat(np.arange(3), counts.sum(axis=0))
    wanted = np.einsum("td,tdf->tf", rows[:7].astype("float64"), experts[expert_of])
    limit = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(got[:7], wanted, rtol=limit, atol=limit)
    assert not got[7:].any()


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.full((2, 3), 3, "int64"), "counts state more rows than the 12 that there are"),
        (np.full((2, 3), -1, "int64"), "counts state more rows"),
        (np.ones((2, 4), "int64"), "do not fit together"),
        (np.ones((2, 3), "int32"), "do not fit together"),
    ],
)
def test_counts_that_do_not_fit(counts, message):
    with pytest.raises(ValueError, match=message):
        grouped(np.ones((12, 5), "float32"), np.ones((3, 5, 4), "float32"), counts)
