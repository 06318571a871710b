"""The pictures of docs/visualize.md are those that its script writes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import distir_ext as dx

FIGURES = Path(__file__).resolve().parents[2] / "docs" / "figures"
PAGE = FIGURES.parent / "visualize.md"
SCRIPT = runpy.run_path(str(FIGURES / "make.py"))
SHARDINGS = SCRIPT["shardings"]()


@pytest.mark.parametrize("name", SHARDINGS)
def test_pictures_are_up_to_date(name, tmp_path):
    SHARDINGS[name].to_svg(tmp_path / name)
    assert (FIGURES / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8")


def test_the_page_shows_every_picture():
    shown = re.findall(r"!\[[^\]]+\]\(figures/([\w.]+)\)", PAGE.read_text("utf-8"))
    assert {*shown, "program.svg"} == {path.name for path in FIGURES.glob("*.svg")}


def test_the_example_prints_what_the_page_says(capsys):
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]
    exec(code, {})
    assert capsys.readouterr().out.rstrip() == printed.rstrip()


def test_the_indices_are_those_that_the_page_says():
    picture = dx.visualize((8, 256), dx.Mesh(dp=2, tp=4), ("dp", "tp"))
    assert picture.sharding.indices[6] == (slice(4, 8), slice(128, 192))
