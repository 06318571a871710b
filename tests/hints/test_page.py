"""Runs the examples of docs/hints.md."""

import re
import runpy
from pathlib import Path

from distir_ext import hints

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hints.md"


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    return [block for name, block in found if name == language]


def test_the_example_prints_what_the_page_says(tmp_path, capsys):
    script = tmp_path / "example.py"
    script.write_text(blocks("python")[0])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    detected, stated = blocks("yaml")
    assert printed.startswith(detected)
    assert blocks("")[0] in printed
    assert printed.endswith("(4, 8, 64)\n")
    assert hints.configuration.read_hints(stated.encode(), "the page").dist.moe_ep_size == 2


def test_the_matrix_has_all_models_and_configurations():
    from distir_ext.hints.verification.check import CONFIGS
    from distir_ext.hints.verification.models import MODELS

    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    names = [row.split("|")[1].strip() for row in rows]
    assert all(name in names for name in MODELS)
    assert f"| model | layers | {' | '.join(CONFIGS)} |" in rows
