"""Docstrings and comments begin with a verb or a noun; each C++ file says what it is for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RIDDLE = re.compile(r"(What|Whether|How|Which|Where|The same)\b")
COMMENT = re.compile(r"(//+!?|/\*[*!]?)\s*(\\brief )?")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def riddles_in_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        sentence = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if sentence and RIDDLE.match(sentence):
            yield sentence.partition("\n")[0]


def riddles_in_cxx(text: str) -> Iterator[str]:
    before = ""
    for line in map(str.strip, text.splitlines()):
        comment = COMMENT.match(line)
        if comment and not before.startswith("//") and RIDDLE.match(line[comment.end() :]):
            yield line
        before = line


@pytest.mark.parametrize("folder", ["python", "tests", "benchmarks", "examples"])
def test_docstrings(folder):
    found = {
        str(path.relative_to(ROOT)): sentences
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (sentences := list(riddles_in_python(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_comments_of_cxx():
    found, silent = {}, []
    for path in sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in {".cc", ".h"}):
        text, name = path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))
        if sentences := list(riddles_in_cxx(text)):
            found[name] = sentences
        if not text.startswith(("//", "/*")):
            silent.append(name)
    assert (found, silent) == ({}, [])


def test_riddles_are_found():
    riddle = "What of x is no y."
    assert list(riddles_in_python(f'def f():\n    """{riddle}"""')) == [riddle]
    comments = ["// Whether.", "int x;", "/*! \\brief How far. */", "// Is.", "// What."]
    assert list(riddles_in_cxx("\n".join(comments))) == [comments[0], comments[2]]
