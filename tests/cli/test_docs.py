"""The commands of docs/analyse_from_the_shell.md print what the page says."""

import re
import shlex
from pathlib import Path

from distir_ext import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analyse_from_the_shell.md"


def test_commands_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    plan, cluster = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, content in (("mlp.py", program), ("plan.json", plan), ("cluster.json", cluster)):
        (tmp_path / name).write_text(content)
    sessions = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(sessions) == 6
    shown = 0
    for session in sessions:
        session = session.replace("\\\n", "")  # commands of several lines
        for command, expected in re.findall(r"^\$ distir (.*)\n((?:(?!\$).*\n)*)", session, re.M):
            assert cli.main(shlex.split(command)) == 0
            out, err = capsys.readouterr()
            assert err == ""
            if expected:
                shown += 1
                assert out.rstrip() == expected.rstrip()
    assert shown == 4
    assert (tmp_path / "report.html").exists()
    assert cli.main(["report", "propagated.py", "--cluster", "cluster.json"]) == 0
