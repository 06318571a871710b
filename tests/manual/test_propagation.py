"""Automatic axes cross the border of a region behind its manual axes; manual ones stay outside."""

from __future__ import annotations

import pytest
import tvm
from tests.manual.programs import round_trip, written
from tvm import relax
from tvm.relax.distributed import DTensorType

import distir_ext as dx

op = relax.op
MESH = dx.Mesh(a=2, b=2, c=2)


def shardings(mod):
    """The shardings of a propagated module, by the name of the variable."""
    mod = dx.transform.PropagateSharding()(mod)
    assert dx.testing.violations(mod, "propagated") == []
    round_trip(mod)
    function = mod["main"]
    bindings = [binding.var for block in function.body.blocks for binding in block.bindings]
    return {
        var.name: dx.dims(mod, var)
        for var in [*function.params, *bindings]
        if isinstance(var.ty, DTensorType)
    }


def through(plan, cut=("a", None), shape=(8, 8), fn=op.exp):
    region = dx.manual(fn, MESH, [cut], cut, axes=["a"])
    mod = written(lambda x: op.negative(region(x)), x=shape)
    found = shardings(dx.annotate(mod, MESH, plan, func="main") if plan else mod)
    inside = found["lv1"]
    return found["x"], inside, found["gv"]


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ((("a", "b"), None), ("b", None)),
        ((("a", "c", "b"), None), (("c", "b"), None)),
        (("a", "b"), (None, "b")),
        ((("a", "c"), "b"), ("c", "b")),
    ],
)
def test_from_outside_to_inside_and_out_again(outside, inside):
    assert through({"x": outside}) == (outside, inside, outside)


def test_what_does_not_begin_with_the_manual_axes_does_not_enter():
    # b is major to a: the part of a device is not one block of the shards along b.
    assert through({"x": (("b", "a"), None)})[1] == (None, None)


def test_from_inside_to_outside():
    def constrained(x):
        return dx.constrain(op.exp(x), MESH, ("b", "c"))

    assert through({}, fn=constrained) == ((("a", "b"), "c"), ("b", "c"), (("a", "b"), "c"))


def test_an_axis_that_does_not_divide_the_part_does_not_cross():
    # 10 rows are 5 on a device; outside, 10 rows over a and b would be padded elsewhere.
    def constrained(x):
        return dx.constrain(op.exp(x), MESH, ("b", None))

    assert through({}, shape=(10, 8), fn=constrained) == (("a", None), ("b", None), ("a", None))


def test_no_value_of_a_region_is_sharded_along_a_manual_axis():
    mod = written(
        lambda x, w: dx.manual(
            lambda part, w: op.matmul(part, op.add(w, w)), MESH, [None, None], None, axes=["a", "b"]
        )(x, w),
        x=(8, 8),
        w=(8, 8),
    )
    mod = dx.annotate(mod, MESH, {"x": ("a", "c"), "w": ("c", ("b", "a"))}, func="main")
    found = shardings(mod)
    assert found["lv"] == (None, "c")
    assert all(axis in (None, "c") for name in ("lv", "lv1", "lv2") for axis in found[name])


def test_what_only_a_region_uses_stays_on_all_devices():
    def of(x, w):
        region = dx.manual(lambda x: op.matmul(x, w), MESH, [("a", None)], ("a", None), axes="a")
        return region(x)

    mod = dx.annotate(written(of, x=(8, 8), w=(8, 8)), MESH, {"x": (("a", "b"), None)}, func="main")
    found = shardings(mod)
    assert found["w"] == (None, None)
    (w,) = (param for param in dx.transform.PropagateSharding()(mod)["main"].params[1:])
    assert list(w.ty.device_mesh.shape) == [2, 2, 2]


def test_a_module_with_a_region_alone_takes_part():
    mod = written(lambda x: dx.manual(op.exp, MESH, [("a", None)], ("a", None))(x), x=(8, 8))
    assert dx.phase(mod) == "annotated"
    assert dx.phase(dx.transform.PropagateSharding()(mod)) == "propagated"
    assert shardings(mod)["x"] == ("a", None)


def test_a_second_run_changes_nothing():
    mod = written(lambda x: dx.manual(op.exp, MESH, [("a", None)], ("a", None))(x), x=(8, 8))
    once = dx.transform.PropagateSharding()(mod)
    assert dx.transform.PropagateSharding()(once).script() == once.script()


WRONG = """
@I.ir_module
class Wrong:
    I.module_global_infos(
        {"mesh": [R.device_mesh((2, 2), I.Range(0, 4)), R.device_mesh((2,), [0, 2])]}
    )

    @R.function
    def main(x: R.DTensor((8, 8), "float32", "mesh[0]", "S[0], S[0]")):
        y = R.dist.enter_manual(
            x, "mesh[0]", "R, S[1]", manual_axes=[1],
            ty_args=R.DTensor((8, 4), "float32", "mesh[1]", "S[0]"),
        )
        return y
"""


def test_a_border_that_would_move_something_is_refused():
    with pytest.raises(Exception, match="enter_manual does not lead from"):
        tvm.script.from_source(WRONG)
