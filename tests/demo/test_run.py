"""The demonstration ends with 0 where the numbers agree, and with 1 where they do not."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from rich.console import Console

from distir_ext import __version__, cli
from distir_ext.demo import run as demo


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=140)


@pytest.mark.parametrize("name", demo.CASES)
def test_case_agrees_with_the_unpartitioned_program(name, console):
    assert demo.run_demo(console, [name]) == 0
    text = console.file.getvalue()
    for word in ("sharding", "bytes total", "critical path", "relative RMSE", "ok", "Next"):
        assert word in text
    for parameter in demo.CASES[name]().inputs:
        assert parameter in text


def test_workers_that_are_processes_agree_too(console):
    assert demo.run_demo(console, ["forum"], "processes") == 0
    assert "2 workers (processes)" in console.file.getvalue()


@pytest.mark.parametrize("factor", [1.001, np.nan])
def test_wrong_result_is_a_failure(factor, console, monkeypatch):
    right = demo.run_unpartitioned

    def wrong(case):
        return right(case) * np.float32(factor)

    monkeypatch.setattr(demo, "run_unpartitioned", wrong)
    assert demo.run_demo(console, ["megatron"]) == 1
    assert "wrong results: megatron" in console.file.getvalue()


def test_no_progress_bar_where_there_is_no_terminal(console):
    demo.run_demo(console, ["forum"])
    assert "\x1b" not in console.file.getvalue()
    assert "\r" not in console.file.getvalue()


def test_cli_lists_every_case():
    assert list(cli.demo.DEMONSTRATIONS) == list(demo.CASES)


def test_cli_runs_one_case(capsys):
    assert cli.main(["demo", "--case", "megatron"]) == 0
    assert "megatron" in capsys.readouterr().out


def test_cli_version_and_help(capsys):
    for option, expected in [("--version", __version__), ("--help", "demo")]:
        with pytest.raises(SystemExit) as ended:
            cli.main([option])
        assert ended.value.code == 0
        assert expected in capsys.readouterr().out


def test_cli_help_of_demo_describes_the_cases(capsys):
    with pytest.raises(SystemExit):
        cli.main(["demo", "--help"])
    text = capsys.readouterr().out
    for name in demo.CASES:
        assert name in text


@pytest.mark.parametrize("arguments", [[], ["dance"], ["demo", "--case", "moe"]])
def test_cli_refuses_what_it_does_not_know(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("distir")
    assert "--help'" in error
    assert error.count("\n") == 1


def test_module_runs_as_the_command():
    result = subprocess.run(
        [sys.executable, "-m", "distir_ext", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert result.stdout.strip() == f"distir_ext {__version__}"
