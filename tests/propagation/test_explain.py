"""What explain says of variables: chains back to annotations, redistributions, nothing known."""

import pytest
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx


@I.ir_module
class Block:
    @R.function(private=True)
    def scale(y: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            doubled = R.multiply(y, R.const(2.0, "float32"))
            R.output(doubled)
        return doubled

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        other: R.Tensor((8, 16), "float32"),
        bias: R.Tensor((4,), "float32"),
    ) -> R.Tuple(R.Tensor((8, 16), "float32"), R.Tensor((4,), "float32")):
        cls = Block
        with R.dataflow():
            hidden = R.nn.relu(x)
            scaled = cls.scale(hidden)
            total = R.add(scaled, other)
            small = R.nn.relu(bias)
            R.output(total, small)
        return (total, small)


@pytest.fixture
def propagated():
    plan = {"x": ("dp", None), "other": (None, "dp")}
    mod = dx.annotate(Block, dx.Mesh((2,), ("dp",)), plan)
    return dx.transform.PropagateSharding()(mod)


def test_a_chain_leads_back_to_the_annotation(propagated):
    assert dx.explain(propagated, "hidden").lines == (
        "`hidden` in `main`: dimension 0 is sharded over mesh axes 'dp'",
        "  from `x` in `main` dimension 0 through relax.nn.relu",
        "  stated by an annotation or a type of `x` in `main`",
    )


def test_a_chain_leads_into_the_caller(propagated):
    lines = dx.explain(propagated, "doubled", "scale").lines
    assert lines[1:3] == (
        "  from `y` in `scale` dimension 0 through relax.multiply",
        "  from `hidden` in `main` dimension 0 through call",
    )


def test_a_redistribution_names_both_sides_and_who_asked(propagated):
    assert dx.explain(propagated, "other").lines[-1] == (
        '`other` is redistributed from "S[1]" on (x=2) of devices 0..1 '
        'to "S[0]" on (x=2) of devices 0..1 for `total`'
    )


def test_what_nothing_shards_is_said_to_be_whole(propagated):
    assert dx.explain(propagated, "small").lines == (
        "`small` in `main`: replicated, nothing shards it",
    )


def test_variables_that_can_be_explained_are_listed(propagated):
    with pytest.raises(ValueError, match=r"no variable 'lost' in scale; there are: y, doubled"):
        dx.explain(propagated, "lost", "scale")
