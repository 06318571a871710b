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


@pytest.mark.every_case
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


# Where pages look for a file: `rules/operator.h`, `compile/cpu.py`, `test_tls.py`.
FOLDERS = [
    ROOT,
    *(ROOT / name for name in ("src", "python/distir_ext", "tests", "tests/packaging", "docs")),
]
# Names that are examples, or that are made.
NOT_OF_THE_SOURCES = {".py", "encodings.py", "json.py", "mlp.py", "wheels.yml"}
DUMPED = re.compile(r"\d+_\w+\.(before|after)\.py")


# Names on the page that are of a program in an example.
OF_EXAMPLES = {"lv12"}


def unknown_names(text, sources):
    """Quoted names that no source has."""
    known = {word for path in sources for word in re.findall(r"\w+", path.read_text("utf-8"))}
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if re.search(r"\.(?:cc|h|py|md|yml|svg|toml)$|/", quoted):
            continue  # a file, see below
        yield from set(re.findall(r"[A-Za-z_]\w+", quoted)) - known - OF_EXAMPLES


def test_the_page_on_the_architecture_names_what_there_is():
    sources = [
        path
        for folder in ("src", "python", "tests", "examples", "benchmarks", ".ci")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".h", ".cc"}
    ]
    page = (DOCS / "architecture.md").read_text("utf-8")
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    assert sorted(unknown_names(text, sources)) == []
    control = "`session.NoSuch" + "Name(x)`, `session.Session`"
    assert list(unknown_names(control, sources)) == ["NoSuch" + "Name"]


def missing_files(page, files):
    for name in re.findall(r"`([\w./{},]+)`", page.read_text("utf-8")):
        is_file = re.search(r"\.(?:cc|h|py|md|yml|svg|toml)$|\{h,cc\}$", name)
        is_folder = re.match(r"(?:src|tests|python|examples|benchmarks)/", name)
        known = name in NOT_OF_THE_SOURCES or DUMPED.fullmatch(name)
        if known or not (is_file or is_folder):
            continue
        name = name.replace("{h,cc}", "h")
        in_folders = any((folder / name).exists() for folder in FOLDERS)
        if not in_folders and not ("/" not in name and name in files):
            yield name


@pytest.fixture(scope="module")
def files():
    """The names of all files of the sources."""
    folders = ("src", "python", "tests", "docs", "examples", "benchmarks")
    return {path.name for folder in folders for path in (ROOT / folder).rglob("*.*")}


@pytest.mark.every_case
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_pages_name_exist(page, files):
    assert list(missing_files(page, files)) == []


def test_missing_files_are_found(tmp_path, files):
    page = tmp_path / "page.md"
    page.write_text("`src/rules/operator.h` `operator.h` `src/gone/` `gone.cc` `ir/gone.{h,cc}`")
    assert list(missing_files(page, files)) == ["src/gone/", "gone.cc", "ir/gone.h"]


# Of NCCL, Linux and TVM.
OF_OTHERS = {
    *("src/graph/tuning.cc", "doc/PERFORMANCE.md"),
    *("include/net/tcp.h", "tvm/runtime/c_backend_api.h"),
}
COMMENTS = {
    ".py": re.compile(r'#[^\n]*|""".*?"""', re.DOTALL),
    ".cc": re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL),
}
COMMENTS[".h"] = COMMENTS[".cc"]


def missing_in_comments(path):
    for comment in COMMENTS[path.suffix].findall(path.read_text("utf-8")):
        for name in re.findall(r"(?<![\w/.<-])((?:[\w.]+/)+\w+\.(?:cc|h|py|md))\b", comment):
            folders = (*FOLDERS, ROOT / "python", path.parent)
            if name not in OF_OTHERS and not any((folder / name).exists() for folder in folders):
                yield f"{path}: {name}"


def test_files_that_comments_name_exist():
    paths = [*(ROOT / "src").rglob("*"), *(ROOT / "python").rglob("*.py")]
    sources = [path for path in paths if path.suffix in COMMENTS]
    assert [each for path in sources for each in missing_in_comments(path)] == []


def test_missing_files_in_comments_are_found(tmp_path):
    source = tmp_path / "one.cc"
    source.write_text('#include "ir/gone.h"\n// ir/node.h, ir/gone.h\nint x;  /* as gone/x.py */\n')
    assert list(missing_in_comments(source)) == [f"{source}: ir/gone.h", f"{source}: gone/x.py"]


def test_every_page_is_in_the_tables_of_contents():
    listed = {Path("index")}
    for page in DOCS.rglob("index.md"):
        for table in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text("utf-8"), re.M | re.S
        ):
            entries = [line for line in table.splitlines() if line and not line.startswith(":")]
            listed |= {page.parent.relative_to(DOCS) / entry for entry in entries}
    pages = {page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md")}
    notebooks = (ROOT / "examples" / "notebooks").glob("*.ipynb")  # the site copies them
    assert pages | {Path("notebooks") / each.stem for each in notebooks} == listed


def test_architecture_names_every_folder_and_module():
    text = (DOCS / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`([\w/]+)(?:\.py)?`", text))
    folders = [path for path in (ROOT / "src").iterdir() if path.is_dir()]
    package = ROOT / "python" / "distir_ext"
    modules = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    packages = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    sources = {f"{path.name}/" for path in folders} - {"target/"} | {"target/cpu/"}
    assert (sources | modules | packages) - named <= {"_version"}


def test_every_public_name_is_in_the_reference():
    reference = "".join(page.read_text("utf-8") for page in (DOCS / "api").glob("*.md"))
    named = set(re.findall(r":: (distir_ext[\w.]*)", reference))
    documented = (dx.analysis, dx.hints, dx.pipelines, dx.rules, dx.stages, dx.transform)
    modules = {module.__name__.rpartition(".")[2]: module for module in documented}
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


def test_workflows_run_targets_of_the_makefile():
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    run = {
        target
        for path in [*(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / ".ci" / "run"]
        for target in re.findall(r"\bmake ([\w-]+)", path.read_text("utf-8"))
    }
    assert {"lint", "test", "docs", "test-all"} <= run <= targets
