"""Sends tokens to the slots of experts that a mask assigns, instead of multiplying by the mask."""

import pytest
import tvm
from tests.analysis.pipelines import CPUS
from tvm import relax
from tvm.relax import op

import distir_ext as dx

from .checks import optimized, tally
from .slots import Slots

NAME = "dispatch_slots"


def legalized(layer, mesh, tokens="ep", experts="ep"):
    placed = dict.fromkeys(("up", "down"), (experts, None, None))
    plan = {**dict.fromkeys(("x", "ids", "scores"), (tokens, None)), **placed}
    return dx.lower(dx.annotate(layer.module(), mesh, plan), until="LegalizeRedistribute")


def operators(mod):
    """The names of the operators of ``main``."""
    return [
        binding.value.op.name
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, tvm.ir.Call)
    ]


@pytest.mark.parametrize("einsum", [True, False])
def test_products_with_the_mask_are_exchanges(einsum):
    result = optimized(legalized(Slots(einsum=einsum), dx.Mesh(ep=8)), NAME)
    assert tally(result, NAME).matched == 2
    found = operators(result)
    inside = found[found.index("relax.dist.dispatch_slots") :]
    inside = inside[: inside.index("relax.dist.combine_slots") + 1]
    assert [each for each in inside if each != "relax.reshape"] == [
        "relax.dist.dispatch_slots",
        "relax.matmul",
        "relax.nn.silu",
        "relax.matmul",
        "relax.dist.combine_slots",
    ]
    assert not {"relax.einsum", "relax.dist.reduce_scatter"} & set(found)
    assert dx.testing.violations(result, "legalized") == []


def test_every_stage_prints_and_parses():
    mod = optimized(legalized(Slots(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    for stage in (mod, dx.lower(mod, until="LowerDistIR"), dx.transform.LowerCCL()(dx.lower(mod))):
        tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)


def test_bytes_are_those_of_the_choices():
    """512 tokens, 64 experts with 16 slots each: 1.8 MB there as a sum of slots, 0.23 as rows."""
    layer = Slots(512, 64, 1024, 2048, capacity=16, dtype="float16")
    mod = legalized(layer, dx.Mesh(ep=8))
    usual = dx.lower(dx.transform.OptimizeCollectives(disable=NAME)(mod))
    sent = {each.kind: each.bytes_per_device for each in dx.analysis.collectives(usual)}
    assert sent["reduce_scatter"] == 1_835_008
    exe = dx.transform.LowerCCL()(dx.lower(dx.transform.OptimizeCollectives()(mod)))
    for program in (dx.lower(dx.transform.OptimizeCollectives()(mod)), exe):
        sent = {each.kind: each for each in dx.analysis.collectives(program)}
        for kind in ("dispatch_slots", "combine_slots"):
            assert sent[kind].bytes_per_device == 64 * 2 * 1024 * 2 * 7 // 8
            assert sent[kind].axes == ("ep",)
        assert "reduce_scatter" not in sent


def test_estimates_count_the_rows():
    layer = Slots(tokens=64, capacity=8, choices=1)
    (program,) = dx.analysis.estimate(dx.lower(legalized(layer, dx.Mesh(ep=8))), CPUS).programs
    sent = {each.kind: each.bytes_per_device for each in program.collectives}
    assert sent["dispatch_slots"] == sent["combine_slots"] == 8 * 32 * 4 * 7 / 8


def test_work_is_that_of_the_slots():
    """512 tokens and two choices fill 64 experts with 16 slots each."""
    layer = Slots(512, 64, 1024, 2048, capacity=16, dtype="float16")
    (program,) = dx.analysis.estimate(dx.lower(legalized(layer, dx.Mesh(ep=8))), CPUS).programs
    products = [each for each in program.kernels if each.cost.flops > 1e8]
    work = sum(each.cost.flops for each in products)
    total = 2 * 2 * 512 * 2 * 1024 * 2048
    assert total / 8 <= work <= 1.1 * total / 8


def test_over_further_axes_the_slots_are_summed():
    mod = optimized(legalized(Slots(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    found = [(each.kind, each.axes) for each in dx.analysis.collectives(dx.lower(mod))]
    assert ("dispatch_slots", ("ep",)) in found
    assert ("all_reduce", ("dp",)) in found
    assert found[-1] == ("combine_slots", ("ep",))


def test_groups_of_tokens_go_all_to_all():
    """GShard's groups, which lie on devices as the tokens do, are sent as slots already."""
    shapes = {"x": (8, 32, 256), "mask": (8, 32, 16, 4), "up": (16, 256, 512)}
    x, mask, up = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask, up]):
        with builder.dataflow():
            given = builder.emit(op.einsum((x, mask), "gsm,gsec->egcm"))
            made = builder.emit(op.einsum((given, up), "egcm,emh->egch"))
            result = builder.emit_output(op.einsum((made, mask), "egch,gsec->gsh"))
        builder.emit_func_output(result)
    groups = {"x": ("ep", None, None), "mask": ("ep", None, None, None)}
    mod = dx.annotate(builder.get(), dx.Mesh(ep=8), {**groups, "up": ("ep", None, None)})
    kinds = [each.kind for each in dx.analysis.collectives(dx.lower(mod))]
    assert kinds == ["all_to_all", "all_to_all"]


def test_what_is_no_mask_stays():
    shapes = {"x": (24, 32), "mask": (24, 16, 2), "up": (16, 32, 48)}
    x, mask, up = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items())
    builder = relax.BlockBuilder()
    with builder.function("main", [x, mask, up]):
        with builder.dataflow():
            given = builder.emit(op.einsum((x, mask), "td,tec->ecd"))
            result = builder.emit_output(op.matmul(given, up))
        builder.emit_func_output(result)
    plan = {"x": ("ep", None), "mask": ("ep", None, None), "up": ("ep", None, None)}
    mod = dx.lower(dx.annotate(builder.get(), dx.Mesh(ep=8), plan), until="LegalizeRedistribute")
    result = optimized(mod, NAME)
    assert (tally(result, NAME).matched, tally(result, NAME).skipped) == (0, {})


def test_a_library_that_does_not_dispatch():
    mod = legalized(Slots(), dx.Mesh(ep=8))
    with dx.pass_reports() as reports:
        dx.transform.OptimizeCollectives(ccl="nccl")(mod)
    assert reports[-1].skipped[NAME] == {"the runtime does not dispatch slots": 2}
