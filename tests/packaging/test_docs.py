"""Links lead somewhere; every page, and every public name, has its place in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import distir_ext as dx

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / ".github").rglob("*.md")])


def text_of(page):
    """A page without its code."""
    text = page.read_text("utf-8")
    text = re.sub(r"^```(?!\{toctree).*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page):
    """The anchors that GitHub and the site give to headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#{1,3} (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def broken_links(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and anchor not in anchors_of(target):
            yield f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    assert list(broken_links(page)) == []


def test_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# Other\n\n## A part: of it\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#a-part-of-it) [c](#page) `[d](code.md)`\n"
        "[e](missing.md) [f](other.md#missing) [g](#missing)\n"
    )
    assert [each.partition(":")[0] for each in broken_links(page)] == [
        "missing.md",
        "other.md#missing",
        "#missing",
    ]


def test_every_page_is_in_the_tables_of_contents():
    listed = {Path("index")}
    for page in DOCS.rglob("index.md"):
        for table in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        ):
            entries = [line for line in table.splitlines() if line and not line.startswith(":")]
            listed |= {page.parent.relative_to(DOCS) / entry for entry in entries}
    assert {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")} == listed


def test_every_public_name_is_in_the_reference():
    reference = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r":: (distir_ext[\w.]*)", reference))
    modules = {"analysis": dx.analysis, "stages": dx.stages, "transform": dx.transform}
    public = {f"distir_ext.{name}" for name in dx.__all__ if name not in ("__version__", *modules)}
    public |= {
        f"distir_ext.{module}.{name}" for module in modules for name in modules[module].__all__
    }
    assert public - named == set()


def test_citation_names_the_version():
    assert f"\nversion: {dx.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")


def test_workflow_tests_every_python_of_the_classifiers():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (matrix,) = re.findall(r"^ +python-version: \[(.*)\]$", workflow, re.MULTILINE)
    assert re.findall(r'"(3\.\d+)"', matrix) == re.findall(r"Python :: (3\.\d+)", project)
