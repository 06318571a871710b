"""``distir sweep``: the sweep of the library, as tables, as JSON, as a page and as a picture."""

from __future__ import annotations

import json
import re
import sys

import pytest
from tests.cli.conftest import MODEL

import distir_ext as dx
from distir_ext import cli
from distir_ext.interop._program_files import read_program

SYMBOLIC = MODEL.replace("(8, 64)", '("n", 64)')
DATA = {"x": "dp,-"}
TENSOR = {"x": "dp,-", "up": "-,tp", "down": "tp,-"}
MESHES = ["--devices", "4", "--axes", "dp,tp,pp", "--stages", "pp"]
STATED = ["--mesh", "dp=2", "--shard", "x=dp,-"]
BATCHES = ["--microbatches", "1,2", "--batch", "n", "--size", "n=16"]


@pytest.fixture
def command(file):
    """A program and two plans, on all meshes of 4 devices, in 1 and 2 microbatches."""
    program = file("model.py", SYMBOLIC)
    plans = ["--plan", file("data.json", DATA), "--plan", f"both={file('t.json', TENSOR)}"]
    return ["sweep", program, *MESHES, *BATCHES, *plans]


@pytest.fixture
def expected(command):
    return dx.analysis.sweep(
        read_program("model.py"),
        dx.analysis.factorizations(4, ("dp", "tp", "pp")),
        {
            "data": {"x": ("dp", None)},
            "both": {"x": ("dp", None), "up": (None, "tp"), "down": ("tp", None)},
        },
        dx.Cluster.preset("H100"),
        stages="pp",
        microbatches=(1, 2),
        batch="n",
        sizes={"n": 16},
    )


def test_tables_and_json_are_those_of_the_library(command, expected, printed, data):
    assert printed(*command).rstrip() == str(expected).rstrip()
    found = data(*command)
    assert found.pop("program") == "model.py"
    assert found == json.loads(expected.to_json())
    assert len(found["configurations"]) == 6 * 2 * 2
    short = printed(*command, "--rows", 3)
    assert "(first 3)" in short
    assert str(expected.ranked[2].plan) in short


def test_pages_and_pictures(command, expected, printed, tmp_path):
    text = printed(*command, "--html", "sweep.html", "--plot", "sweep.svg", "--rows", 1)
    assert "(first 1)" in text
    page = (tmp_path / "sweep.html").read_text()
    assert "<svg" in page
    assert str(expected.best) in page
    shown = sum(row.error is None for row in expected.configurations)
    assert page.count("<tr>") >= shown  # all of them
    assert "<svg" in (tmp_path / "sweep.svg").read_text()


def test_without_matplotlib_pages_say_so(command, printed, tmp_path, monkeypatch, refused):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'distir-ext[plot]'" in refused(*command, "--plot", "sweep.svg")
    printed(*command, "--html", "sweep.html")
    assert "This page has no pictures" in (tmp_path / "sweep.html").read_text()


def test_shardings_of_the_command_line_come_first(file, data):
    program = file("model.py", MODEL)
    plan = ["--plan", file("wrong.json", {**TENSOR, "x": "-,dp"})]
    meshes = ["--mesh", "dp=2,tp=2", "--mesh", "dp=4,tp=1"]
    found = data("sweep", program, *meshes, *plan, "--shard", "x=dp,-")
    stated = [word for each in TENSOR.items() for word in ("--shard", "=".join(each))]
    alone = data("sweep", program, *meshes, *stated)
    rows = [each["configurations"] for each in (found, alone)]
    seconds = [[row["seconds"] for row in each] for each in rows]
    assert seconds[0] == seconds[1]
    assert {row["plan"] for row in rows[0]} == {"wrong"}
    assert {row["plan"] for row in rows[1]} == {"stated"}


def test_memory_limit(command, data, capsys):
    rows = data(*command)["configurations"]
    sizes = sorted(row["peak_memory"] for row in rows if row["error"] is None)
    limit = sizes[len(sizes) // 2]
    found = data(*command, "--memory-limit", limit)
    assert sum(row["fits"] for row in found["configurations"]) == sum(s <= limit for s in sizes)
    assert cli.main([*command, "--memory-limit", "1", "--fail-over-memory"]) == 1
    out, err = capsys.readouterr()
    assert "24 configurations on H100, 0 fit into 1 B per device" in out
    assert err == "distir sweep: no configuration fits into 1 B per device\n"
    assert cli.main([*command, "--fail-over-memory"]) == 0


def test_status_where_nothing_can_be_partitioned(file, capsys):
    program = file("model.py", MODEL)
    wide = ["sweep", program, "--mesh", "dp=1024", "--shard", "x=dp,-"]
    assert cli.main(wide) == 1
    out, err = capsys.readouterr()
    assert "1 cannot be partitioned" in out
    assert err == "distir sweep: no configuration can be partitioned\n"
    assert cli.main([*wide, "--mesh", "dp=2"]) == 0
    assert cli.main(["sweep", program, "--mesh", "dp=2"]) == 1
    assert "no plan is stated: --plan FILE, or --shard" in capsys.readouterr().err


@pytest.mark.large
def test_processes_give_the_same(command, data):
    assert data(*command, "--processes", 2) == data(*command)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--axes", "dp"], 2, "--devices and --axes belong together"),
        ([], 2, "state what to compare: --mesh, or --devices and --axes"),
        (["--mesh", "dp=2", "--plan", "pan.json"], 1, "no plan pan.json; did you mean 'plan.json'"),
        (["--mesh", "dp=2", "--plan", "plan.json", "--plan", "plan.json"], 2, "two plans are call"),
        (["--mesh", "dp=2", "--plan", "=plan.json"], 2, "is not NAME=FILE or FILE"),
        (["--mesh", "dp=2", "--shard", "y=dp,-"], 1, "plan 'stated' fits no mesh: pattern 'y'"),
        (["--mesh", "dp=2", "--shard", "upp=dp,-"], 1, "did you mean 'up'"),
        ([*STATED, "--inputs", "y"], 1, "input 'y' is no parameter"),
        ([*STATED, "--stages", "p"], 1, "no mesh has the axis 'p'"),
        ([*STATED, "--microbatches", "1,0"], 2, "'0' is not a positive number"),
        ([*STATED, "--microbatches", "2"], 1, "microbatches divide a symbolic size"),
        ([*STATED, "--memory-limit", "x"], 2, "is not a number of bytes"),
        ([*STATED, "--memory-limit", "0"], 1, "must be positive"),
        ([*STATED, "--plot", "a.sgv"], 2, "--plot draws files .*svg.*, not 'a.sgv'"),
        ([*STATED, "--cluster", "H10"], 1, "no cluster 'H10'.*did you mean 'H100'"),
        (
            ["--mesh", "dp=2", "--devics", "2"],
            2,
            "no argument '--devics'; did you mean '--devices'",
        ),
    ],
)
def test_what_cannot_be_compared(model, file, refused, arguments, status, message):
    file("plan.json", TENSOR)
    line = refused("sweep", model, *arguments, status=status)
    assert re.search(message, line), line
