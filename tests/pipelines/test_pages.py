"""Runs the examples of docs/writing_a_pass.md and docs/pipelines.md."""

import re
import runpy
from pathlib import Path

import pytest

import distir_ext as dx
from distir_ext import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page, language):
    text = (DOCS / page).read_text("utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for name, block in found if name == language]


@pytest.fixture(autouse=True)
def _forget():
    before = set(dx.pipelines.registered_passes())
    yield
    for name in set(dx.pipelines.registered_passes()) - before:
        dx.pipelines.unregister_pass(name)


def test_the_example_prints_what_the_page_says(tmp_path, capsys):
    script = tmp_path / "example.py"
    script.write_text("".join(blocks("writing_a_pass.md", "python")))
    names = runpy.run_path(str(script), run_name="__main__")
    before, after, printed = blocks("writing_a_pass.md", "")
    assert capsys.readouterr().out == printed
    for text, mod in ((before, names["before"]), (after, names["after"])):
        lines = [line.strip() for line in mod.script().splitlines()]
        assert [line for line in text.splitlines() if line in lines] == text.splitlines()
    with dx.pass_reports() as reports:
        pipeline = dx.pipelines.load({"passes": {"norm_of_own_rows": {"enabled": False}}})
        dx.lower(names["mod"], pipeline=pipeline)
    (report,) = [each for each in reports if each.name == "count_large"]
    assert report.skipped == {"all_reduce": {"it is small": 1}}


def test_commands_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(blocks("pipelines.md", "yaml")[0])
    (session,) = blocks("pipelines.md", "console")
    command, _, expected = session.partition("$ distir passes ")[2].partition("\n")
    assert cli.main(["passes", *command.split()]) == 0
    assert capsys.readouterr().out.rstrip() == expected.rstrip()


def test_the_error_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = blocks("pipelines.md", "yaml")[0].replace("# mine.yaml\n", "")
    (tmp_path / "mine.yaml").write_text(
        right.replace("    enabled: true\n", "").replace("min_operators", "min_operator")
    )
    with pytest.raises(ValueError, match="min_operator") as caught:
        dx.pipelines.load("mine.yaml")
    assert str(caught.value) in blocks("pipelines.md", "")[0]
