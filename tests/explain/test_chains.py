"""Tests of `explain` for variables: chains back to annotations, redistributions, unknown causes."""

import pytest
from tests.meshes import meshes
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
        "`hidden` in `main`: dimension 0 is sharded over mesh axes 'dp' (placement \"S[0]\")",
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
    (line,) = (each for each in dx.explain(propagated, "other").lines if "redistributed" in each)
    assert line.startswith(
        "`other` is redistributed from (None, 'dp') to ('dp', None) for `total`: "
    )


def test_a_redistributed_variable_follows_from_who_asked(propagated):
    lines = dx.explain(propagated, "other_1").lines
    assert lines[:3] == (
        "`other_1` in `main`: redistribute of `other`",
        "`other_1` in `main`: dimension 0 is sharded over mesh axes 'dp' (placement \"S[0]\")",
        "  from `scaled` in `main` dimension 0 through relax.add",
    )
    assert "stated by an annotation or a type of `x` in `main`" in lines[-5]


def test_several_variables_are_explained_at_once(propagated):
    names = ["hidden", "small"]
    assert dx.explain(propagated, names) == [dx.explain(propagated, name) for name in names]
    (hidden,) = (
        binding.var
        for block in propagated["main"].body.blocks
        for binding in block.bindings
        if binding.var.name == "hidden"
    )
    assert dx.explain(propagated, hidden) == dx.explain(propagated, "hidden")


def test_what_nothing_shards_is_said_to_be_whole(propagated):
    assert dx.explain(propagated, "small").lines == (
        '`small` in `main`: replicated (placement "R"), nothing shards it',
    )


def test_variables_that_can_be_explained_are_listed(propagated):
    with pytest.raises(ValueError, match=r"no variable 'lost' in scale; there are: y, doubled"):
        dx.explain(propagated, "lost", "scale")


@I.ir_module
class StatedInside:
    I.module_global_infos(meshes((2,)))

    @R.function(private=True)
    def inner(y: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            turned = R.nn.relu(y)
            wanted = R.dist.annotate_sharding(turned, device_mesh="mesh[0]", placement="S[0]")
            R.output(wanted)
        return wanted

    @R.function
    def main(x: R.Tensor((8, 16), "float32")) -> R.Tensor((8, 16), "float32"):
        cls = StatedInside
        with R.dataflow():
            before = R.exp(x)
            after = cls.inner(before)
            last = R.negative(after)
            R.output(last)
        return last


@pytest.mark.parametrize("prepare", [dx.transform.PropagateSharding(), dx.lower])
def test_parameters_follow_from_what_a_callee_states(prepare):
    mod = prepare(StatedInside)
    for name in ("x", "before", "after", "last"):
        text = str(dx.explain(mod, name, "main"))
        assert text.endswith(" in `inner`")
        assert "  stated by" in text
        assert f"stated by an annotation or a type of `{name}`" not in text


def test_what_is_put_behind_stated_axes_is_not_stated():
    plan = {"x": (("dp", ...), ...), "other": (("dp", "tp"), "ep")}
    mod = dx.transform.PropagateSharding()(dx.annotate(Block, dx.Mesh(dp=2, tp=2, ep=2), plan))
    assert dx.dims(mod, mod["main"].params[0]) == (("dp", "tp"), "ep")
    lines = dx.explain(mod, "x").lines
    ends = [each for each in lines if each.startswith("  stated by")]
    assert ends == [
        "  stated by an annotation or a type of `x` in `main`",
        *["  stated by an annotation or a type of `other` in `main`"] * 2,
    ]
    assert lines[0].startswith("`x` in `main`: dimension 0 is sharded over mesh axes 'dp' ")


def test_an_open_tensor_that_nothing_shards_is_not_stated():
    plan = {"x": (..., ...), "bias": ("dp",)}
    mod = dx.transform.PropagateSharding()(dx.annotate(Block, dx.Mesh(dp=2), plan))
    assert dx.explain(mod, "x").lines == (
        '`x` in `main`: replicated (placement "R"), nothing shards it',
    )
