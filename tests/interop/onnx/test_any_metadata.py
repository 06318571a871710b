"""Whatever a file says of devices: it is imported, or refused with a ValueError that says why."""

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distir_ext as dx

from . import models

SMALL = st.integers(-3, 7)
TENSORS = [
    *((0, tensor) for tensor in ("x", "up", "rows")),
    *((1, tensor) for tensor in ("rows", "bias", "hidden")),
    *((2, tensor) for tensor in ("hidden", "active")),
    *((3, tensor) for tensor in ("active", "down", "y", "x")),
]


@st.composite
def statements(draw):
    """Mostly right: the number of shards is mostly that of the devices."""
    node, tensor = draw(st.sampled_from(TENSORS))
    axes = draw(st.lists(st.integers(-2, 1), max_size=2, unique_by=lambda axis: axis % 2))
    shards = [draw(st.sampled_from((1, 2, 2, 3))) for _ in axes]
    number = 1
    for each in shards:
        number *= each
    devices = draw(st.permutations(range(draw(st.sampled_from((4, 4, 6))))))[:number]
    if draw(st.integers(0, 9)) == 0:
        devices = draw(st.lists(SMALL, max_size=4))
    groups = {}
    if draw(st.booleans()):
        size = draw(st.sampled_from((1, 2, 2, 3)))
        ids = draw(st.permutations(range(12)))
        groups = {-1 - i: ids[i * size : (i + 1) * size] for i in range(number)}
        devices = list(groups)
    return node, tensor, list(zip(axes, shards, strict=True)), devices, groups


STAGES = st.lists(st.none() | st.integers(0, 2), min_size=4, max_size=4)


def build(stated, stages, number):
    proto = ir.to_proto(models.mlp(batch=6, width=6, hidden=6, out=6))
    proto.configuration.add(name="c", num_devices=number)
    placements = []
    for node, stage in zip(proto.graph.node, stages, strict=True):
        placements.append(node.device_configurations.add(configuration_id="c"))
        if stage is not None:
            placements[-1].pipeline_stage = stage
    for node, tensor, axes, devices, groups in stated:
        spec = placements[node].sharding_spec.add(tensor_name=tensor, device=devices)
        for axis, shards in axes:
            spec.sharded_dim.add(axis=axis).simple_sharding.add(num_shards=shards)
        for key, value in groups.items():
            spec.index_to_device_group_map.add(key=key, value=value)
    return proto


def test_imported_or_refused(sample):
    outcomes = {"violations": 0, "no mesh": 0, "imported": 0}

    @settings(max_examples=sample(25, 150, 5000))
    @given(st.lists(statements(), max_size=4), STAGES, st.sampled_from((1, 4, 6, 12)))
    def check(stated, stages, number):
        proto = build(stated, stages, number)
        found = dx.interop.onnx.check(proto)
        if found:
            with pytest.raises(ValueError, match="configurations are not right") as raised:
                dx.interop.onnx.from_onnx(proto)
            assert all(str(each) in str(raised.value) for each in found)
            outcomes["violations"] += 1
            return
        refusal = ""
        try:
            imported = dx.interop.onnx.from_onnx(proto)
        except ValueError as error:
            refusal = str(error)
        if refusal:
            assert refusal.startswith("shardings that cannot be stated on a mesh")
            outcomes["no mesh"] += 1
            return
        outcomes["imported"] += 1
        if dx.phase(imported.mod) is None:  # nothing was stated
            return
        mod = dx.transform.PropagateSharding()(imported.mod)
        dx.testing.verify(mod, "propagated")
        written = dx.interop.onnx.write(mod, proto, "found")
        assert dx.interop.onnx.check(written) == []

    check()
    assert sample(True, all(outcomes.values()), all(outcomes.values())), outcomes
