"""The pictures of pages are those that their script writes."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from collections import Counter
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


def content(path):
    """Texts, and how many shapes there are of each kind: what does not depend on matplotlib."""
    elements = [*ET.parse(path).iter()]
    tags = Counter(element.tag for element in elements)
    return [each.text for each in elements if each.tag.endswith("}text")], tags


def test_plots_are_up_to_date(tmp_path):
    plots = SCRIPT["plots"]()
    for name, figure in plots.items():
        SCRIPT["write_plot"](figure, tmp_path / name)
        assert content(FIGURES / name) == content(tmp_path / name), name


def test_pages_show_every_picture():
    shown = {
        name
        for page in FIGURES.parent.glob("*.md")
        for name in re.findall(r"!\[[^\]]+\]\(figures/([\w.]+)\)", page.read_text("utf-8"))
    }
    assert shown == {path.name for path in FIGURES.glob("*.svg")}


def test_the_example_prints_what_the_page_says(capsys):
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]
    exec(code, {})
    assert capsys.readouterr().out.rstrip() == printed.rstrip()


def test_the_indices_are_those_that_the_page_says():
    picture = dx.visualize((8, 256), dx.Mesh(dp=2, tp=4), ("dp", "tp"))
    assert picture.sharding.indices[6] == (slice(4, 8), slice(128, 192))
