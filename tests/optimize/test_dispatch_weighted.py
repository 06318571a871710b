"""Computes experts only for tokens whose weight is not zero, instead of for all tokens."""

import pytest
import tvm
from tests.analysis.pipelines import CPUS
from tvm import tirx
from tvm.script import ir as I
from tvm.script import relax as R

import distir_ext as dx

from .checks import optimized, tally
from .dense_experts import FORMS, DenseExperts
from .test_dispatch_experts import operators

NAME = "dispatch_weighted"
ISSUE = {"experts": 64, "width": 1024, "inner": 2048, "dtype": "float16"}


def legalized(layer, mesh, tokens="ep", experts="ep"):
    mod = dx.annotate(layer.module(), mesh, layer.plan(tokens, experts))
    return dx.lower(mod, until="LegalizeRedistribute")


def test_experts_compute_the_pairs_that_count():
    mod = legalized(DenseExperts(), dx.Mesh(ep=8))
    result = optimized(mod, NAME)
    assert tally(result, NAME).matched == 1
    found = operators(result)
    moves = ("relax.expand_dims", "relax.permute_dims", "relax.reshape")
    inside = found[found.index("relax.dist.gather_rows") :]
    inside = inside[: inside.index("relax.dist.scatter_rows") + 1]
    assert [each for each in inside if each not in moves] == [
        "relax.dist.gather_rows",
        "relax.dist.select_pairs",  # tokens
        "relax.dist.grouped_matmul",
        "relax.nn.silu",
        "relax.dist.grouped_matmul",
        "relax.multiply",
        "relax.dist.grouped_matmul",
        "relax.dist.select_pairs",  # weights
        "relax.multiply",
        "relax.dist.place_pairs",
        "relax.dist.scatter_rows",
    ]
    assert not {"relax.dist.all_gather", "relax.dist.reduce_scatter", "relax.matmul"} & set(found)


def test_every_stage_prints_and_parses():
    mod = optimized(legalized(DenseExperts(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    for stage in (mod, dx.lower(mod, until="LowerDistIR"), dx.transform.LowerCCL()(dx.lower(mod))):
        tvm.ir.assert_structural_equal(tvm.script.from_source(stage.script()), stage)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("weights", ["scatter", "one_hot"])
def test_bytes_and_work_of_the_issue(weights, form):
    """512 tokens (here 504), 64 experts of 1024 x 2048, two choices: 0.46 MB in place of 1.8 to
    8.3, and a device computes its part of all choices."""
    layer = DenseExperts(tokens=504, form=form, weights=weights, **ISSUE)
    lowered = dx.lower(legalized(layer, dx.Mesh(ep=8)))
    for stage in (lowered, dx.transform.LowerCCL()(lowered)):
        sent = {each.kind: each for each in dx.analysis.collectives(stage)}
        for kind in ("gather_rows", "scatter_rows"):
            assert sent[kind].bytes_per_device == 504 * 2 // 8 * 1024 * 2 * 7 // 8
            assert sent[kind].axes == ("ep",)
        assert sum(each.bytes_per_device for each in sent.values()) < 0.5e6
    (program,) = dx.analysis.estimate(lowered, CPUS).programs
    total = 3 * 2 * 504 * 2 * 1024 * 2048
    work = sum(each.cost.flops for each in program.kernels if each.kernel == "grouped_matmul")
    assert total / 8 <= work <= 1.1 * total / 8
    assert program.bytes_sent == sum(each.bytes_per_device for each in sent.values())


def test_groups_are_those_of_the_experts():
    mod = optimized(legalized(DenseExperts(), dx.Mesh(dp=2, ep=4), ("dp", "ep")), NAME)
    for each in dx.analysis.collectives(dx.lower(mod)):
        assert (each.group_size, each.axes) == (4, ("ep",))


def test_tokens_that_all_devices_have_are_not_sent():
    mod = optimized(legalized(DenseExperts(), dx.Mesh(ep=8), None), NAME)
    assert tally(mod, NAME).matched == 1
    assert [each.kind for each in dx.analysis.collectives(dx.lower(mod))] == ["all_reduce"]


def test_weights_that_are_given_may_be_zero_nowhere():
    mod = legalized(DenseExperts(weights="given"), dx.Mesh(ep=8))
    result = optimized(mod, NAME)
    assert (tally(result, NAME).matched, tally(result, NAME).skipped) == (0, {})


def test_bytes_of_a_number_of_tokens_that_is_symbolic():
    layer = DenseExperts(tokens=tirx.Var("n", "int64"), **ISSUE)
    lowered = dx.lower(legalized(layer, dx.Mesh(ep=8)))
    for stage in (lowered, dx.transform.LowerCCL()(lowered)):
        sent = {each.kind: each for each in dx.analysis.collectives(stage)}
        for kind in ("gather_rows", "scatter_rows"):
            # A device has (n + 7) // 8 tokens of two choices.
            assert sent[kind].unit == "((n + 7) // 8)"
            assert sent[kind].bytes_per_unit == 2 * 1024 * 2 * 7 / 8
        assert "all_gather" not in sent


def test_a_library_that_does_not_select_pairs():
    mod = legalized(DenseExperts(), dx.Mesh(ep=8))
    result = dx.transform.OptimizeCollectives(ccl="nccl")(mod)
    assert tally(result, NAME).skipped == {"the runtime does not select pairs": 1}
    assert "relax.dist.select_pairs" not in operators(result)


@I.ir_module
class Lookup:
    """Looks up a sharded table: a masked sum over its shards, as for experts."""

    @R.function
    def main(table: R.Tensor((64,), "float32"), ids: R.Tensor((2, 3), "int32")):
        with R.dataflow():
            found = R.take(table, ids, axis=0)
            R.output(found)
        return found


@pytest.mark.parametrize("ccl", ["cpu", "nccl"])
def test_lookups_are_no_experts(ccl):
    mod = dx.annotate(Lookup, dx.Mesh(x=2), {"table": ("x",)})
    mod = dx.lower(mod, until="LegalizeRedistribute")
    assert "relax.where" in operators(mod)
    result = optimized(mod, NAME, ccl=ccl)
    assert (tally(result, NAME).matched, tally(result, NAME).skipped) == (0, {})
    assert operators(result) == operators(mod)
