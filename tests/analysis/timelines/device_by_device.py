"""When events happen, found without classes of devices: one device and one event at a time."""

from __future__ import annotations

import json
from typing import Any

import tvm_ffi

COMPUTE, COLLECTIVE, SEND, RECEIVE = range(4)


def begins(problem: dict[str, Any]) -> dict[int, list[float]]:
    """By device id, when each of its events begins.

    Args:
        problem: What ``distir.analysis.Simulate`` gets.
    """
    ids = problem["device_ids"]
    events: dict[int, list[dict[str, Any]]] = {}
    for device, by_stage in zip(ids, problem["devices"], strict=True):
        turns: dict[int, int] = {}
        events[device] = []
        for entry, (virtual_stage, _) in enumerate(problem["order"]):
            program = by_stage[virtual_stage]
            rows = problem["programs"][program] if program >= 0 else []
            first = len(events[device])
            for kind, seconds, stream, number, _, after in rows:
                turn = turns.get(number, 0)
                turns[number] = turn + 1
                before = [first + each for each in after]
                before += [i for i, e in enumerate(events[device]) if e["stream"] == stream][-1:]
                event = {"kind": kind, "seconds": seconds, "stream": stream, "entry": entry}
                events[device].append(event | {"key": (number, turn), "before": before})
    peers = [_peers(form, text, ids) for form, text in problem["communications"]]
    at = {(d, e["key"]): e for d in ids for e in events[d] if e["key"][0] >= 0}
    finishers = [ids[each] for each in problem["finishers"]]
    changed = True
    while changed:
        changed = False
        for index, device in enumerate(ids):
            for event in events[device]:
                if "end" in event:
                    continue
                mine = [events[device][each] for each in event["before"]]
                limit = problem["limits"][index]
                if limit and event["entry"] >= limit:
                    last = event["entry"] - limit
                    mine += [e for d in finishers for e in events[d] if e["entry"] == last]
                if any("end" not in each for each in mine):
                    continue
                if "arrival" not in event:
                    event["arrival"] = max([0.0, *(each["end"] for each in mine)])
                    changed = True
                times = [event["arrival"]]
                for other in _others(problem, peers, device, event):
                    times.append(at[other, event["key"]].get("arrival"))
                if None in times:
                    continue
                event["begin"] = max(times)
                event["end"] = event["begin"] + event["seconds"]
                changed = True
    return {device: [each["begin"] for each in events[device]] for device in ids}


def _others(problem, peers, device, event):
    """The devices that an event waits for, until they come to theirs."""
    if event["kind"] == COMPUTE:
        return
    sources, targets = (side.get(device, ()) for side in peers[event["key"][0]])
    waits = problem["sends_wait"]
    if event["kind"] != SEND:
        yield from sources
    if waits and event["kind"] != RECEIVE:
        yield from targets


def _peers(form, text, ids):
    """By device those whose data it needs, and those that need its data."""
    if form == "groups":
        groups = [[int(each) for each in group] for group in json.loads(text)]
        members = {device: group for group in groups for device in group}
        return members, members
    found = tvm_ffi.get_global_func("distir.analysis.Peers")(text, ids)
    return tuple({int(d): [int(each) for each in peers] for d, peers in side} for side in found)
