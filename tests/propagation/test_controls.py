"""Propagation under open dimensions, priorities, replicated axes, barriers and sharding groups.

The programs are those of Shardy's propagation tests. Axes have the size 2 unless a mesh says
otherwise. Unlike Shardy, operands that disagree do not leave the result undecided: the cheapest way
of computing the call is taken. Where that makes a difference, a comment says what Shardy has. With
closed annotations the same programs are in test_known_cases.py.
"""

# TVMScript has statements only.
# ruff: noqa: SIM108

from __future__ import annotations

import pytest
import tvm
from tests.meshes import meshes
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

from .checks import propagated
from .controlled import Controlled, shardings_of

op = relax.op


def sum_of(mesh, left, right, then=None, replicated=""):
    """The shardings of x, y, x + y and, where it is stated, of the sum behind an annotation."""
    p = Controlled(*mesh)
    x, y = p.param("x", 16, 16), p.param("y", 16, 16)

    def write(emit):
        operands = [emit("x0", p.state(x, left)), emit("y0", p.state(y, right, replicated))]
        result = emit("r", op.add(*operands))
        return result if then is None else emit("t", p.state(result, then))

    found = p.shardings(write)
    names = ("x", "y", "r") if then is None else ("x", "y", "r", "return")
    return tuple(found[name] for name in names)


@pytest.mark.parametrize(
    ("mesh", "left", "right", "then", "expected"),
    {
        # An open operand takes what the other one has.
        "all of it": ((2, 2), "ab|-", "?|?", None, ("ab|-", "ab|-", "ab|-")),
        "behind its own axes": ((2, 2), "ab|-", "a?|-", None, ("ab|-", "ab|-", "ab|-")),
        "in both dimensions": ((2, 2), "a|b", "?|?", None, ("a|b", "a|b", "a|b")),
        "a closed one does not": ((2, 2), "ab|-", "?|-", "a|b", ("ab|-", "ab|-", "ab|-", "a|b")),
        # The operands agree on b, up to what follows it, as far as nobody decides; then the first
        # does. Shardy leaves it at b.
        "a common prefix": ((2, 2, 2), "ba|-", "bc|-", None, ("ba|-", "bc|-", "ba|-")),
        "no common prefix": ((2, 2), "ba|-", "ab|-", None, ("ba|-", "ab|-", "ba|-")),
        # The result has b elsewhere, so it takes of its rows only what stands before b.
        "an axis that is taken": ((2, 2), "ab|-", "?|?", "?|b?", ("ab|-", "ab|-", "ab|-", "a|b")),
        # abcd are the parts of an axis of 16, and y has the third of them on its columns. Shardy
        # leaves the rows of the result at ab, too.
        "parts of an axis": (
            (2, 2, 2, 2, 2),
            "abcd?|?",
            "a?|c?",
            "?|e?",
            ("abcd|-", "ab|c", "abcd|e", "abcd|e"),
        ),
        "axes that the other one has not": ((2, 2), "a?|?", "?|b?", None, ("a|b", "a|b", "a|b")),
    }.values(),
)
def test_open_operands_and_results_of_a_sum(mesh, left, right, then, expected):
    assert sum_of(mesh, left, right, then) == expected


def test_replicated_axes_do_not_shard_an_open_tensor():
    assert sum_of((2, 2), "ab|-", "?|?", "?|b?", "a")[1] == "-|-"
    assert sum_of((2, 2), "a|b", "?|?", None, "a")[1] == "-|b"
    # The same in the other dimension.
    assert sum_of((2, 2), "a|b", "?|?", None, "b")[1] == "a|-"


def test_a_sum_then_a_product():
    p = Controlled(2, 2)
    x, y, w = p.param("x", 8, 8), p.param("y", 8, 8), p.param("w", 8, 8)

    def write(emit):
        s = emit("s", op.add(emit("x0", p.state(x, "a|b")), emit("y0", p.state(y, "?|?"))))
        return emit("r", p.state(emit("d", op.matmul(s, emit("w0", p.state(w, "?|?")))), "?|?"))

    found = p.shardings(write)
    assert (found["y"], found["w"], found["d"]) == ("a|b", "b|-", "a|-")


def product(mesh, left, right, out, shapes=((8, 8), (8, 8))):
    p = Controlled(*mesh)
    x, w = (p.param(name, *shape) for name, shape in zip("xw", shapes, strict=True))

    def write(emit):
        d = emit("d", op.matmul(emit("x0", p.state(x, left)), emit("w0", p.state(w, right))))
        return emit("t", p.state(d, out))

    found = p.shardings(write)
    return found["x"], found["w"], found["return"]


