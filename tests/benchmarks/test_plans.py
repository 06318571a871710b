"""Standard plans of transformers communicate no more than XLA does, and what the textbook says."""

import dataclasses

import pytest
from tests.benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def plans():
    with benchmark_module("plans") as module:
        yield module


def megabytes(found):
    return sum(one.bytes_per_device * one.count for one in found) / 1e6


@pytest.mark.parametrize("name", ["tp8", "dp2_tp4", "fsdp8", "dp2_tp2_sp2", "moe_ep", "moe_ep_a2a"])
def test_no_plan_sends_more_than_xla(plans, name):
    found = plans.partitioned(plans.PLANS[name], plans.ModelConfig())
    assert megabytes(found) <= plans.RECORDED[name][1] + 0.05


def test_fully_sharded_weights_take_no_all_reduce(plans):
    found = plans.partitioned(plans.PLANS["fsdp8"], plans.ModelConfig())
    assert {one.kind for one in found} == {"all_gather", "reduce_scatter"}
    assert megabytes(found) < 1762


def test_experts_do_not_gather_the_routers_choices(plans):
    found = plans.partitioned(plans.PLANS["moe_ep"], plans.ModelConfig())
    assert [(one.kind, one.count) for one in found] == [("all_reduce", 1)]


def collectives_of_layer(plans, kv_heads):
    config = dataclasses.replace(plans.ModelConfig(), layers=1, kv_heads=kv_heads)
    return plans.partitioned(plans.PLANS["tp8"], config)


@pytest.mark.parametrize("kv_heads", [2, 4])
def test_fewer_key_and_value_heads_than_devices_are_copied(plans, kv_heads):
    """Devices have the head that their queries need, so what is sent is what eight heads send."""
    found, wanted = (
        [(one.kind, one.count, one.bytes_per_device) for one in collectives_of_layer(plans, heads)]
        for heads in (kv_heads, 8)
    )
    assert found == wanted
    assert {kind for kind, _, _ in found} == {"all_reduce"}


def test_one_key_and_value_head_is_only_gathered(plans):
    found = collectives_of_layer(plans, 1)
    assert {one.kind for one in found} == {"all_reduce", "all_gather"}
    gathers = [one for one in found if one.kind == "all_gather"]
    assert sum(one.count for one in gathers) <= 2
    assert megabytes(gathers) < 8  # a batch of keys or values is 8 x 1024 x 128 x 4 bytes = 4.2 MB
