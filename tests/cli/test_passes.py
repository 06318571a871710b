"""``distir passes``, and pipelines of other commands."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import MODEL, SHARDED

import distir_ext as dx
from distir_ext import cli

PASSES = """
import distir_ext as dx

@dx.pipelines.register_pass("count_sums", phase="lowered")
def count_sums(mod, matches, *, unit: str = "sums"):
    \"\"\"Counts all-reduces.\"\"\"
    matches.add(unit, mod.script().count("R.ccl.all_reduce"))
    return mod
"""


@pytest.fixture(autouse=True)
def _forget():
    yield
    dx.pipelines.unregister_pass("count_sums")


def test_passes_are_listed(file, printed, data):
    config = file("mine.yaml", "passes:\n  count_sums: {unit: totals}\n")
    arguments = ["--config", config, "--import", file("passes.py", PASSES)]
    lines = [line.split() for line in printed("passes", *arguments).splitlines()]
    assert ["count_sums", "lowered", "yes", "unit='totals'", "_distir_program_passes"] in lines
    assert ["OutlineRepeats", "annotated", "no", "distir_ext"] in lines
    dx.pipelines.unregister_pass("count_sums")  # the file is run again
    rows = {row["name"]: row for row in data("passes", *arguments)["passes"]}
    assert rows["count_sums"]["options"] == {"unit": "totals"}
    assert rows["count_sums"]["summary"] == "Counts all-reduces."
    assert rows["PadShards"]["required"]


def test_the_defaults_are_a_configuration(file, printed):
    text = printed("passes", "--yaml")
    assert text == dx.pipelines.default_text()
    assert printed("passes", "--config", file("all.yaml", text)) == printed("passes")


def test_partition_runs_them(file, data):
    program = file("model.py", MODEL)
    config = file("mine.yaml", "passes:\n  OptimizeCollectives: {enabled: false}\n")
    arguments = ["--config", config, "--import", file("passes.py", PASSES)]
    found = data("partition", program, *SHARDED, *arguments)
    reports = {report["name"]: report for report in found["passes"]}
    assert reports["count_sums"]["done"] == {"sums": 1}
    assert "OptimizeCollectives" not in reports


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "missing.yaml"], "there is no configuration missing.yaml"),
        (
            ["--config", "wrong.yaml"],
            "line 1, passes.PadShard: there is no such pass, 'distir passes'",
        ),
        (["--import", "broken.py"], "broken.py:1: ZeroDivisionError"),
        (["--yaml", "--config", "wrong.yaml"], "--yaml prints the defaults"),
    ],
)
def test_what_is_wrong_is_said(file, capsys, arguments, message):
    file("wrong.yaml", "passes: {PadShard: {}}\n")
    file("broken.py", "1 / 0\n")
    assert cli.main(["passes", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_json_is_one_object(printed):
    assert set(json.loads(printed("passes", "--json"))) == {"passes"}
