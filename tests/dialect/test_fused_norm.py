"""Errors of type inference of all_reduce_add_rms_norm."""

import pytest
import tvm
from tvm import relax
from tvm.relax.distributed import DTensorType, Placement
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh((2, 4), ("x", "y")).device_mesh


def tensor(placement, shape=(8, 16), dtype="float32"):
    ty = DTensorType(relax.TensorType(shape, dtype), MESH, Placement.from_text(placement))
    return relax.Var("v", ty)


def infer(x, residual, weight, placement="S[0], R", **attrs):
    attrs = {"reduce_axes": [1], "reduction": "sum", "epsilon": 1e-5, **attrs}
    call = R.dist.all_reduce_add_rms_norm(x, residual, weight, MESH, placement, **attrs)
    return relax.BlockBuilder().normalize(call).ty


ROWS = tensor("S[0], R")
WEIGHT = tensor("R, R", (16,))


def test_gives_the_sum_and_the_norm_where_the_sum_is():
    ty = infer(ROWS, ROWS, WEIGHT)
    assert len(ty.fields) == 2
    for field in ty.fields:
        tvm.ir.assert_structural_equal(field, ROWS.ty)


@pytest.mark.parametrize(
    ("arguments", "attrs", "message"),
    [
        ((ROWS, tensor("R, R"), WEIGHT), {}, "the residual is"),
        ((ROWS, tensor("S[0], R", (8, 8)), WEIGHT), {}, "x is .* residual is"),
        ((ROWS, ROWS, tensor("R, R", (8,))), {}, "not as long as the last dimension"),
        ((ROWS, ROWS, tensor("R, R", (16,), "float16")), {}, "not as long as the last dimension"),
        ((ROWS, ROWS, tensor("R, S[0]", (16,))), {}, "needs the last dimension whole"),
        ((ROWS, ROWS, WEIGHT), {"reduction": "max"}, 'is a sum, got reduction "max"'),
        ((ROWS, ROWS, WEIGHT), {"reduce_axes": [0]}, "does not lead from"),
        ((ROWS, ROWS, WEIGHT), {"reduce_axes": []}, "does not lead from"),
        ((ROWS, ROWS, WEIGHT), {"epsilon": None}, "needs attribute epsilon"),
    ],
)
def test_refuses(arguments, attrs, message):
    with pytest.raises((ValueError, TypeError), match=message):
        infer(*arguments, **attrs)


def test_refuses_a_sharded_last_dimension():
    columns = tensor("S[1], R")
    with pytest.raises(ValueError, match="needs the last dimension whole"):
        infer(columns, columns, WEIGHT, "S[1], R")


def test_refuses_doubles():
    x = tensor("S[0], R", dtype="float64")
    with pytest.raises(TypeError, match="takes float32, float16 or bfloat16"):
        infer(x, x, tensor("R, R", (16,), "float64"))
