"""Every variable of a module is explained after every pass, and the same after parsing its text."""

import pytest
import tvm
from tests.lower.virtual_stage_programs import There
from tvm import relax
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R

import distir_ext as dx

PASSES = {
    "propagated": dx.transform.PropagateSharding(),
    "padded": dx.transform.PadShards(),
    "expanded": dx.transform.DecomposeSharded(),
    "legalized": dx.transform.LegalizeRedistribute(),
    "optimized": dx.transform.OptimizeCollectives(),
    "lowered": dx.transform.LowerDistIR(),
    "runtime calls": dx.transform.LowerCCL(),
}
MESH = dx.Mesh((2, 2), ("dp", "tp"))
PLAN = {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None), "head": (None, "tp")}


@I.ir_module
class Network:
    @R.function(private=True)
    def block(
        y: R.Tensor((8, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            wide = R.nn.relu(R.matmul(y, up))
            narrow = R.matmul(wide, down)
            R.output(narrow)
        return narrow

    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        up: R.Tensor((16, 32), "float32"),
        down: R.Tensor((32, 16), "float32"),
        head: R.Tensor((16, 7), "float32"),
    ) -> R.Tensor((8, 7), "float32"):
        cls = Network
        with R.dataflow():
            first = cls.block(x, up, down)
            added = R.add(first, x)
            scores = R.matmul(added, head)
            shares = R.nn.softmax(scores)
            R.output(shares)
        return shares


@I.ir_module
class TwoMeshes:
    @R.function
    def main(
        x: R.Tensor((8, 16), "float32"),
        a: R.Tensor((16, 16), "float32"),
        b: R.Tensor((16, 16), "float32"),
    ) -> R.Tensor((8, 16), "float32"):
        with R.dataflow():
            first = R.matmul(x, a)
            second = R.matmul(first, b)
            R.output(second)
        return second


def stages(mod):
    """The module after each pass, by the pass's effect."""
    found = {}
    for name, run in PASSES.items():
        mod = found[name] = run(mod)
    return found


def variables(function):
    """All that TVMScript prints the name of: what has no value, as a send, has none."""
    blocks = list(function.body.blocks)
    bound = (binding.var for block in blocks for binding in block.bindings)
    return [*function.params, *(var for var in bound if var.ty != relax.TupleType([]))]


@pytest.fixture(scope="module")
def network():
    return stages(dx.annotate(Network, MESH, PLAN))


@pytest.fixture(scope="module")
def two_meshes():
    first, second = dx.Mesh((2,), ("dp",)), dx.Mesh((2,), ("tp",), device_ids=[2, 3])
    plan = {"x": ("dp", None), "a": None, "b": (second, (None, "tp"))}
    return stages(dx.annotate(TwoMeshes, first, plan))


@pytest.mark.parametrize("stage", PASSES)
@pytest.mark.parametrize("program", ["network", "two_meshes"])
def test_every_variable_is_known_and_survives_printing(program, stage, request, caplog):
    mod = request.getfixturevalue(program)[stage]
    parsed = tvm.script.from_source(mod.script())
    caplog.clear()
    for gv, function in mod.functions_items():
        if not isinstance(function, relax.Function):
            continue
        names = [str(var.name) for var in variables(function)]
        assert len(set(names)) == len(names)
        for name, of_var in zip(names, dx.explain(mod, variables(function)), strict=True):
            text = str(dx.explain(mod, name, gv.name_hint))
            assert text.startswith(f"`{name}` in `{gv.name_hint}`")
            assert text == str(dx.explain(parsed, name, gv.name_hint))
            assert of_var.variable == name
    assert caplog.records == []


def test_a_partial_value_and_its_sum(network):
    (block,) = (gv.name_hint for gv in network["propagated"].functions if "block" in gv.name_hint)
    placed = """partial sum over 'tp' (placement "S[0], R", which does not say so): """
    partial = placed + "relax.matmul combines dimension 1 of `wide`, whose shards"
    lines = dx.explain(network["propagated"], "narrow", block).lines
    assert lines[0].startswith(f"`narrow` in `{block}`: {partial}")
    for stage in ("legalized", "lowered", "runtime calls"):
        mod = network[stage]
        (name,) = (gv.name_hint for gv in mod.functions if "block" in gv.name_hint)
        lines = dx.explain(mod, "narrow_1", name).lines
        assert lines[0].startswith(f"`narrow_1` in `{name}`: {partial}")
        assert dx.explain(mod, "narrow", name).lines[0] == (
            f"`narrow` in `{name}`: all_reduce over 'tp' of the partial `narrow_1`"
        )
        (reduced,) = (line for line in lines if "is reduced" in line)
        assert reduced.startswith(
            "`narrow_1` is reduced, from ('dp', None), partial sum over 'tp' to ('dp', None)"
        )
        assert "bytes per device" in reduced


def test_what_passes_write_in_steps_says_of_what(network):
    mod = network["runtime calls"]
    shares = dx.explain(mod, "shares").lines[0]
    assert "relax.nn.softmax" in shares
    steps = [str(var.name) for var in variables(mod["main"]) if "shares_" in str(var.name)]
    made = [str(dx.explain(mod, name)) for name in steps]
    assert any("to compute `shares` (relax.nn.softmax)" in text for text in made)


def test_names_stay_through_all_passes(network):
    before = {str(var.name) for var in variables(network["propagated"]["main"])}
    after = {str(var.name) for var in variables(network["runtime calls"]["main"])}
    assert before <= after


def test_variables_of_equal_names_get_different_ones():
    type_ = relax.TensorType((8, 16), "float32")
    x, *same = (relax.Var(name, type_) for name in ("x", "same", "same", "same"))
    bindings = []
    for source, var in zip([x, *same], same, strict=False):
        value = relax.op.exp(source)
        relax.expr._update_type(value, type_)
        bindings.append(relax.VarBinding(var, value))
    body = relax.SeqExpr([relax.BindingBlock(bindings)], same[-1])
    relax.expr._update_type(body, type_)
    main = relax.Function([x], body).with_attr("global_symbol", "main")
    annotated = dx.annotate(tvm.IRModule({"main": main}), MESH, {"x": ("dp", None)})
    propagated = dx.transform.PropagateSharding()(annotated)
    names = [str(var.name) for var in variables(propagated["main"])]
    assert {"same", "same_1", "same_2"} <= set(names)
    assert len(set(names)) == len(names)


def test_programs_of_rounds_have_all_that_was_noted_of_them():
    programs = dx.lower(There)
    functions = {gv.name_hint: function for gv, function in programs.functions_items()}
    assert len(functions) > 2
    for name, function in functions.items():
        for explanation in dx.explain(programs, variables(function), name):
            assert "other passes" not in str(explanation)


def test_chains_of_workers_programs_lead_to_annotations(network):
    for stage in ("lowered", "runtime calls"):
        lines = dx.explain(network[stage], "added").lines
        assert lines == (
            "`added` in `main`: dimension 0 is sharded over mesh axes 'dp' (placement \"S[0], R\")",
            "  from `x` in `main` dimension 0 through relax.add",
            "  stated by an annotation or a type of `x` in `main`",
        )


def test_modules_of_other_passes_are_explained(network):
    for run in (relax.transform.CanonicalizeBindings(), relax.transform.ConvertToDataflow()):
        mod = run(network["lowered"])
        assert "stated by an annotation" in str(dx.explain(mod, "added"))


def test_an_annotated_module_is_propagated_first():
    annotated = dx.annotate(Network, MESH, PLAN)
    assert "stated by an annotation or a type of `x`" in str(dx.explain(annotated, "added"))


def test_a_variable_of_an_earlier_module_is_found_by_its_name(network):
    annotated = dx.annotate(Network, MESH, PLAN)
    (added,) = (var for var in variables(annotated["main"]) if var.name == "added")
    assert dx.explain(network["lowered"], added) == dx.explain(network["lowered"], "added")


def test_what_is_no_variable_is_refused(network):
    with pytest.raises(TypeError, match="explain takes names and variables, not a int"):
        dx.explain(network["propagated"], 3)
    with pytest.raises(ValueError, match=r"no variable 'aded' in .* \(near: added\)"):
        dx.explain(network["propagated"], "aded")
    with pytest.raises(ValueError, match=r"no Relax function 'mian'; it has: .*main"):
        dx.explain(network["propagated"], "added", "mian")
