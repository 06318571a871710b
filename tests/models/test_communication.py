"""Communication of models under Megatron's plan, in bytes; no operator gathers."""

from __future__ import annotations

from collections import Counter

import pytest
from tvm import relax
from tvm.relax.distributed import DTensorType

import distir_ext as dx

pytestmark = pytest.mark.models

BATCH, SEQUENCE, HIDDEN, VOCABULARY, LAYERS = 4, 8, 64, 128, 2
FLOAT = 4  # bytes


def communicated(model, plan, first=None, devices=4):
    """Counts collectives by (kind, bytes sent per device); `first` comes before the plan."""
    partition = model.partitions[plan]
    patterns = {**(first or {}), **partition.patterns}
    lowered = dx.lower(dx.annotate(model.module, partition.mesh(devices), patterns))
    found: Counter[tuple[str, int]] = Counter()
    for each in dx.analysis.collectives(lowered):
        found[each.kind, each.bytes_per_device] += each.count
    return found


def beyond_megatron(found, data, tensor):
    """Collectives in addition to two all-reduces of the hidden states per layer.

    The embedding and the logits may take one collective each: at most a gather of their weight, or
    of the logits. Layers are alike, so that one that is needed inside of them comes LAYERS times.
    """
    share = (tensor - 1) / tensor
    hidden = BATCH // data * SEQUENCE * HIDDEN * FLOAT
    expected = Counter({("all_reduce", round(2 * share * hidden)): 2 * LAYERS})
    missing = expected - found
    assert not missing, f"Megatron's reductions are missing: {missing}"
    rest = sorted((found - expected).elements(), key=lambda each: each[1])
    outer = share * VOCABULARY * max(HIDDEN, BATCH // data * SEQUENCE) * FLOAT
    allowed = [each for each in rest if each[1] <= outer][:2]
    for each in allowed:
        rest.remove(each)
    return rest


@pytest.mark.parametrize(("plan", "data", "tensor"), [("tensor", 1, 4), ("data x tensor", 2, 2)])
def test_llama_needs_two_reductions_per_layer(exported, plan, data, tensor):
    model = exported("llama")
    assert model.inputs["input_ids"].shape == (BATCH, SEQUENCE)
    assert beyond_megatron(communicated(model, plan), data, tensor) == []


# Reductions of the hidden states: two per layer, one where there is no attention, and one of an
# embedding in shards. GPT-2 has one weight for queries, keys and values, Mixtral for gate and up,
# Mamba 2 for all that it projects, and one for all that it convolves.
@pytest.mark.parametrize(
    ("name", "reductions", "devices"),
    [
        ("gpt2", 2 * LAYERS, (3, 4, 7)),
        ("mixtral", 2 * LAYERS + 1, (3, 4, 7)),
        ("mamba2", LAYERS + 1, (3, 4)),
    ],
)
def test_weights_that_hold_several_are_reduced_only(exported, name, reductions, devices):
    for tensor in devices:
        check_reductions(
            communicated(exported(name), "tensor", devices=tensor), reductions, 1, tensor
        )
    check_reductions(communicated(exported(name), "data x tensor"), reductions, 2, 2)


def check_reductions(found, reductions, data, tensor):
    """So many reductions of the hidden states, and nothing else."""
    rows = BATCH // data * SEQUENCE
    reduced = round(2 * (tensor - 1) * rows * HIDDEN * FLOAT / tensor)
    (kind, sent), count = found.popitem()
    assert (kind, count, found) == ("all_reduce", reductions, Counter())
    assert reduced <= sent <= reduced + tensor * FLOAT  # devices send whole elements


def test_other_plans_are_not_taken_for_megatrons(exported):
    columns = {".*_layers_0_self_attn_o_proj_weight": ("tp", None)}  # where rows would do
    with pytest.raises(AssertionError, match="reductions are missing"):
        beyond_megatron(communicated(exported("llama"), "tensor", columns), 1, 4)


def test_gathers_inside_layers_are_seen(exported):
    found = communicated(exported("llama"), "tensor")
    found["all_gather", 18432] += 2
    assert beyond_megatron(found, 1, 4) != []


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "mamba2", "vision", "encoder"])
def test_no_operator_gathers(exported, name):
    """Every operator is sharded where its operands are; splits exchange what their parts lack."""
    assert gathering(exported(name), "tensor") == set()


def test_an_operator_that_gathers_is_seen(exported):
    assert "relax.matmul" in gathering(exported("llama"), "fully sharded")


def gathering(model, plan):
    """The operators before which a tensor is redistributed to fewer shards."""
    partition = model.partitions[plan]
    mod = dx.annotate(model.module, partition.mesh(4), partition.patterns)
    main = dx.transform.PropagateSharding()(mod)["main"]
    gathered = set()
    users = set()
    for block in main.body.blocks:
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call):
                continue
            if any(argument in gathered for argument in call.args):
                users.add(call.op.name)
            is_move = call.op.name == "relax.dist.redistribute"
            if is_move and shards(binding.var) < shards(call.args[0]):
                gathered.add(binding.var)
    return users


def shards(value):
    """The number of mesh axes that shard a tensor; none before it is placed."""
    if not isinstance(value.ty, DTensorType):
        return 0
    return sum(int(spec.axis) >= 0 for spec in value.ty.placement.dim_specs)


RATES = {"float64": 5e8, "float32": 1e9}
DEVICES = {
    target: dx.Device(target, RATES, memory=1e9, bandwidth=1e9, launch=0.0, target=target)
    for target in ("cuda", "llvm")
}


@pytest.mark.parametrize("target", DEVICES)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "mamba2", "vision", "encoder"])
def test_an_estimate_counts_what_is_sent_and_loses_no_operation(exported, name, target):
    model = exported(name)
    cluster = dx.Cluster.uniform(device=DEVICES[target])
    for partition in model.partitions.values():
        mod = dx.annotate(model.module, partition.mesh(4), partition.patterns)
        (program,) = dx.analysis.estimate(mod, cluster).programs
        if target == "cuda":  # for CPUs other collectives are chosen
            legal = dx.lower(mod, cluster, until="LegalizeRedistribute")
            for_gpus = dx.transform.OptimizeCollectives(ccl="nccl")(legal)
            listed = dx.analysis.collectives(dx.transform.LowerDistIR()(for_gpus))
            sent = sum(each.bytes_per_device * each.count for each in listed)
            assert program.bytes_sent == sent
        operators = sum(each.cost.flops * each.count for each in program.operators)
        assert operators == program.cost.flops > 0
