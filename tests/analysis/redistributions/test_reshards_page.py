"""Runs the examples of docs/reshards.md."""

import re
import runpy
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reshards.md"


def test_the_examples_do_what_the_page_says(tmp_path, capsys):
    text = PAGE.read_text("utf-8")
    script = tmp_path / "example.py"
    script.write_text("".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)))
    runpy.run_path(str(script), run_name="__main__")
    output = capsys.readouterr().out
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    for printed in (each for language, each in blocks if not language):
        assert printed.rstrip() in output
