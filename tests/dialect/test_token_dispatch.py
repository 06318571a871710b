"""Type inference of operators that send tokens to their experts, and its errors."""

import re

import pytest
import tvm
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Routed:
    I.module_global_infos(meshes((2, 4)))

    @R.function
    def main(
        x: R.DTensor((16, 8), "float16", "mesh[0]", "S[0], S[0]"),
        ids: R.DTensor((16,), "int32", "mesh[0]", "S[0], S[0]"),
        w: R.DTensor((12, 8, 6), "float16", "mesh[0]", "R, S[0]"),
    ):
        with R.dataflow():
            t = R.dist.dispatch_tokens(x, ids, num_experts=12, expert_axes=[1])
            rows = t[0]
            counts = t[1]
            y = R.dist.grouped_matmul(rows, w, counts, transposed=False, out_dtype="float32")
            z = R.dist.combine_tokens(y, ids, counts, expert_axes=[1])
            R.output(rows, counts, y, z)
        return (rows, counts, y, z)


def test_types():
    rows, counts, y, z = Routed["main"].ret_ty.fields
    placed = {str(each.placement).strip('"') for each in (rows, counts, y, z)}
    assert placed == {"S[0], S[0]"}
    shapes = [tuple(map(int, each.tensor_ty.shape)) for each in (rows, counts, y, z)]
    assert shapes == [(64, 8), (32, 3), (64, 6), (16, 6)]
    dtypes = [str(each.tensor_ty.dtype) for each in (rows, counts, y, z)]
    assert dtypes == ["float16", "int64", "float32", "float32"]


def replaced(old, new):
    """The program with another text in it, and without the types of its variables."""
    text = Routed.script()
    assert old in text
    return re.sub(r"(\n +\w+): .* = ", r"\1 = ", text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("num_experts=12", "num_experts=10", "10 experts do not divide into 4 shards"),
        ("expert_axes=[1]", "expert_axes=[2]", "are not sharded along mesh axis 2"),
        ("expert_axes=[1]", "expert_axes=[]", "needs expert_axes"),
        ("expert_axes=[1], ", "", "needs attribute expert_axes"),
        ('ids: R.DTensor((16,), "int32"', 'ids: R.DTensor((16,), "float32"', "int32 or int64"),
        ("ids: R.DTensor((16,)", "ids: R.DTensor((8,)", "are not as many as the rows"),
        (
            'ids: R.DTensor((16,), "int32", "mesh[0]", "S[0], S[0]")',
            'ids: R.DTensor((16,), "int32", "mesh[0]", "R, S[0]")',
            "both are sharded alike",
        ),
        ("R, S[0]", "S[1], S[0]", "needs the contracted dimension sharded alike"),
        ("transposed=False", "transposed=True", "do not fit the experts"),
        ("transposed=False", "transposed=2.5", "needs attribute transposed, True or False"),
    ],
)
def test_what_is_refused(old, new, message):
    tvm.ir.assert_structural_equal(tvm.script.from_source(Routed.script()), Routed)
    with pytest.raises(Exception, match=message):
        tvm.script.from_source(replaced(old, new))


@I.ir_module
class Copies:
    """All devices along the second axis have the same rows."""

    I.module_global_infos(meshes((2, 4)))

    @R.function
    def main(
        x: R.DTensor((16, 8), "float16", "mesh[0]", "S[0], R"),
        ids: R.DTensor((16,), "int32", "mesh[0]", "S[0], R"),
        w: R.DTensor((12, 8, 6), "float16", "mesh[0]", "R, S[0]"),
        first: R.DTensor((4,), "int64", "mesh[0]", "R, S[0]"),
    ):
        with R.dataflow():
            t = R.dist.select_tokens(x, ids, first, num_experts=12, expert_axes=[1])
            rows = t[0]
            counts = t[1]
            y = R.dist.grouped_matmul(rows, w, counts, transposed=False, out_dtype="float32")
            z = R.dist.place_tokens(y, ids, counts, first, expert_axes=[1])
            s = R.dist.all_reduce(z, "mesh[0]", "S[0], R", reduce_axes=[1], reduction="sum")
            R.output(rows, counts, y, s)
        return (rows, counts, y, s)


def test_types_of_what_is_selected():
    rows, counts, y, s = Copies["main"].ret_ty.fields
    placed = [str(each.placement).strip('"') for each in (rows, counts, y, s)]
    assert placed == ["S[0], S[0]", "S[0], S[0]", "S[0], S[0]", "S[0], R"]
    shapes = [tuple(map(int, each.tensor_ty.shape)) for each in (rows, counts, y, s)]
    assert shapes == [(64, 8), (32, 3), (64, 6), (16, 6)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"S[0], R")', '"S[0], S[0]")', "are sharded along mesh axis 1, along which the experts"),
        ("first: R.DTensor((4,)", "first: R.DTensor((8,)", "needs one first expert of each device"),
        ("num_experts=12", "num_experts=10", "10 experts do not divide into 4 shards"),
        ('"int64", "mesh[0]", "R, S[0]"', '"int64", "mesh[0]", "R, R"', "the first experts"),
    ],
)
def test_what_is_refused_of_copies(old, new, message):
    text = Copies.script()
    assert old in text
    text = re.sub(r"(\n +\w+): .* = ", r"\1 = ", text.replace(old, new))
    with pytest.raises(Exception, match=message):
        tvm.script.from_source(text)
