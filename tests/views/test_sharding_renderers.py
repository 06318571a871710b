"""Terminals, SVG, HTML and matplotlib show the same blocks."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from rich.console import Console

import distir_ext as dx
from distir_ext.text import palette
from distir_ext.views.drawing.sharding_layout import lay_out

SVG = "{http://www.w3.org/2000/svg}"
UNEVEN = ((5, 7), dx.Mesh((2, 2), ("dp", "tp"), device_ids=(3, 1, 7, 5)), ("dp", "tp"))
CASES = {
    "even": ((8, 256), dx.Mesh(dp=2, tp=4), ("dp", "tp")),
    "uneven": UNEVEN,
    "padding alone": ((5,), dx.Mesh(tp=4), ("tp",)),
    "replicated": ((8, 256), dx.Mesh(dp=2, tp=4, pp=2), (None, "tp")),
    "grids": ((4, 6, 8), dx.Mesh(a=2, b=2, c=2), ("a", "b", "c")),
    "scalar": ((), dx.Mesh(tp=3), ()),
}


def picture_of(name):
    return dx.visualize(*CASES[name])


def cells_of(picture):
    layout = lay_out(picture.sharding, "")
    return [cell for grid in layout.grids for row in grid.cells for cell in row]


def texts_of(root):
    return [element.text for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ["_repr_svg_", "_repr_html_"])
def test_svg_has_every_block_and_every_range(name, form):
    picture = picture_of(name)
    root = ET.fromstring(getattr(picture, form)())
    cells = cells_of(picture)
    groups = root.findall(f"{SVG}g")
    assert [group.find(f"{SVG}text").text for group in groups] == [cell.label for cell in cells]
    assert [group.find(f"{SVG}title").text for group in groups] == [
        cell.description for cell in cells
    ]
    texts = texts_of(root)
    layout = lay_out(picture.sharding, "")
    for side in (layout.rows, layout.columns):
        assert side is None or {part.label for part in side.parts} <= set(texts)
    assert {f"{axis}: {what}" for axis, what in layout.axes} <= set(texts)


def test_descriptions_say_what_numpy_would_slice():
    root = ET.fromstring(dx.visualize(*UNEVEN)._repr_svg_())
    assert [each.find(f"{SVG}title").text for each in root.findall(f"{SVG}g")] == [
        "device 3: [0:3, 0:4]",
        "device 1: [0:3, 4:7]",
        "device 7: [3:5, 0:4]",
        "device 5: [3:5, 4:7]",
    ]
    root = ET.fromstring(picture_of("padding alone")._repr_svg_())
    assert root.findall(f"{SVG}g")[3].find(f"{SVG}title").text == "device 3: padding alone"


@pytest.mark.parametrize("name", CASES)
def test_text_on_a_block_can_be_read(name):
    root = ET.fromstring(picture_of(name)._repr_html_())
    for group in root.findall(f"{SVG}g"):
        fills = [rect.get("fill") for rect in group.findall(f"{SVG}rect")]
        color = group.find(f"{SVG}text").get("fill")
        if fills[0].startswith("#"):
            assert palette.contrast(fills[0], color) > 4.5
        else:
            assert color == "currentColor"


def test_a_part_of_a_page_has_the_colors_of_its_text_and_a_file_sets_its_own():
    page, file = picture_of("even")._repr_html_(), picture_of("even")._repr_svg_()
    assert "<style>" not in page
    assert 'class="page"' not in page
    style = ET.fromstring(file).find(f"{SVG}style").text
    (light, light_page, dark, dark_page) = re.findall(r"#[0-9a-f]{6}", style)
    assert palette.contrast(light, light_page) > 12
    assert palette.contrast(dark, dark_page) > 12


def test_shapes_lie_within_the_drawing():
    for name in CASES:
        root = ET.fromstring(picture_of(name)._repr_svg_())
        width, height = float(root.get("width")), float(root.get("height"))
        for rect in root.iter(f"{SVG}rect"):
            if rect.get("class") != "page":
                assert float(rect.get("x")) + float(rect.get("width")) <= width
                assert float(rect.get("y")) + float(rect.get("height")) <= height
        assert all(float(text.get("y")) < height for text in root.iter(f"{SVG}text"))


def test_padding_is_hatched_by_its_share():
    root = ET.fromstring(dx.visualize((6,), dx.Mesh(tp=4), ("tp",))._repr_svg_())
    hatched = [
        [rect for rect in group.findall(f"{SVG}rect") if rect.get("fill").startswith("url")]
        for group in root.findall(f"{SVG}g")
    ]
    assert [len(each) for each in hatched] == [0, 0, 0, 1]  # 2, 2, 2 and padding alone
    root = ET.fromstring(dx.visualize((7,), dx.Mesh(tp=2), ("tp",))._repr_svg_())
    held, padding, border = root.findall(f"{SVG}g")[1].findall(f"{SVG}rect")
    assert float(padding.get("width")) == pytest.approx(float(border.get("width")) / 4)
    assert float(held.get("width")) == pytest.approx(float(border.get("width")) * 3 / 4)


def test_a_file_is_what_notebooks_show(tmp_path):
    picture_of("even").to_svg(tmp_path / "even.svg")
    assert (tmp_path / "even.svg").read_text("utf-8") == picture_of("even")._repr_svg_()


@pytest.mark.parametrize("name", CASES)
def test_text_has_every_block(name):
    picture = picture_of(name)
    text = picture.text()
    for cell in cells_of(picture):
        assert re.search(rf"[│░ ]{re.escape(cell.label)}[│░ ]", text)
    lines = text.splitlines()
    boxes = [line for line in lines if "│" in line]
    assert len({line.rindex("│") for line in boxes}) == 1  # what is beside each other is aligned


def test_text_of_uneven_blocks():
    text = dx.visualize(*UNEVEN).text()
    grid = [line for line in text.splitlines() if set(line) & set("│┌├└")]
    assert grid == [
        "       ┌──────┬──────┐",
        "       │      │    ░░│",
        "   0:3 │  3   │ 1  ░░│",
        "       │      │    ░░│",
        "       ├──────┼──────┤",
        "       │      │    ░░│",
        "3:5 +1 │  7   │ 5  ░░│",
        "       │░░░░░░│░░░░░░│",
        "       └──────┴──────┘",
    ]


@pytest.mark.parametrize("width", [40, 60, 200])
def test_512_devices_fit_a_terminal(width):
    picture = dx.visualize((4096, 16384), dx.Mesh(dp=64, tp=8), ("dp", "tp"))
    lines = picture.text(width).splitlines()
    assert max(map(len, lines)) <= max(width, 60)
    assert len(lines) < 40
    assert any("of 64 blocks are drawn" in line for line in lines)
    assert any("511" in line for line in lines)


def test_grids_that_do_not_fit_stand_below():
    picture = picture_of("grids")
    assert len(picture.text(20).splitlines()) > len(picture.text(100).splitlines())
    assert "dim 0: 0:2" in picture.text(20)
    assert "dim 0: 2:4" in picture.text(20)


def test_terminals_have_colors_and_files_have_not():
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    with console.capture() as capture:
        console.print(picture_of("even"))
    assert "\x1b[" in capture.get()
    # A background: rich keeps the codes of the first terminal for a style, which may have fewer.
    assert re.search(r"\x1b\[[\d;]*48;[25];", capture.get())
    assert "\x1b[" not in str(picture_of("even"))  # standard output is no terminal here
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capture.get())
    lines = [line.rstrip() for line in plain.splitlines()]
    assert lines == picture_of("even").text(80).splitlines()


def test_only_marked_devices_have_colors():
    root = ET.fromstring(dx.visualize(*CASES["even"], devices=5)._repr_svg_())
    filled = [
        group.find(f"{SVG}text").text
        for group in root.findall(f"{SVG}g")
        if any(rect.get("fill").startswith("#") for rect in group.findall(f"{SVG}rect"))
    ]
    assert filled == ["5"]


@pytest.mark.parametrize("name", CASES)
def test_matplotlib_draws_every_block(name, tmp_path):
    picture = picture_of(name)
    figure = picture.plot()
    labels = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert sorted(labels) == sorted(cell.label for cell in cells_of(picture))
    layout = lay_out(picture.sharding, "")
    if layout.columns:
        ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
        assert ticks == [part.label for part in layout.columns.parts]
        assert figure.axes[0].get_xlabel() == layout.columns.title
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_plots_say_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'distir-ext\[plot\]'"):
        picture_of("even").plot()
