"""Programs as files, and the command in this process."""

from __future__ import annotations

import json
import re

import pytest

from distir_ext import cli
from distir_ext.text.errors.full_tracebacks import VARIABLE

MODEL = """
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class MLP:
    @R.function
    def main(
        x: R.Tensor((8, 64), "float32"),
        up: R.Tensor((64, 256), "float32"),
        down: R.Tensor((256, 64), "float32"),
    ) -> R.Tensor((8, 64), "float32"):
        hidden = R.matmul(x, up)
        active = R.nn.relu(hidden)
        return R.matmul(active, down)
"""

SHARDED = ["--mesh", "dp=2,tp=2"]
SHARDED += [word for each in ("x=dp,-", "up=-,tp", "down=tp,-") for word in ("--shard", each)]
"""Batch over dp, Megatron sharding over tp."""


@pytest.fixture(autouse=True)
def short_errors(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes a file into the current folder."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text if isinstance(text, str) else json.dumps(text))
        return name

    return write


@pytest.fixture
def model(file):
    return file("model.py", MODEL)


@pytest.fixture
def printed(capsys):
    """Runs a command that has to succeed and to be silent; gives what it prints."""

    def run(*arguments):
        assert cli.main([str(each) for each in arguments]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return run


@pytest.fixture
def data(printed):
    """Runs a command with --json; gives the object."""
    return lambda *arguments: json.loads(printed(*arguments, "--json"))


@pytest.fixture
def refused(capsys):
    """Runs a command that has to fail with one line; gives the line without the command's name."""

    def run(*arguments, status=1):
        try:
            found = cli.main([str(each) for each in arguments])
        except SystemExit as end:
            found = end.code
        out, err = capsys.readouterr()
        (line,) = err.splitlines()
        assert (found, out) == (status, ""), line
        match = re.fullmatch(r"distir( [\w-]+)?: (.*)", line)
        assert match, line
        return match[2]

    return run
