"""Sends tokens to the devices of their experts instead of gathering the weights of experts."""

import pytest
import tvm
from tests.analysis.pipelines import CPUS
from tvm import relax

import distir_ext as dx

from .checks import optimized, tally
from .experts import Experts

NAME = "dispatch_experts"
WEIGHTS = ("up", "gate", "down")
TOKENS = ("x", "ids", "scores")


def plan_of(tokens, experts):
    return {**dict.fromkeys(TOKENS, (tokens, None)), **dict.fromkeys(WEIGHTS, experts)}


def legalized(layer, mesh, tokens="ep", experts=("ep", None, None)):
    mod = dx.annotate(layer.module(), mesh, plan_of(tokens, experts))
    return dx.lower(mod, until="LegalizeRedistribute")


def operators(mod):
    """The names of the operators of ``main``."""
    return [
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]


@pytest.mark.parametrize("columns", [False, True])
def test_what_lies_between_products_is_computed_where_the_experts_are(columns):
    mod = legalized(Experts(columns=columns), dx.Mesh(ep=8))
    result = optimized(mod, NAME)
    assert tally(result, NAME).matched == 3
    found = operators(result)
    region = found[found.index("relax.dist.dispatch_tokens") :]
    region = region[: region.index("relax.dist.combine_tokens") + 1]
    assert [each for each in region if each != "relax.reshape"] == [
        "relax.dist.dispatch_tokens",
        "relax.dist.grouped_matmul",
        "relax.dist.grouped_matmul",
        "relax.nn.silu",
        "relax.multiply",
        "relax.dist.grouped_matmul",
        "relax.dist.combine_tokens",
    ]
    assert found.count("relax.dist.dispatch_tokens") == 1
    assert found.count("relax.dist.combine_tokens") == 1
    assert not {"relax.dist.all_gather", "relax.take", "relax.matmul"} & set(found)
    assert dx.testing.violations(result, "legalized") == []


def test_every_stage_prints_and_parses():
    mod = optimized(legalized(Experts(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    for stage in (mod, dx.lower(mod, until="LowerDistIR"), dx.transform.LowerCCL()(dx.lower(mod))):
        tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)


def test_bytes_of_the_issue():
    """512 tokens, 64 experts of 1024 x 2048, two choices: 234.9 MB of weights, or 0.7 of tokens."""
    layer = Experts(tokens=512, experts=64, width=1024, inner=2048, dtype="float16", products=1)
    mod = legalized(layer, dx.Mesh(ep=8))
    usual = dx.transform.OptimizeCollectives(disable=NAME)(mod)
    (gather,) = dx.analysis.collectives(dx.lower(usual))
    assert gather.bytes_per_device == 234_881_024
    lowered = dx.lower(dx.transform.OptimizeCollectives()(mod))
    there, back = dx.analysis.collectives(lowered)
    assert (there.kind, there.bytes_per_device) == ("dispatch_tokens", 229_376)
    assert (back.kind, back.bytes_per_device) == ("combine_tokens", 458_752)
    assert there.axes == back.axes == ("ep",)


def test_a_shared_expert_is_summed_with_the_others():
    """Of tokens that all devices have; each device has a part of its inside."""
    layer = Experts().module()["main"]
    names = [each.name for each in layer.params]
    builder = relax.BlockBuilder()
    shapes = {"shared_up": (32, 48), "shared_down": (48, 32)}
    params = [relax.Var(each.name, each.ty) for each in layer.params]
    up, down = (relax.Var(name, relax.TensorType(each)) for name, each in shapes.items())
    routed = builder.add_func(layer.without_attr("global_symbol"), "routed")
    with builder.function("main", [*params, up, down]):
        with builder.dataflow():
            inner = builder.emit(relax.op.nn.silu(builder.emit(relax.op.matmul(params[0], up))))
            shared = builder.emit(relax.op.matmul(inner, down))
            both = builder.emit_output(relax.op.add(builder.emit(routed(*params)), shared))
        builder.emit_func_output(both)
    mod = relax.transform.InlinePrivateFunctions()(builder.get())
    plan = dict.fromkeys(names[3:], ("ep", None, None))
    plan |= {"shared_up": (None, "ep"), "shared_down": ("ep", None)}
    (sent,) = dx.analysis.collectives(dx.lower(dx.annotate(mod, dx.Mesh(ep=8), plan)))
    assert (sent.kind, sent.count) == ("all_reduce", 1)


def test_groups_are_those_of_the_experts():
    mod = optimized(legalized(Experts(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    for each in dx.analysis.collectives(dx.lower(mod)):
        assert (each.group_size, each.axes) == (4, ("ep",))


FORMS = {
    "looked up": {},
    "by columns": {"columns": True},
    "with biases": {"biases": True},
    **{order: {"order": order} for order in ("argsort", "scatter", "places", "add")},
}


@pytest.mark.parametrize("tokens", ["ep", None])
@pytest.mark.parametrize("form", FORMS)
def test_work_is_that_of_the_choices(form, tokens):
    """With experts chosen equally often, each device computes its share of all operations."""
    layer = Experts(tokens=512, experts=64, width=1024, inner=2048, dtype="float16", **FORMS[form])
    (program,) = dx.analysis.estimate(
        dx.lower(legalized(layer, dx.Mesh(ep=8), tokens)), CPUS
    ).programs
    products = [each for each in program.kernels if each.kernel == "grouped_matmul"]
    work = sum(each.cost.flops for each in products)
    total = 3 * 2 * 512 * 2 * 1024 * 2048
    assert total / 8 <= work <= 1.1 * total / 8


def test_estimates_count_what_is_sent():
    layer = Experts(tokens=64, experts=16, width=32, inner=48, products=1)
    (program,) = dx.analysis.estimate(dx.lower(legalized(layer, dx.Mesh(ep=8))), CPUS).programs
    assert program.bytes_sent == 64 * 2 / 8 * (32 + 48) * 4 * 7 / 8


@pytest.mark.parametrize(
    ("experts", "tokens", "shapes", "why"),
    [
        ((None, None, "ep"), "ep", {}, None),
        (
            ("ep", None, None),
            "ep",
            {"tokens": 2048, "inner": 8},
            "gathering the experts sends less",
        ),
    ],
)
def test_what_stays(experts, tokens, shapes, why):
    layer = Experts(products=1, **shapes)
    mod = legalized(layer, dx.Mesh(ep=4, tp=2), tokens, experts)
    result = optimized(mod, NAME)
    assert tally(result, NAME).matched == 0
    assert set(tally(result, NAME).skipped) == ({why} if why else set())


def test_a_library_that_does_not_dispatch():
    mod = legalized(Experts(), dx.Mesh(ep=8))
    result = dx.transform.OptimizeCollectives(ccl="nccl")(mod)
    assert tally(result, NAME).skipped == {"the runtime does not dispatch tokens": 3}
    assert "relax.dist.dispatch_tokens" not in operators(result)
