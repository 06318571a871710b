"""Writes the module before and after every pass, with a page that shows what each changed.

Works wherever TVM's passes run::

    with tvm.transform.PassContext(instruments=[dx.DumpPasses("dump")]):
        mod = tvm.transform.Sequential([...])(mod)

``dx.lower(mod, dump_dir="dump")`` and ``dx.build(mod, dump_dir="dump")`` do the same for their own
passes and those of TVM. ``dump/index.html`` lists them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm

from distir_ext.native.pass_context import pass_context
from distir_ext.native.reports import PassReport, pass_reports
from distir_ext.text.html_page import html_page
from distir_ext.text.html_text import html_code, html_text
from distir_ext.text.python_source import source

_DIGITS = 3

_STYLE = """
summary { cursor: pointer; padding: .2rem 0; }
.number { opacity: .6; display: inline-block; width: 3em; }
.what { opacity: .7; margin-left: 1em; }
.unchanged { opacity: .7; padding: .2rem 0 .2rem 1.1em; }
pre { overflow-x: auto; font-size: 13px; line-height: 1.4; padding: .5rem;
      border: 1px solid #8884; }
.failed { color: #cf222e; padding: .2rem 0 .2rem 1.1em; }
.add { background: #2da44e33; } .del { background: #cf222e33; } .at { opacity: .6; }
"""


@dataclass
class _Running:
    """A pass that has begun."""

    name: str
    before: str
    begin: float
    has_inner: bool = False


@dataclass
class _Ended:
    """A pass that has ended; texts are empty where it changed nothing."""

    number: int
    name: str
    seconds: float
    before: str = ""
    after: str = ""
    reports: list[PassReport] = field(default_factory=list)

    @property
    def stem(self) -> str:
        return f"{self.number:0{_DIGITS}}_{self.name}"


@tvm.instrument.pass_instrument
class DumpPasses:
    """A pass instrument that writes the module before and after each pass as TVMScript.

    Files are ``000_PropagateSharding.before.py`` and ``000_PropagateSharding.after.py``, numbered
    in the order in which passes end; passes that change nothing have none. ``index.html`` lists all
    passes, with what each changed and what it reports of itself. A pass that only runs others, such
    as a Sequential, is not listed.

    Args:
        folder: Folder for the files; made if it is missing.

    Raises:
        OSError: The folder cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._running: list[_Running] = []
        self._ended: list[_Ended] = []
        self._contexts: list[contextlib.ExitStack] = []  # pass contexts may nest
        self._reports: list[PassReport] = []

    def enter_pass_ctx(self) -> None:
        """Begins to collect reports."""
        stack = contextlib.ExitStack()
        if not self._contexts:
            self._reports = stack.enter_context(pass_reports())
        self._contexts.append(stack)

    def exit_pass_ctx(self) -> None:
        """Writes the page, also where a pass has failed."""
        self._contexts.pop().close()
        self._write_page()

    def run_before_pass(self, mod: Any, info: tvm.transform.PassInfo) -> None:
        """Keeps the module's text."""
        if self._running:
            self._running[-1].has_inner = True
        self._running.append(_Running(str(info.name), _text(mod), time.perf_counter()))

    def run_after_pass(self, mod: Any, info: tvm.transform.PassInfo) -> None:
        """Writes what has changed."""
        del info
        end = time.perf_counter()
        running = self._running.pop()
        reports, self._reports[:] = list(self._reports), []
        if running.has_inner:
            return
        ended = _Ended(len(self._ended), running.name, end - running.begin, reports=reports)
        after = _text(mod)
        if after != running.before:
            ended.before, ended.after = running.before, after
            (self.folder / f"{ended.stem}.before.py").write_text(running.before, encoding="utf-8")
            (self.folder / f"{ended.stem}.after.py").write_text(after, encoding="utf-8")
        self._ended.append(ended)

    def _write_page(self) -> None:
        rows = [_row(each) for each in self._ended]
        rows += [
            f'<div class="failed">{html_text(each.name)}: did not end</div>'
            for each in self._running
        ]
        changed = sum(bool(each.after) for each in self._ended)
        about = f"{len(self._ended)} passes, {changed} changed the module."
        body = "\n".join([f"<p>{about} A row opens what it changed.</p>", *rows])
        page = html_page("Passes", _STYLE, body)
        (self.folder / "index.html").write_text(page, encoding="utf-8")


@contextlib.contextmanager
def dumped(folder: str | os.PathLike[str] | None) -> Iterator[None]:
    """Dumps the passes of a block, beside what the current context does; nothing for None."""
    if folder is None:
        yield
        return
    with pass_context(instruments=[DumpPasses(folder)]):
        yield


def _text(mod: Any) -> str:
    if not isinstance(mod, tvm.IRModule):
        return str(mod)
    return source(mod, lambda named: str(named.script(show_meta=False)))


def _row(ended: _Ended) -> str:
    what = "; ".join(_summary(report) for report in ended.reports)
    head = (
        f'<span class="number">{ended.number}</span>{html_text(ended.name)}'
        f'<span class="what">{ended.seconds * 1e3:.1f} ms{html_text(what and f"; {what}")}</span>'
    )
    if not ended.after:
        return f'<div class="unchanged">{head}<span class="what">no change</span></div>'
    links = " ".join(
        f'<a href="{html_text(ended.stem)}.{side}.py">{side}</a>' for side in ("before", "after")
    )
    lines = difflib.unified_diff(
        ended.before.splitlines(), ended.after.splitlines(), "before", "after", lineterm="", n=2
    )
    difference = "\n".join(_line(line) for line in list(lines)[2:])
    return f"<details><summary>{head}</summary>{links}<pre>{difference}</pre></details>"


def _summary(report: PassReport) -> str:
    return ", ".join(f"{count} {what}" for what, count in report.done.items())


def _line(line: str) -> str:
    kind = {"+": "add", "-": "del", "@": "at"}.get(line[:1])
    text = html_code(line)
    return f'<span class="{kind}">{text}</span>' if kind else text
