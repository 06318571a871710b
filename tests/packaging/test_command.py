"""The command ``distir`` answers without TVM; importing the package loads it."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

import pytest

from distir_ext import cli, conformance

DOCS = Path(__file__).resolve().parents[2] / "docs"


def imported(*arguments):
    """The modules that a Python process of these arguments imports, and what it prints."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return {line.split("|")[-1].strip() for line in done.stderr.splitlines()}, done.stdout


@pytest.fixture
def script(tmp_path):
    """The command as an installation has it."""
    path = tmp_path / "distir"
    path.write_text("import sys\nfrom distir_ext.cli import main\nsys.exit(main())\n")
    return path


def test_help_needs_neither_tvm_nor_tables(script):
    for arguments in (["-m", "distir_ext", "--help"], [script, "--help"], [script, "report", "-h"]):
        modules, printed = imported(*arguments)
        assert "usage: distir" in printed
        assert not modules & {"tvm", "tvm_ffi", "numpy", "rich", "rich.console", "shtab"}


def test_completion_needs_no_tvm(script):
    modules, printed = imported(script, "completion", "bash")
    assert "_shtab_distir" in printed
    assert not modules & {"tvm", "tvm_ffi", "numpy", "rich"}


@pytest.mark.large
def test_a_command_loads_what_it_needs(script):
    for arguments in (["-m", "distir_ext"], [script]):
        _, printed = imported(*arguments, "rules", "matmul")
        assert printed.startswith("relax.matmul")


def test_importing_the_package_loads_the_library():
    code = "import distir_ext, tvm_ffi; print(tvm_ffi.get_global_func('distir.version')())"
    _, printed = imported("-c", code)
    assert printed.strip()


@pytest.mark.large
def test_a_process_with_the_arguments_of_the_command_loads_the_library():
    code = "import sys; sys.argv = ['/bin/distir']; import distir_ext; print(distir_ext.Mesh)"
    _, printed = imported("-c", code)
    assert "Mesh" in printed


def actions(parser):
    """The options and arguments of a command and of its subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                assert each.description, f"{each.prog} has no description"
                yield from actions(each)
        else:
            yield parser.prog, action


@pytest.mark.parametrize("module", [cli, conformance])
def test_the_reference_page_describes_every_option(module):
    """Pages are made from parsers (docs/command_pages.py), so parsers have to say everything."""
    parser = module.command_parser()
    assert "exit status" in parser.epilog
    assert [(prog, action) for prog, action in actions(parser) if not action.help] == []
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    made = {each for page in pages for each in re.findall(r"\{command\} (\S+)", page)}
    assert f"{module.__name__}.command_parser" in made


@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["--version"], 0), (["rules", "matmul"], 0), (["rules", "matmull"], 1), (["rule"], 2)],
)
def test_exit_status(arguments, status, capsys):
    try:
        found = cli.main(arguments)
    except SystemExit as end:
        found = end.code
    assert found == status
    assert bool(capsys.readouterr().err) == (status != 0)