@pytest.mark.parametrize(
    ("mesh", "left", "right", "out", "expected"),
    {
        # Rows of the result are closed.
        "closed rows": ((2, 2), "a|-", "-|b", "-|?", ("a|-", "-|b", "-|b")),
        # Rows of the left side and columns of the result want one axis. Shardy shards the columns
        # of the right side too; here the call is computed by rows, and its result moved.
        "one axis for two": ((2,), "a?|?", "?|?", "?|a?", ("a|-", "-|-", "-|a")),
        # What the right side and the result share reaches the left one.
        "rows of the result": ((2, 2), "?|?", "?|b?", "a?|b?", ("a|-", "-|b", "a|b")),
    }.values(),
)
def test_open_operands_and_results_of_a_product(mesh, left, right, out, expected):
    assert product(mesh, left, right, out, ((64, 8), (8, 8))) == expected


def test_columns_of_a_larger_operand_beat_rows():
    found = product((2, 2, 2), "ab|?", "?|ac", "?|?", ((8, 4), (4, 16)))
    assert found == ("ab|-", "-|ac", "-|ac")


def test_a_closed_operand_is_not_sharded_by_a_result_nor_a_neighbour():
    assert sum_of((2,), "a|-", "?|?", "-|-") == ("a|-", "a|-", "a|-", "-|-")
    assert sum_of((2,), "-|-", "?|?", "a|-")[0] == "-|-"


@pytest.mark.parametrize(
    ("mesh", "before", "after", "given", "expected"),
    {
        "an axis is split": ((4,), (8,), (2, 4), "a", "a:(1)2|a:(2)2"),
        "dimensions are joined": ((2, 2), (2, 4), (8,), "a|b", "ab"),
        # Only the major one is in a row; Shardy gathers b.
        "the minor one moves behind it": ((2, 2), (4, 4), (16,), "a|b", "ab"),
        "rows are filled, then columns": ((4, 2, 2), (8, 4), (2, 16), "ca|b", "c|ab"),
        # Shards of 2 elements do not end where rows of 4 do; Shardy pads rows.
        "a part that does not divide": ((6,), (8,), (2, 4), "a", "-|-"),
        "an axis that does not divide": ((3,), (8,), (2, 4), "a", "-|-"),
    }.values(),
)
def test_open_results_of_a_reshape(mesh, before, after, given, expected):
    p = Controlled(*mesh)
    x = p.param("x", *before)

    def write(emit):
        y = emit("y", op.reshape(emit("x0", p.state(x, given)), after))
        return emit("t", p.state(y, "|".join("?" * len(after))))

    assert p.shardings(write)["y"] == expected


def test_an_axis_of_a_dimension_that_is_needed_whole_reaches_another_of_an_open_result():
    p = Controlled(2, 2, 2)
    x = p.param("x", 8, 8, 8)

    def write(emit):
        y = emit("y", op.sort(emit("x0", p.state(x, "a|b|c")), axis=0))
        return emit("t", p.state(y, "?|?|?"))

    assert p.shardings(write)["y"] == "-|ba|c"


def test_open_tensors_on_another_mesh_are_not_reached():
    p = Controlled(2)
    other = dx.Mesh((2,), ("z",), device_ids=[2, 3])
    x = p.param("x", 8, 8)

    def write(emit):
        y = emit("y", op.exp(emit("x0", p.state(x, "a|-"))))
        return emit("z", dx.constrain(y, other, (..., ...)))

    mod = propagated(p.build(write))
    assert dx.dims(mod, mod["main"].body.body) == (None, None)


# ---- barriers


def across_a_barrier(blocks, left="a?|c?", right="ab?|?"):
    p = Controlled(2, 2, 2)
    x = p.param("x", 8, 8)

    def write(emit):
        e = emit("e", op.exp(emit("x0", p.state(x, left))))
        f = emit("f", op.exp(e if blocks is None else emit("bar", dx.barrier(e, blocks))))
        return emit("t", p.state(f, right))

    found = p.shardings(write)
    return found["x"], found["f"]


def test_a_barrier_lets_pass_what_it_does_not_block():
    assert across_a_barrier(None) == ("ab|c", "ab|c")
    assert across_a_barrier("forward") == ("ab|c", "ab|-")
    assert across_a_barrier("backward") == ("a|c", "ab|c")
    assert across_a_barrier("both") == ("a|c", "ab|-")


def test_nothing_is_left_of_a_barrier_between_equal_shardings():
    p = Controlled(2)
    x = p.param("x", 8, 8)

    def write(emit):
        e = emit("e", op.exp(emit("x0", p.state(x, "a|-"))))
        return emit("f", op.exp(emit("bar", dx.barrier(e, "backward"))))

    text = propagated(p.build(write)).script()
    assert "barrier" not in text
    assert "redistribute" not in text


# ---- priorities


