"""Traces are what the Trace Event Format asks for, and say what the timeline says."""

import gzip
import json
from collections import Counter

import pytest
from tests.analysis.pipelines import GPUS, staged
from tests.analysis.programs import CPU, megatron, on

import distir_ext as dx


def written(timeline, path, **options):
    timeline.to_perfetto(path, **options)
    return json.loads(path.read_text("utf-8"))


def simulated(cluster=None):
    mod = staged([(0, 2), (1, 3), (2, 1)], size=2)
    return dx.analysis.simulate(mod, cluster or on(CPU), microbatches=3)


@pytest.mark.parametrize("cluster", [on(CPU), GPUS], ids=["cpu", "gpu"])
def test_slices_are_the_events(tmp_path, cluster):
    found = simulated(cluster)
    data = written(found, tmp_path / "trace.json")
    slices = [each for each in data["traceEvents"] if each["ph"] == "X"]
    assert len(slices) == len(found.events)
    for row, event in zip(slices, found.events, strict=True):
        assert row["pid"] == event.device
        assert row["name"] == event.operator
        assert row["cat"] == event.kind
        assert row["ts"] == pytest.approx(event.start * 1e6)
        assert row["dur"] == pytest.approx(event.duration * 1e6)
        assert row["args"]["microbatch"] == event.microbatch
        assert row["args"]["stage"] == event.stage
    threads: dict[tuple[int, int], float] = {}
    for row in slices:  # on each thread one after the other
        key = row["pid"], row["tid"]
        assert row["ts"] >= threads.get(key, 0.0) - 1e-9
        threads[key] = row["ts"] + row["dur"]


def test_processes_and_threads_have_names(tmp_path):
    data = written(simulated(), tmp_path / "trace.json")
    names = {
        (each["pid"], each.get("tid")): each["args"]["name"]
        for each in data["traceEvents"]
        if each["ph"] == "M" and each["name"] in ("process_name", "thread_name")
    }
    assert names[3, None] == "device 3"
    assert (names[3, 0], names[3, 1]) == ("compute", "communication")
    used = {(each["pid"], each["tid"]) for each in data["traceEvents"] if each["ph"] == "X"}
    assert used <= set(names)
    assert set(data["otherData"]) == {"function", "schedule", "microbatches", "device"}


def test_arrows_lead_from_sends_to_receives(tmp_path):
    rows = written(simulated(), tmp_path / "trace.json")["traceEvents"]
    begins = {each["id"]: each for each in rows if each["ph"] == "s"}
    ends = {each["id"]: each for each in rows if each["ph"] == "f"}
    counts = Counter(each["id"] for each in rows if each["ph"] in "sf")
    # A value of one block goes to both devices of the next mesh, three times.
    assert len(begins) == 2 * 2 * 3
    assert set(begins) == set(ends)
    assert set(counts.values()) == {2}
    slices = {
        (each["pid"], each["tid"], each["ts"], each["cat"]) for each in rows if each["ph"] == "X"
    }
    for number, begin in begins.items():
        end = ends[number]
        assert end["pid"] // 2 == begin["pid"] // 2 + 1
        assert begin["ts"] <= end["ts"]
        assert end["bp"] == "e"
        assert (begin["pid"], begin["tid"], begin["ts"], "send") in slices
        assert (end["pid"], end["tid"], end["ts"], "recv") in slices


def test_some_devices_compressed(tmp_path):
    path = tmp_path / "trace.json.gz"
    found = dx.analysis.simulate(megatron(), on())
    found.to_perfetto(path, devices=[1])
    rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert {each["pid"] for each in rows} == {1}
    with pytest.raises(KeyError, match="no device 7, only 0, 1"):
        found.to_perfetto(tmp_path / "none.json", devices=[7])
    assert not (tmp_path / "none.json").exists()
