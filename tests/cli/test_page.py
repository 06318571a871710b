"""The page of a report refers to nothing else, and a browser shows it without complaint."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser

import pytest
from tests.cli.conftest import SHARDED

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def page(model, printed, tmp_path):
    printed("report", model, *SHARDED, "--html", "report.html")
    return tmp_path / "report.html"


class Tags(HTMLParser):
    """Which elements a page has, and whether each is closed."""

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
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert not {name for name, _ in tags.attributes} & {"src", "href", "onload"}
    assert not re.search(r"url\(|@import|https?:", text)
    assert tags.seen.count("table") == 5


def test_it_has_the_figures_of_the_report(page, model, printed):
    text = page.read_text()
    rows = printed("report", model, *SHARDED)
    for cell in ("132 kFLOP", "1.02 kB", "('dp', None)", "all_reduce", "fused_matmul_relu"):
        assert cell in rows
        assert cell.replace("'", "&#x27;") in text


def test_names_are_escaped(file, printed, tmp_path):
    from tests.cli.conftest import MODEL

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
