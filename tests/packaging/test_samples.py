"""Selection of tests in ``make test``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MANY = "tests/cli/test_notation.py"
EVERY = "tests/packaging/test_docs.py"


def collected(*arguments: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [line for line in result.stdout.splitlines() if "::" in line]


@pytest.mark.large
def test_a_few_cases_of_every_test_are_run():
    tests = collected(MANY, EVERY)
    few = collected(MANY, EVERY, "--cases", "3")
    assert set(few) < set(tests)
    names = {line.partition("[")[0] for line in tests}
    assert {line.partition("[")[0] for line in few} == names
    for name in names:
        count = sum(line.partition("[")[0] == name for line in tests)
        kept = sum(line.partition("[")[0] == name for line in few)
        is_cheap = name.endswith(("headings", "test_files_that_pages_name_exist"))
        assert kept == (count if is_cheap else min(count, 3)), name
