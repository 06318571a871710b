"""What docs/analysis.md shows."""

import re
import runpy
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analysis.md"


def test_the_example_prints_what_the_page_says(tmp_path, capsys):
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[:2]
    script = tmp_path / "example.py"
    script.write_text(code)
    names = runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.rstrip() == printed.rstrip()
    assert names["estimate"].flops == 2 * 2 * 2048 * 8192 * 7168 + 2048 * 8192 + 2048 * 7168
