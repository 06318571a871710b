"""Real shells complete a command and an option with the scripts that are printed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import pytest

from distir_ext import cli


@pytest.fixture
def script(tmp_path, capsys):
    """Writes the script for a shell; gives its path."""

    def write(shell):
        assert cli.main(["completion", shell]) == 0
        path = tmp_path / "_distir"
        path.write_text(capsys.readouterr().out)
        return path

    return write


def answer(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def needs(shell):
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


WORDS = [
    (["repo"], "report"),
    (["redistribute", "--sha"], "--shape"),
    (["report", "--fail"], "--fail-over-memory"),
    (["demo", "--case", "me"], "megatron"),
]


@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_bash(script, words, expected):
    line = " ".join(f"'{word}'" for word in words)
    program = f"""
        source {script("bash")}
        COMP_WORDS=(distir {line}); COMP_CWORD={len(words)}
        $(complete -p distir | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        echo "${{COMPREPLY[@]}}"
    """
    assert answer("bash", "--norc", "-c", program) == [expected]


def test_bash_completes_files(script, tmp_path):
    (tmp_path / "model.py").touch()
    program = f"""
        source {script("bash")}
        COMP_WORDS=(distir report {tmp_path}/mod); COMP_CWORD=2
        $(complete -p distir | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        echo "${{COMPREPLY[@]}}"
    """
    assert answer("bash", "--norc", "-c", program) == [f"{tmp_path}/model.py"]


@needs("fish")
@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_fish(script, words, expected):
    program = f"source {script('fish')}; complete -C 'distir {' '.join(words)}'"
    found = answer("fish", "--no-config", "-c", program)
    assert found[0] == expected


@needs("zsh")
@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_zsh(script, tmp_path, words, expected):
    script("zsh")
    start = (
        f"PS1='> '; fpath=({tmp_path} $fpath); autoload -U compinit; compinit -D -u; echo ready\n"
    )
    printed = typed(
        ["zsh", "-f", "-i"], [(start, "\nready"), (f"distir {' '.join(words)}\t", expected)]
    )
    assert expected in printed


def typed(command, lines, timeout=30):
    """Types lines into a program at a terminal, each until the terminal shows something."""
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(command[0], command, {**os.environ, "TERM": "dumb"})
    shown = ""
    try:
        for line, until in lines:
            os.write(terminal, line.encode())
            begin, end = len(shown), time.monotonic() + timeout
            while until not in shown[begin:].replace("\r", "") and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    shown += os.read(terminal, 4096).decode(errors="replace")
        return shown[begin:]
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


def test_without_shtab_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    assert "pip install 'distir-ext[completion]'" in capsys.readouterr().err


def test_other_shells_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "there is no 'tcsh', only bash, zsh, fish" in capsys.readouterr().err


def test_without_shtab_the_file_says_why(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 1
    out, err = capsys.readouterr()
    assert out == "# distir completion has failed: pip install 'distir-ext[completion]'\n"
    assert "completion needs shtab" in err
