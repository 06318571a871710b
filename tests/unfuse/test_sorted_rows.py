"""SplitFused removes sorts of rows that are put back into their order afterwards."""

import pytest
import tvm
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

MESH = dx.Mesh(ep=2)


def split(mod, plan):
    return dx.transform.SplitFused()(dx.annotate(mod, MESH, plan))


def operators(mod):
    """The names of the operators of ``main``, but annotations."""
    names = [
        binding.value.op.name.removeprefix("relax.")
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]
    return [name for name in names if name != "dist.annotate_sharding"]


@I.ir_module
class Sorted:
    @R.function
    def main(
        x: R.Tensor((6, 4), "float32"),
        ids: R.Tensor((12,), "int32"),
        w: R.Tensor((3, 4, 5), "float32"),
    ):
        with R.dataflow():
            perm = R.argsort(ids, dtype="int32")
            chosen = R.take(w, R.take(ids, perm, axis=0), axis=0)
            rows = R.expand_dims(
                R.take(x, R.floor_divide(perm, R.const(2, "int32")), axis=0), axis=1
            )
            h = R.nn.silu(R.matmul(rows, chosen))
            flat = R.squeeze(h, axis=[1])
            y = R.take(flat, R.argsort(perm, dtype="int32"), axis=0)
            R.output(y)
        return y


@I.ir_module
class AlongRows:
    """Computes along the sorted rows between the two sorts."""

    @R.function
    def main(x: R.Tensor((12, 4), "float32"), ids: R.Tensor((12,), "int32")):
        with R.dataflow():
            perm = R.argsort(ids, dtype="int32")
            h = R.nn.softmax(R.take(x, perm, axis=0), axis=0)
            y = R.take(h, R.argsort(perm, dtype="int32"), axis=0)
            R.output(y)
        return y


def test_nothing_is_sorted():
    with dx.pass_reports() as reports:
        mod = split(Sorted, {"x": ("ep", None)})
    assert reports[-1].done == {"sorted rows": 1}
    found = operators(mod)
    assert found.count("take") == 1
    assert not {"argsort", "floor_divide"} & set(found)
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)


def replaced(*changes):
    text = Sorted.script()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return tvm.script.from_source(text)


@pytest.mark.parametrize(
    "change",
    [  # put back by another order
        ("R.argsort(perm, axis=-1, descending=False", "R.argsort(perm, axis=-1, descending=True"),
        ("R.argsort(perm,", "R.argsort(ids,"),
    ],
)
def test_what_stays(change):
    assert "argsort" in operators(split(replaced(change), {"x": ("ep", None)}))


def test_what_does_not_go_row_by_row():
    assert "argsort" in operators(split(AlongRows, {"x": ("ep", None)}))


def test_rows_that_are_used_sorted_too():
    """They would be computed twice."""
    results = ('-> R.Tensor((12, 5), dtype="float32")', ""), ("return y", "return (y, h)")
    mod = replaced(("R.output(y)", "R.output(y, h)"), *results)
    assert "argsort" in operators(split(mod, {"x": ("ep", None)}))
