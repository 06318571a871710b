"""``distir simulate``: the timeline of the library, as tables, as JSON and as a trace."""

import gzip
import json

import pytest
from tests.cli.conftest import SHARDED

import distir_ext as dx
from distir_ext.interop._program_files import read_program

STAGES = ["--mesh", "pp=2,tp=2", "--stages", "pp", "--shard", "up=-,tp", "--shard", "down=tp,-"]


def staged(model):
    mesh = dx.Mesh(pp=2, tp=2)
    mod = dx.annotate(read_program(model), mesh, {"up": (None, "tp"), "down": ("tp", None)})
    return dx.transform.AssignStages(mesh, "pp")(mod)


def test_tables_are_those_of_the_library(model, printed):
    text = printed("simulate", model, *STAGES, "--microbatches", 4, "--schedule", "1f1b")
    timeline = dx.analysis.simulate(
        staged(model), dx.Cluster.preset("H100"), microbatches=4, schedule="1f1b"
    )
    assert text.rstrip() == str(timeline).rstrip()
    assert "for 4 microbatches (1f1b), on H100" in text


def test_json_has_the_times_of_devices_and_stages(model, data):
    found = data("simulate", model, *STAGES, "--microbatches", 4)
    timeline = dx.analysis.simulate(staged(model), dx.Cluster.preset("H100"), microbatches=4)
    assert found["seconds"] == timeline.seconds
    assert (found["microbatches"], found["schedule"], found["overlap"]) == (4, "gpipe", False)
    assert list(found["devices"]) == ["0", "1", "2", "3"]
    for device, times in found["devices"].items():
        assert times["bubble"] == timeline.by_device()[int(device)].bubble
        assert sum(times[part] for part in ("computing", "exposed", "idle")) == pytest.approx(
            timeline.seconds
        )
    assert list(found["stages"]) == ["0", "1"]
    shares = [each["share"] for each in found["critical_operators"]]
    assert sum(shares) == pytest.approx(1)


def test_communication_beside_kernels(model, data):
    found = data("simulate", model, *STAGES, "--microbatches", 8, "--overlap")
    timeline = dx.analysis.simulate(
        staged(model), dx.Cluster.preset("H100"), microbatches=8, overlap=True
    )
    assert found["overlap"] is True
    assert (found["seconds"], found["bubble"]) == (timeline.seconds, timeline.bubble)


@pytest.mark.parametrize("option", ["--perfetto", "-o"])
def test_a_trace_for_perfetto(model, printed, tmp_path, option):
    printed("simulate", model, *SHARDED, option, "trace.json.gz")
    with gzip.open(tmp_path / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}


def test_the_report_of_stages(model, data):
    programs = data("report", model, *STAGES)["programs"]
    assert [each["name"] for each in programs] == ["main_stage0", "main_stage1"]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--stages", "p"], 1, "there is no mesh axis 'p'"),
        (["--microbatches", "0"], 2, "argument --microbatches: '0' is not a positive number"),
        (["--schedule", "1fb"], 2, "there is no '1fb', only gpipe, 1f1b, interleaved; did you"),
        (["--func", "mian"], 1, "'mian'"),
    ],
)
def test_what_cannot_be_simulated(model, refused, arguments, status, message):
    assert message in refused("simulate", model, *SHARDED, *arguments, status=status)


def test_stages_need_a_mesh(model, refused):
    assert refused("simulate", model, "--stages", "pp", status=2) == "--stages needs --mesh"
