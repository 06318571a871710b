"""Order in which axes propagate, and the winner where tensors disagree.

The order is that of propagation/instances.h: what is annotated stays exactly so (also where it is
annotated as replicated); first axes spread where the tensors of an operator agree, through
operators with parallel factors only before all others, along dimensions that results have before
reduced ones; then conflicts are settled, so that the call is cheapest to compute. An axis shards at
most one dimension of a tensor, and only where it divides the dimension.

Meshes here have axes a, b, c; placements are written with one entry per tensor dimension, "ab|-"
for a dimension sharded by a, then b, and one that is whole.
"""

import pytest
import tvm
from tvm import relax

from .programs import Program

matmul, add = relax.op.matmul, relax.op.add


def test_axes_spread_forward_through_parallel_and_contracted_dimensions():
    p = Program(2, 2)
    x, y, w = p.param("x", 8, 8), p.param("y", 8, 8), p.param("w", 8, 8)
    s = p.emit("s", (add, p.place("x0", x, "a|b"), y))
    d = p.emit("d", (matmul, s, w))
    found = p.shardings(d)
    assert found == {"x": "a|b", "y": "a|b", "w": "b|-", "s": "a|b", "d": "a|-"}


def test_axes_of_an_operand_reach_the_result_that_leaves_the_other_free():
    p = Program(2, 2)
    x, w = p.param("x", 8, 8), p.param("w", 8, 8)
    d = p.emit("d", (matmul, x, p.place("w0", w, "-|b")))
    assert p.shardings(d) == {"x": "-|-", "w": "-|b", "d": "-|b"}


def test_tensors_that_agree_up_to_a_prefix_share_it():
    p = Program(2, 2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)
    x0, y0 = p.place("x0", x, "ab|-"), p.place("y0", y, "ac|-")
    s = p.emit("s", (add, x0, y0))
    # Forced: the first of two equally large tensors decides the rest of the dimension.
    assert p.shardings(s)["s"] == "ab|-"


def test_disagreement_in_the_major_axis_is_won_by_the_first_of_equals():
    p = Program(2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)
    s = p.emit("s", (add, p.place("x0", x, "a|-"), p.place("y0", y, "b|-")))
    assert p.shardings(s)["s"] == "a|-"


def test_larger_tensor_wins():
    p = Program(2, 2)
    x, y = p.param("x", 8, 1), p.param("y", 8, 8)
    s = p.emit("s", (add, p.place("x0", x, "a|-"), p.place("y0", y, "b|-")))
    assert p.shardings(s)["s"] == "b|-"


def test_an_axis_shards_one_dimension_of_a_result_only():
    p = Program(2)
    x, w = p.param("x", 8, 8), p.param("w", 8, 16)
    d = p.emit("d", (matmul, p.place("x0", x, "a|-"), p.place("w0", w, "-|a")))
    # The weight is larger, so its axis reaches the result.
    assert p.shardings(d)["d"] == "-|a"


def test_what_is_annotated_replicated_stays_replicated():
    p = Program(2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)
    s = p.emit("s", (add, p.place("x0", x, "a|-"), y))
    t = p.place("t", s, "-|-")
    u = p.emit("u", (relax.op.exp, t))
    found = p.shardings(u)
    assert found["y"] == "a|-"
    assert found["s"] == "a|-"
    assert found["t"] == found["u"] == "-|-"


def test_axes_do_not_spread_through_an_annotated_value():
    p = Program(2, 2)
    x = p.param("x", 8, 8)
    a = p.emit("a", (relax.op.exp, x))
    b = p.place("b", a, "a|-")
    c = p.emit("c", (relax.op.exp, b))
    d = p.place("d", c, "a|b")
    assert p.shardings(d) == {"x": "a|-", "a": "a|-", "c": "a|b"}


def test_result_reaches_both_operands():
    p = Program(2, 2)
    x, w = p.param("x", 8, 8), p.param("w", 8, 8)
    d = p.place("d", p.emit("m", (matmul, x, w)), "a|b")
    assert p.shardings(d) == {"x": "a|-", "w": "-|b", "m": "a|b"}


def test_contracted_dimension_is_shared_between_operands():
    p = Program(2)
    x, w = p.param("x", 8, 8), p.param("w", 8, 8)
    d = p.emit("d", (matmul, p.place("x0", x, "-|a"), w))
    assert p.shardings(d) == {"x": "-|a", "w": "a|-", "d": "-|-"}


def test_elementwise_operators_come_before_contractions():
    # The product could give s its columns; the sum with y, which only renames dimensions, is first.
    p = Program(2)
    x, w, y = p.param("x", 8, 8), p.param("w", 8, 8), p.param("y", 8, 8)
    m = p.emit("m", (matmul, x, p.place("w0", w, "-|a")))
    s = p.emit("s", (add, m, p.place("y0", y, "a|-")))
    found = p.shardings(s)
    assert found["s"] == "a|-"