def test_what_has_a_lower_priority_waits():
    # b comes from the other side first, and does not displace the b of x.
    p = Controlled(2, 2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)

    def write(emit):
        s = emit("s", op.add(emit("x0", p.state(x, "a|bp4")), y))
        return emit("t", p.state(emit("e", op.exp(s)), "?|cp1"))

    found = p.shardings(write)
    assert found["x"] == "a|b"
    assert found["y"] == found["s"] == found["e"] == found["return"] == "a|c"


def test_without_priorities_the_first_of_equals_decides():
    p = Controlled(2, 2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)

    def write(emit):
        s = emit("s", op.add(emit("x0", p.state(x, "a|b")), y))
        return emit("t", p.state(emit("e", op.exp(s)), "?|c"))

    assert p.shardings(write)["y"] == "a|b"


def layers(batch, weight):
    """Two layers whose weights are larger than the activations."""
    p = Controlled(2)
    x, v, w = p.param("x", 8, 64), p.param("v", 64, 64), p.param("w", 64, 64)

    def write(emit):
        h = emit("h", op.matmul(emit("x0", p.state(x, batch)), emit("v0", p.state(v, weight))))
        g = emit("g", op.nn.relu(h))
        return emit("d", op.matmul(g, emit("w0", p.state(w, weight))))

    return p.shardings(write)


def test_the_batch_spreads_before_weights_on_the_same_axis():
    found = layers("ap0|?", "?|ap1")
    assert found["h"] == found["g"] == found["d"] == "a|-"
    assert found["v"] == found["w"] == "-|a"
    # The other way round activations are sharded as the weights give them.
    found = layers("ap1|?", "?|a")
    assert found["g"] == found["d"] == "-|a"
    assert found["x"] == "a|-"


def test_a_dimension_opens_with_its_priority():
    # Before, x would have taken a from the sum; when it opens, the sum has taken b.
    p = Controlled(2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)

    def write(emit):
        x0 = emit("x0", p.state(x, "?p1|-"))
        return emit("s", op.add(x0, emit("y0", p.state(y, "ab|-"))))

    assert p.shardings(write)["x"] == "ab|-"


# ---- groups


def test_values_of_a_group_are_sharded_alike():
    p = Controlled(2, 2)
    x, y = p.param("x", 8, 16), p.param("y", 8, 16)

    def write(emit):
        tied = emit("tied", dx.constrain(emit("x0", p.state(x, "a|b")), y))
        return emit("r", op.exp(emit("right", relax.TupleGetItem(tied, 1))))

    found = p.shardings(write)
    assert found["x"] == found["y"] == found["r"] == "a|b"


def test_a_group_applies_across_a_barrier():
    p = Controlled(2, 2)
    x = p.param("x", 8, 8)

    def write(emit):
        e = emit("e", op.exp(emit("x0", p.state(x, "a|b"))))
        bar = emit("bar", dx.barrier(e))
        f = emit("f", op.exp(bar))
        g = emit("g", relax.TupleGetItem(emit("tied", dx.constrain(e, f)), 1))
        return emit("r", op.exp(g))

    found = p.shardings(write)
    assert found["f"] == found["r"] == "a|b"


def test_values_that_disagree_are_brought_to_one_sharding():
    p = Controlled(2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)

    def write(emit):
        x0, y0 = emit("x0", p.state(x, "a|-")), emit("y0", p.state(y, "b|-"))
        tied = emit("tied", dx.constrain(x0, y0))
        return tied

    mod = propagated(p.build(write))
    left, right = mod["main"].ret_ty.fields
    assert dx.dims(mod, left) == dx.dims(mod, right) == ("a", None)


def test_a_group_that_is_annotated():
    p = Controlled(2, 2)
    x, y = p.param("x", 8, 8), p.param("y", 8, 8)

    def write(emit):
        x0 = emit("x0", p.state(x, "a|b"))
        left = emit("left", dx.constrain(x0, p.mesh, (..., None)))
        right = emit("right", dx.constrain(y, p.mesh, (..., None)))
        return emit("tied", dx.constrain(left, right))

    found = p.shardings(write)
    assert found["y"] == "a|-"


# ---- across functions

MESH = dx.Mesh(a=2, b=2, c=2)


def test_open_values_of_branches_share_what_both_have():
    @I.ir_module
    class Before:
        @R.function
        def main(
            flag: R.Tensor((), "bool"),
            x: R.Tensor((8, 8), "float32"),
            y: R.Tensor((8, 8), "float32"),
        ):
            x0 = dx.constrain(x, MESH, (("a", "b"), None))
            y0 = dx.constrain(y, MESH, (("a", "c"), None))
            if flag:
                z = R.exp(x0)
            else:
                z = R.exp(y0)
            t = dx.constrain(z, MESH, dx.TensorDims(("a", ...), ..., replicated=("b", "c")))
            return t

    mod = propagated(Before)
    assert dx.dims(mod, mod["main"].body.body) == ("a", None)


