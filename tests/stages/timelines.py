"""Checks of measured timelines, and programs whose stages take stated times."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import tvm

from distir_ext.session.stages import Schedule, Timeline

# Workers that are processes get the controller's path.
sys.path.insert(0, str(Path(__file__).parent / "on_workers"))
importlib.import_module("stage_functions")
ON_WORKERS = ["stage_functions"]


def acting(
    stages: Sequence[tuple[int, str, float]], size: int = 1, interleaved: bool = False
) -> tvm.IRModule:
    """Stages of one device each: the device, a function of ``stage_functions`` and its seconds."""
    count = 1 + max(device for device, _, _ in stages)
    meshes = ", ".join(f"R.device_mesh((1,), I.Range({i}, {i + 1}))" for i in range(count))
    tensor = f'R.Tensor(({size},), "float32")'
    lines = []
    for stage, (device, function, seconds) in enumerate(stages):
        before = f"b{stage - 1}" if stage else "x"
        lines += [
            f'a{stage} = R.dist.annotate_sharding({before}, "mesh[{device}]", "R")',
            f'b{stage} = R.call_dps_packed("distir_test.stages.{function}", '
            f"(R.prim_value({seconds}), a{stage}), out_ty={tensor})",
        ]
    order = list(dict.fromkeys(device for device, _, _ in stages))
    attributes = [f'R.func_attr({{"distir.interleaved": {order}}})'] if interleaved else []
    body = [*attributes, *lines, f"return b{len(stages) - 1}"]
    source = [
        "@I.ir_module",
        "class Module:",
        f'    I.module_global_infos({{"mesh": [{meshes}]}})',
        "    @R.function",
        f"    def main(x: {tensor}):",
        *(f"        {line}" for line in body),
    ]
    return tvm.script.from_source("\n".join(source))


def check_order(timeline: Timeline, schedule: Schedule) -> None:
    """The devices ran the events of the schedule, in its order, one at a time, inputs first."""
    planned = {tuple((each.stage, each.microbatch) for each in mine) for mine in schedule.devices}
    found = set()
    for device in timeline.devices:
        events = timeline.of_device(device)
        found.add(tuple((each.stage, each.microbatch) for each in events))
        for event, later in itertools.pairwise(events):
            assert event.begin <= event.end <= later.begin, (event, later)
    assert found == planned
    begins: dict[tuple[int, int], float] = {}
    for each in timeline.events:
        key = each.stage, each.microbatch
        begins[key] = min(each.begin, begins.get(key, each.begin))
    for each in timeline.events:
        if each.stage > 0:  # it waits for what the stage before has computed
            assert each.begin >= begins[each.stage - 1, each.microbatch], each


def check_runs_ahead(timeline: Timeline, slow: int) -> None:
    """The device before the slow one ended its last event before that one's last but one."""
    assert timeline.of_device(slow - 1)[-1].end < timeline.of_device(slow)[-2].end


def most_in_flight(timeline: Timeline, first: int, last: int) -> int:
    """The most microbatches that one device has begun and another not ended."""
    begins = [event.begin for event in timeline.of_device(first)]
    ends = [event.end for event in timeline.of_device(last)]
    return max(sum(b <= at for b in begins) - sum(e <= at for e in ends) for at in begins)
