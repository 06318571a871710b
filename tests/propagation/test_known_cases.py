"""Small programs with known propagations, those of Shardy's tests, with closed annotations.

Axes have the size 2 unless a mesh says otherwise. Operands that disagree are redistributed, where
Shardy leaves the result open. Where that makes a difference, a comment says what Shardy has.

The same with open dimensions, and what priorities, barriers and groups do, is in test_controls.py.
Sequences of collectives are in test_explicit_redistribution.py and in test_reference_cases.py of
tests/redistribute; branches and recursion in test_control_flow.py, calls and several meshes in
test_calls.py.
"""

import pytest
from tvm import relax

import distir_ext as dx

from .checks import propagated
from .programs import Program

op = relax.op


def sort_rows(x):
    return op.sort(x, axis=0)


def two(mesh, operator, left, right, shapes=((8, 8), (8, 8)), then=None):
    """The shardings of x, y and the result of an operator, annotated where a placement is given."""
    p = Program(*mesh)
    operands = []
    for name, shape, placement in zip("xy", shapes, (left, right), strict=True):
        value = p.param(name, *shape)
        operands.append(value if placement is None else p.place(name + "0", value, placement))
    result = p.emit("r", (operator, *operands))
    found = p.shardings(result if then is None else p.place("t", result, then))
    return found["x"], found["y"], found["r"]


@pytest.mark.parametrize(
    ("mesh", "operator", "left", "right", "then", "expected"),
    [
        # The rows of one side and the columns of the other.
        ((2, 2), op.matmul, "a|-", "-|b", None, ("a|-", "-|b", "a|b")),
        # Agreement up to a prefix: Shardy keeps b for the result; the first operand decides here.
        ((2, 2, 2), op.add, "ab|-", "ac|-", None, ("ab|-", "ac|-", "ab|-")),
        # The other operand takes what the first one has.
        ((2, 2), op.add, "ab|-", None, None, ("ab|-", "ab|-", "ab|-")),
        # The result wants an axis that the operand has elsewhere. Shardy gives x's part a to y.
        ((2, 2), op.add, "ab|-", None, "-|b", ("ab|-", "ab|-", "ab|-")),
        # An annotation closes what it leaves whole: y stays so.
        ((2, 2), op.add, "ab|-", "-|-", None, ("ab|-", "-|-", "ab|-")),
        # Parts of one axis of 16. Shardy: the first two of them on rows, as the third is taken.
        ((2, 2, 2, 2), op.add, "abcd|-", "a|c", None, ("abcd|-", "a|c", "abcd|-")),
        # Rows of x and columns of the result want one axis: the product moves, the least of three.
        ((2,), op.matmul, "a|-", None, "-|a", ("a|-", "-|-", "a|-")),
        # What is annotated as whole does not reach back.
        ((2,), op.add, "a|-", None, "-|-", ("a|-", "a|-", "a|-")),
        # The result's rows reach the left side.
        ((2, 2), op.matmul, None, "-|b", "a|b", ("a|-", "-|b", "a|b")),
        # Data parallel, and weights sharded over the same axis: activations keep their rows.
        ((2,), op.matmul, "a|-", "-|a", None, ("a|-", "-|a", "a|-")),
    ],
)
def test_two_operands(mesh, operator, left, right, then, expected):
    # Rows are many enough that products do not gather their left side.
    shapes = ((64, 8), (64, 8) if operator is op.add else (8, 8))
    assert two(mesh, operator, left, right, shapes, then) == expected


def test_columns_beat_rows_of_a_smaller_operand():
    # 8x4 by 4x16: Shardy leaves the rows of the result open, too, as a is on its columns.
    found = two((2, 2, 2), op.matmul, "ab|-", "-|ac", ((8, 4), (4, 16)))
    assert found == ("ab|-", "-|ac", "-|ac")


def test_a_sum_then_a_product():
    p = Program(2, 2)
    x, y, w = p.param("x", 8, 8), p.param("y", 8, 8), p.param("w", 8, 8)
    s = p.emit("s", (op.add, p.place("x0", x, "a|b"), y))
    d = p.emit("d", (op.matmul, s, w))
    assert p.shardings(d) == {"x": "a|b", "y": "a|b", "w": "b|-", "s": "a|b", "d": "a|-"}


@pytest.mark.parametrize(
    ("mesh", "before", "after", "given", "expected"),
    [
        ((4,), (8,), (2, 4), "a", "0|1"),  # views of an axis have its parts as numbers
        ((2, 2), (2, 4), (8,), "a|b", "ab"),
        ((2, 2), (4, 4), (16,), "a|b", "ab"),  # b moves behind a; Shardy gathers it
        ((2, 4, 2), (8, 4), (2, 16), "ab|c", "a|bc"),  # fills rows, then columns
        ((6,), (8,), (2, 4), "a", "-|-"),  # shards of 2 do not end where rows do; Shardy pads
        ((3,), (8,), (2, 4), "a", "-|-"),
    ],
)
def test_reshape(mesh, before, after, given, expected):
    p = Program(*mesh)
    x = p.param("x", *before)
    y = p.emit("y", (op.reshape, p.place("x0", x, given), relax.ShapeExpr(after)))
    assert p.shardings(y)["y"] == expected


def test_an_axis_of_a_dimension_that_is_needed_whole_moves_to_another():
    p = Program(2, 2, 2)
    x = p.param("x", 8, 8, 8)
    y = p.emit("y", (sort_rows, p.place("x0", x, "a|b|c")))
    # Shardy gathers a, and leaves the rows of y at b.
    assert p.shardings(y) == {"x": "a|b|c", "y": "-|ab|c"}


def test_an_annotation_stops_what_spreads_backward():
    p = Program(2, 2, 2)
    x = p.param("x", 8, 8)
    between = p.place("between", p.emit("e", (op.exp, x)), "a|c")
    y = p.place("z", p.emit("y", (op.exp, between)), "ab|-")
    found = p.shardings(y)
    assert (found["x"], found["e"], found["y"]) == ("a|c", "a|c", "ab|c")


def test_a_manual_region_appends_from_inside():
    """Axes that shard a local part come after the manual axes of the region."""
    mesh = dx.Mesh(a=2, b=2)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((8, 8), "float32"))

    def part(x):
        return dx.constrain(builder.emit(op.exp(x)), mesh, ("b", None))

    with builder.function("main", [x]):
        region = dx.manual(part, mesh, [("a", None)], ("a", None), axes=["a"])
        builder.emit_func_output(region(x))
    mod = propagated(builder.finalize())
    assert dx.dims(mod, mod["main"].params[0]) == (("a", "b"), None)
    assert dx.dims(mod, mod["main"].ret_ty) == (("a", "b"), None)
