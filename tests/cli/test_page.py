"""HTML page of a report: no external references, and no errors in a browser."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser

import pytest
from tests.cli.conftest import MODEL, SHARDED

import distir_ext as dx
from distir_ext import cli
from distir_ext.text.tables import amount
from distir_ext.views.page import report_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "model.py").write_text(MODEL)
    page = folder / "report.html"
    assert cli.main(["report", str(folder / "model.py"), *SHARDED, "--html", str(page)]) == 0
    return page


class Tags(HTMLParser):
    """Records the elements of a page, and checks that each one is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += attributes
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_it_is_a_page_of_its_own(page):
    text = page.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not {"script", "link", "img", "image", "iframe"} & set(tags.seen)
    assert not {name for name, _ in tags.attributes} & {"src", "href", "onload"}
    # Pictures refer to their own parts.
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    uses = [value for name, value in tags.attributes if name == "xlink:href"]
    uses += re.findall(r"url\(([^)]*)\)", text)
    assert uses
    assert {use.removeprefix("#") for use in uses} <= set(ids)
    assert all(use.startswith("#") for use in uses)
    assert not re.search(r"@import|https?:", text)
    assert tags.seen.count("table") == 5


def test_it_has_the_figures_of_the_report(page, model, printed):
    text = page.read_text()
    rows = printed("report", model, *SHARDED)
    for cell in ("132 kFLOP", "1.02 kB", "('dp', None)", "all_reduce", "fused_matmul_relu"):
        assert cell in rows
        assert cell.replace("'", "&#x27;") in text


def pictures(text):
    return re.findall(r'<figure role="img" aria-label="(\w+)"><svg', text)


def test_it_has_pictures(page):
    assert pictures(page.read_text()) == ["timeline", "roofline", "memory", "collectives"]


def test_without_matplotlib_it_has_tables_and_says_so(model, printed, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    printed("report", model, *SHARDED, "--html", "report.html")
    text = (tmp_path / "report.html").read_text()
    assert pictures(text) == []
    assert "This page has no pictures: they need matplotlib" in text
    assert text.count("<table") == 5


def test_a_program_without_one_timeline(model, file, printed, tmp_path):
    second = MODEL.replace("def main", "def other").partition("class MLP:")[2]
    name = file("two.py", MODEL + second)
    printed("partition", name, *SHARDED, "--phase", "annotated", "-o", "one.py")
    text = (tmp_path / "one.py").read_text()
    assert "def other" in text
    printed("report", "one.py", "--html", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "timeline" not in pictures(page)
    assert "The page has no timeline: " in page


def test_the_time_of_a_pipeline_is_that_of_its_timeline(file, printed, tmp_path):
    """The slowest stage takes less, as it does not wait for the others."""
    namespace = {}
    exec(compile(MODEL, file("model.py", MODEL), "exec"), namespace)
    mesh = dx.Mesh(pp=2)
    annotated = dx.annotate(namespace["MLP"], mesh, {"x": None})
    staged = dx.transform.AssignStages(mesh, "pp")(annotated)
    cluster = dx.Cluster.preset("H100")
    seconds = dx.analysis.simulate(staged, cluster).seconds
    assert seconds > 1.2 * dx.analysis.estimate(staged, cluster).seconds
    printed("report", file("staged.py", dx.script(staged)), "--html", "report.html")
    text = (tmp_path / "report.html").read_text()
    assert f"<dt>time</dt><dd>{amount(seconds, 's')}</dd>" in text
    page = report_page("staged", dx.analysis.estimate(staged, cluster))
    assert "<dt>time of the slowest program</dt>" in page


def test_it_lists_what_nobody_asked_for(model, printed, tmp_path):
    shards = ["--mesh", "dp=2", "--shard", "x=dp,-", "--shard", "up=dp,-", "--html", "report.html"]
    printed("report", model, *shards)
    text = (tmp_path / "report.html").read_text()
    assert "implicit redistributions, per device" in text
    assert "why, and what to state instead" in text


def test_names_are_escaped(file, printed, tmp_path):
    name = file("<b>.py", MODEL)
    printed("report", name, *SHARDED, "--html", "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "<b>" not in text
    assert "&lt;b&gt;.py" in text


def test_it_says_where_memory_does_not_suffice(model, file, printed, tmp_path):
    device = {"name": "small", "flops": {"float32": 1e12}, "memory": 5e4, "bandwidth": 1e11}
    link = {"latency": 1e-6, "bandwidth": 1e9}
    cluster = file("small.json", {"device": {**device, "launch": 0}, "link": link})
    printed("report", model, *SHARDED, "--cluster", cluster, "--html", "report.html")
    text = (tmp_path / "report.html").read_text()
    assert '<p class="bad">A device needs 69.6 kB of memory, but has 50 kB.</p>' in text


def first_pixel(png):
    """Red, green and blue of the corner: no filter of PNG changes the first bytes of a picture."""
    data, at = b"", 8
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += 12 + size
    return tuple(zlib.decompress(data)[1:4])


@pytest.mark.parametrize(("mode", "back"), [("light", (255, 255, 255)), ("dark", (13, 17, 23))])
def test_a_browser_shows_it(page, tmp_path, mode, back):
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    picture = tmp_path / "page.png"
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}"]
    command += [f"--blink-settings=preferredColorScheme={0 if mode == 'dark' else 1}"]
    command += ["--window-size=1000,800", f"--screenshot={picture}", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr
    assert first_pixel(picture.read_bytes()) == back
