"""Runs the examples of docs/analysis.md."""

import re
import runpy
from pathlib import Path

import distir_ext as dx

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analysis.md"


def blocks():
    return re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_example_prints_what_the_page_says(tmp_path, capsys):
    code, printed = blocks()[:2]
    script = tmp_path / "example.py"
    script.write_text(code)
    names = runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.rstrip() == printed.rstrip()
    assert names["estimate"].flops == 2 * 2 * 2048 * 8192 * 7168 + 2048 * 8192 + 2048 * 7168


def test_the_timeline_of_the_page_prints_what_it_says(tmp_path, monkeypatch, capsys):
    network, *rest = blocks()
    at = next(index for index, code in enumerate(rest) if "analysis.simulate(" in code)
    script = tmp_path / "example.py"
    script.write_text(network.split("mesh = ")[0] + rest[at])
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.rstrip() == rest[at + 1].rstrip()
    assert (tmp_path / "timeline.json.gz").exists()
    overlapped = dx.analysis.simulate(
        names["mod"], dx.Cluster.preset("H100"), microbatches=8, overlap=True
    )
    assert f"{overlapped.seconds * 1e3:.1f} ms" in PAGE.read_text("utf-8")