@pytest.mark.parametrize(
    ("inner", "rows_of_x"),
    [(64, "-|-"), (2, "a|-")],
    ids=["the product is cheaper to move", "the weight is cheaper to move"],
)
def test_the_cheaper_tensor_moves(inner, rows_of_x):
    # The sum wants rows, the weight gives columns: the product is moved, or the weight.
    p = Program(8)
    x, w, y = p.param("x", 64, inner), p.param("w", inner, 64), p.param("y", 64, 64)
    m = p.emit("m", (matmul, x, p.place("w0", w, "-|a")))
    s = p.emit("s", (add, m, p.place("y0", y, "a|-")))
    found = p.shardings(s)
    assert found["s"] == "a|-"
    assert found["x"] == rows_of_x


def test_what_is_wanted_behind_other_operators_counts():
    # Behind the product stand three operators that would move with it.
    p = Program(8)
    x, w, y = p.param("x", 64, 2), p.param("w", 2, 64), p.param("y", 64, 64)
    m = p.emit("m", (matmul, x, p.place("w0", w, "-|a")))
    e = p.emit("e", (relax.op.exp, m))
    t = p.emit("t", (relax.op.permute_dims, e))
    s = p.emit("s", (add, t, p.place("y0", y, "-|a")))
    found = p.shardings(s)
    assert found["s"] == "-|a"
    assert found["x"] == "a|-"  # the weight is gathered, nothing else moves


def test_a_result_keeps_its_rows_where_the_reduced_dimension_wants_the_axis():
    # The partial product is scattered over rows; it need not be whole anywhere.
    p = Program(8)
    x, w = p.param("x", 64, 64), p.param("w", 64, 64)
    m = p.emit("m", (matmul, p.place("x0", x, "a|-"), p.place("w0", w, "a|-")))
    assert p.shardings(m)["m"] == "a|-"


def test_a_bias_does_not_decide_for_its_sum():
    p = Program(8)
    x, w, b = p.param("x", 64, 64), p.param("w", 64, 64), p.param("b", 64)
    m = p.emit("m", (matmul, p.place("x0", x, "a|-"), w))
    s = p.emit("s", (add, m, p.place("b0", b, "a")))
    assert p.shardings(s)["s"] == "a|-"


def test_transposition_carries_axes_both_ways():
    p = Program(2, 2)
    x = p.param("x", 8, 4)
    t = p.emit("t", (relax.op.permute_dims, x))
    e = p.place("e", t, "a|b")
    assert p.shardings(e) == {"x": "b|a", "t": "a|b"}


@pytest.mark.parametrize(
    ("mesh", "before", "after", "given", "expected"),
    [
        ((4,), (8,), (2, 4), "a", "0|1"),  # an axis of 4 is cut in two halves
        ((2, 2), (2, 4), (8,), "a|b", "ab"),
        ((2, 2), (4, 4), (16,), "a|b", "ab"),  # columns of b move behind the rows of a
        ((2, 2), (16,), (4, 4), "ab", "ab|-"),
        ((6,), (6,), (2, 3), "a", "0|1"),
        ((3,), (6,), (2, 3), "a", "-|-"),  # 3 shards cut across rows of 3
        ((2,), (8, 3), (24,), "a|-", "a"),
        ((2,), (3, 8), (24,), "-|a", "a"),  # columns move to rows
    ],
)
def test_reshape(mesh, before, after, given, expected):
    p = Program(*mesh)
    x = p.param("x", *before)
    y = p.emit("y", (relax.op.reshape, p.place("x0", x, given), relax.ShapeExpr(after)))
    assert p.shardings(y)["y"] == expected


def test_axis_that_does_not_divide_a_dimension_stops_there():
    p = Program(4)
    x = p.param("x", 8, 8)
    y = p.emit("y", (relax.op.strided_slice, p.place("x0", x, "-|a"), [0], [0], [6]))
    z = p.emit("z", (relax.op.permute_dims, y))
    found = p.shardings(z)
    assert found["y"] == "-|a"
    assert found["z"] == "a|-"

    p = Program(4)
    x, y = p.param("x", 8), p.param("y", 6, 1)
    s = p.emit("s", (add, p.place("x0", x, "a"), y))
    assert p.shardings(s) == {"x": "a", "y": "-|-", "s": "-|a"}


def test_weights_sharded_over_the_data_axis_keep_it_and_activations_keep_theirs():
    p = Program(2)
    x, w = p.param("x", 64, 8), p.param("w", 8, 8)
    x0, w0 = p.place("x0", x, "a|-"), p.place("w0", w, "-|a")
    d = p.emit("d", (matmul, x0, w0))
    e = p.emit("e", (relax.op.exp, d))
    found = p.shardings(e)
    assert found["w"] == "-|a"
    assert found["d"] == found["e"] == "a|-"


def test_deterministic():
    def run():
        p = Program(2, 2)
        x, y, w = p.param("x", 8, 8), p.param("y", 8, 8), p.param("w", 8, 8)
        a = p.emit("a", (matmul, p.place("x0", x, "a|b"), p.place("w0", w, "a|b")))
        b = p.emit("b", (add, a, p.place("y0", y, "b|a")))
        return p.shardings(b)

    assert run() == run() == run()


def test_dimension_that_is_one_symbolic_variable_takes_any_axis():
    n = tvm.tirx.Var("n", "int64")
    p = Program(2)
    x = p.param("x", n, 8)
    y = p.emit("y", (relax.op.exp, p.place("x0", x, "a|-")))
    assert p.shardings(y) == {"x": "a|-", "y": "a|-"}
