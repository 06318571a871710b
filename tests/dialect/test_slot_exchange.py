"""Type inference of dispatch_slots and combine_slots (experts with slots), and its errors."""

import re

import pytest
import tvm
from tests.meshes import meshes
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R


@I.ir_module
class Slots:
    I.module_global_infos(meshes((2, 4)))

    @R.function
    def main(
        x: R.DTensor((16, 8), "float16", "mesh[0]", "S[0], S[0]"),
        mask: R.DTensor((16, 12), "float16", "mesh[0]", "S[0], S[0]"),
    ):
        with R.dataflow():
            s = R.dist.dispatch_slots(x, mask, expert_axes=[1], choices=2)
            z = R.dist.combine_slots(s, mask, expert_axes=[1], choices=2)
            R.output(s, z)
        return (s, z)


def test_types():
    slots, tokens = Slots["main"].ret_ty.fields
    assert [str(each.placement).strip('"') for each in (slots, tokens)] == ["R, S[0]", "S[0], S[0]"]
    shapes = [tuple(map(int, each.tensor_ty.shape)) for each in (slots, tokens)]
    assert shapes == [(12, 8), (16, 8)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("expert_axes=[1]", "expert_axes=[2]", "are not sharded along mesh axis 2"),
        ("expert_axes=[1]", "expert_axes=[]", "needs expert_axes"),
        (", expert_axes=[1]", "", "needs attribute expert_axes"),
        ("mask: R.DTensor((16, 12)", "mask: R.DTensor((8, 12)", "does not fit the mask"),
        ('(16, 12), "float16"', '(16, 12), "float32"', "are of different types"),
        (
            '(16, 12), "float16", "mesh[0]", "S[0], S[0]"',
            '(16, 12), "float16", "mesh[0]", "S[1], S[0]"',
            "are not placed as its expert_axes say",
        ),
        ("x: R.DTensor((16, 8),", "x: R.DTensor((16, 8, 1),", "takes a DTensor of 2 dimensions"),
    ],
)
def test_what_is_refused(old, new, message):
    text = Slots.script()
    assert old in text
    text = re.sub(r"(\n +\w+): .* = ", r"\1 = ", text.replace(old, new))
    with pytest.raises(Exception, match=message):
        tvm.script.from_source(text)
