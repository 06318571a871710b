"""Type inference of operators on pairs of a token and an expert, and its errors."""

import re

import pytest
import tvm
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Pairs:
    I.module_global_infos(meshes((2, 4)))

    @R.function
    def main(
        x: R.DTensor((16, 6), "float16", "mesh[0]", "S[0], S[0]"),
        b: R.DTensor((1, 12, 6), "float16", "mesh[0]", "R, S[1]"),
        m: R.DTensor((16, 12), "float32", "mesh[0]", "S[0], S[1]"),
    ):
        with R.dataflow():
            g = R.dist.gather_rows(x, m, expert_axes=[1], choices=2)
            t = R.dist.select_pairs(b, m)
            z = R.dist.place_pairs(t[0], m)
            s = R.dist.scatter_rows(z, m, expert_axes=[1], choices=2)
            R.output(g, t, z, s)
        return (g, t, z, s)


def test_types():
    gathered, selected, placed, scattered = Pairs["main"].ret_ty.fields
    rows, counts = selected.fields
    for each, shape, placement in (
        (gathered, (16, 6), "S[0], R"),
        (rows, (192, 6), "S[0], S[0]"),
        (counts, (8, 3), "S[0], S[0]"),
        (placed, (16, 6), "S[0], R"),
        (scattered, (16, 6), "S[0], S[0]"),
    ):
        assert tuple(map(int, each.tensor_ty.shape)) == shape
        assert str(each.placement).strip('"') == placement


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("expert_axes=[1]", "expert_axes=[0]", "needs expert_axes"),
        (", expert_axes=[1]", "", "needs attribute expert_axes"),
        ("x: R.DTensor((16, 6)", "x: R.DTensor((24, 6)", "does not fit the weights"),
        ("b: R.DTensor((1, 12, 6)", "b: R.DTensor((1, 16, 6)", "does not fit the weights"),
        ('(16, 12), "float32"', '(16, 12), "int32"', "weights are floats"),
        ('"R, S[1]"', '"R, R"', "are not placed as each other"),
        ('(16, 6), "float16", "mesh[0]", "S[0], S[0]"', '(16, 6), "float16", "mesh[0]", "S[0], R"',
         "are not placed as each other"),
        ("b: R.DTensor((1, 12, 6),", "b: R.DTensor((12, 6),", "takes a DTensor of 3 dimensions"),
    ],
)  # fmt: skip
def test_what_is_refused(old, new, message):
    text = Pairs.script()
    assert old in text
    text = re.sub(r"(\n +\w+): .* = ", r"\1 = ", text.replace(old, new))
    with pytest.raises(Exception, match=message):
        tvm.script.from_source(text)