def test_a_loop_joins_what_its_ends_have():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((8, 8), "float32"), n: R.Tensor((), "bool")):
            x0 = dx.constrain(x, MESH, (("a", ...), ...))
            y = Before.loop(x0, n)
            z = dx.constrain(y, MESH, (..., ("b", ...)))
            return z

        @R.function(private=True)
        def loop(x: R.Tensor((8, 8), "float32"), n: R.Tensor((), "bool")) -> R.Tensor(
            (8, 8), "float32"
        ):
            y = R.exp(x)
            if n:
                z = Before.loop(y, n)
            else:
                z = y
            return z

    mod = propagated(Before)
    assert shardings_of(mod)["x"] == shardings_of(mod, "loop")["x"] == "a|b"
    assert shardings_of(mod, "loop")["y"] == "a|b"
    assert dx.dims(mod, mod["main"].body.body) == ("a", "b")


def test_open_ends_of_a_call_take_what_the_callee_states():
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((8, 8), "float32")):
            x0 = dx.constrain(x, MESH, (..., ...))
            y = Before.inner(x0)
            z = dx.constrain(y, MESH, (..., ...))
            return z

        @R.function(private=True)
        def inner(x: R.Tensor((8, 8), "float32")) -> R.Tensor((8, 8), "float32"):
            y = dx.constrain(x, MESH, ("a", None))
            z = dx.constrain(R.exp(y), MESH, ("b", None))
            return z

    mod = propagated(Before)
    assert shardings_of(mod)["x"] == "a|-"
    assert dx.dims(mod, mod["main"].body.body) == ("b", None)


# ---- in TVMScript


def script(attributes, mesh=(2, 2)):
    text = f"""
@I.ir_module
class Module:
    I.module_global_infos({{"mesh": [R.device_mesh({mesh}, I.Range(0, 4))]}})

    @R.function
    def main(x: R.Tensor((8, 8), "float32")):
        y = R.dist.annotate_sharding(x, "mesh[0]", "S[0], R", {attributes})
        z = R.dist.propagation_barrier(y, blocks="forward")
        g = R.dist.sharding_group((y, z))
        return g
"""
    return tvm.script.from_source(text)


def test_controls_print_and_parse():
    mod = script("open=[0, 1], priorities=[1], replicated=[1]")
    tvm.ir.assert_structural_equal(tvm.script.from_source(mod.script()), mod)
    tvm.ir.assert_structural_equal(tvm.ir.load_json(tvm.ir.save_json(mod)), mod)
    propagated(mod)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("open=[2]", "`y` in `main` is annotated as open in dimension 2, and has 2 dimensions"),
        ("open=[-1]", r"`y` in `main` is annotated with open=\[.., -1\]; numbers begin with 0"),
        ("open='all'", "`y` in `main` is annotated with open that is no list of integers"),
        ("priorities=[0, 1, 2]", "is annotated with 3 priorities, and has 2 dimensions"),
        ("replicated=[2]", "replicated over axis 2 of a mesh of 2 axes"),
        ("replicated=[0]", "replicated over axis 0 of its mesh, which shards its dimension 0"),
    ],
)
def test_terms_that_do_not_fit(attributes, message):
    mod = script(attributes)
    with pytest.raises(ValueError, match=message):
        dx.transform.PropagateSharding()(mod)


def test_groups_of_tensors_on_two_meshes_or_of_two_ranks():
    @I.ir_module
    class Meshes:
        I.module_global_infos(meshes((2,), (2,)))

        @R.function
        def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8,), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            y0 = R.dist.annotate_sharding(y, "mesh[1]", "S[0]")
            g = R.dist.sharding_group((x0, y0))
            return g

    with pytest.raises(ValueError, match="`g` in `main` is a sharding group of tensors on differ"):
        dx.transform.PropagateSharding()(Meshes)

    @I.ir_module
    class Ranks:
        I.module_global_infos(meshes((2,)))

        @R.function
        def main(x: R.Tensor((8,), "float32"), y: R.Tensor((8, 8), "float32")):
            x0 = R.dist.annotate_sharding(x, "mesh[0]", "S[0]")
            g = R.dist.sharding_group((x0, y))
            return g

    with pytest.raises(ValueError, match="different numbers of dimensions: `x0` has 1, `y` has 2"):
        dx.transform.PropagateSharding()(Ranks)
    sizes = tvm.script.from_source(Ranks.script().replace("(8, 8)", "(12,)"))
    with pytest.raises(ValueError, match="different sizes: dimension 0 of `y` has 12, that of oth"):
        dx.transform.PropagateSharding()(sizes)
