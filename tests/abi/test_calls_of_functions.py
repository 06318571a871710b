"""No registered function ends the process or hangs, whatever it is called with by its name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tvm_ffi
from tests.abi import calls_of_functions
from tests.abi.calls_of_functions import main


@pytest.mark.every_case
def test_wrong_arguments_are_type_errors():
    done = subprocess.run(
        [sys.executable, "-m", "tests.abi.calls_of_functions"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = done.stdout.splitlines()
    wrong = [line for line in lines if line.startswith("wrong: ")]
    assert lines[-1:] == ["done"], f"{lines[-1:]} has ended the process: {done.stderr[-2000:]}"
    assert wrong == []
    assert len([line for line in lines if line.startswith("calling ")]) > 150


def test_the_check_finds_what_is_wrong(monkeypatch, capsys):
    """Of a function that takes anything."""
    tvm_ffi.register_global_func("distir.a_control", lambda *_: None, override=True)
    try:
        monkeypatch.setattr(calls_of_functions, "signature", lambda name: ["ffi.Object"])
        main(["distir.a_control"])
    finally:
        tvm_ffi.remove_global_func("distir.a_control")
    assert "wrong: 'distir.a_control, None as argument 0" in capsys.readouterr().out
