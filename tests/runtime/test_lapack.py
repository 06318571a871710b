"""The runtime's LAPACK functions: errors for bad operands, and stacks of any size."""

import numpy as np
import pytest
import tvm_ffi

import distir_ext  # noqa: F401


def tensor(array):
    return tvm_ffi.from_dlpack(np.ascontiguousarray(array))


def call(name, *given):
    arrays = [each if isinstance(each, str) else tensor(each) for each in given]
    tvm_ffi.get_global_func(f"distir.lapack.{name}")(*arrays)
    return [np.from_dlpack(each) for each in arrays if not isinstance(each, str)]


def test_sizes_and_infos():
    square = np.array([[[4.0, 2.0], [2.0, 3.0]], [[1.0, 2.0], [2.0, 1.0]]])
    _, factor, info = call("potrf", square, "L", np.zeros((2, 2, 2)), np.zeros(2, "int32"))
    np.testing.assert_allclose(np.tril(factor[0]), np.linalg.cholesky(square[0]))
    assert list(info) == [0, 2]  # the second is not positive definite, from its second row on
    for shape in ((0, 3, 3), (2, 0, 0)):
        empty = np.zeros(shape, "float32")
        call("potrf", empty, "L", empty.copy(), np.zeros(shape[0], "int32"))


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.zeros(3), "L", np.zeros(3), np.zeros(1, "int32")), "two dimensions, not 1"),
        ((np.zeros((2, 3)), "L", np.zeros((2, 3)), np.zeros(1, "int32")), "not square"),
        ((np.eye(2), "X", np.eye(2), np.zeros(1, "int32")), '"X" are no options'),
        ((np.eye(2), "", np.eye(2), np.zeros(1, "int32")), '"" are no options'),
        ((np.eye(2), "L", np.eye(3), np.zeros(1, "int32")), "9 elements, not 4"),
        ((np.eye(2), "L", np.eye(2), np.zeros(1, "int64")), "integers are int32"),
        ((np.eye(2), "L", np.eye(2, dtype="float32"), np.zeros(1, "int32")), "is float32"),
        ((np.eye(2, dtype="int32"), "L", np.eye(2), np.zeros(1, "int32")), "is int32"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ValueError, match=f"distir.lapack.potrf: .*{message}"):
        call("potrf", *given)
