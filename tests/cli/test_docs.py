"""The commands of docs/analyse_from_the_shell.md print what the page says."""

import re
import shlex
from pathlib import Path

from distir_ext import cli
from distir_ext.native.machine import cores

PAGE = Path(__file__).resolve().parents[2] / "docs" / "analyse_from_the_shell.md"


def masked(text):
    """Without what differs from run to run: times, their ratios, and the widths of columns."""
    text = re.sub(r"\b\d[\d.]* ?(?:%|[mun]?s\b)|\b\d+\.\d\d\b", "#", text)
    return re.sub(r" +", " ", re.sub("─+", "─", text))


def test_commands_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text("utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    plan, cluster = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, content in (("mlp.py", program), ("plan.json", plan), ("cluster.json", cluster)):
        (tmp_path / name).write_text(content)
    sessions = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(sessions) == 10
    monkeypatch.setattr(cores, "allowed_cores", lambda: [0, 1])
    small = program.replace("4096", "256").replace("8192", "512").replace("28672", "2048")
    (tmp_path / "small.py").write_text(small)
    shown = 0
    for session in sessions:
        session = session.replace("\\\n", "")  # commands of several lines
        for command, expected in re.findall(r"^\$ distir (.*)\n((?:(?!\$).*\n)*)", session, re.M):
            assert cli.main(shlex.split(command)) == 0
            out, err = capsys.readouterr()
            assert err == ""
            if expected:
                shown += 1
                if command.startswith("profile"):
                    out, expected = masked(out), masked(expected)
                assert out.rstrip() == expected.rstrip()
    assert shown == 8
    assert (tmp_path / "trace.json.gz").exists()
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "sweep.html").exists()
    assert cli.main(["report", "propagated.py", "--cluster", "cluster.json"]) == 0
