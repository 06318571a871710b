"""The command ``distir`` answers without TVM; importing the package loads it."""

import subprocess
import sys

import pytest


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
    for arguments in (["-m", "distir_ext", "--help"], [script, "--help"], [script, "rules", "-h"]):
        modules, printed = imported(*arguments)
        assert "usage: distir" in printed
        assert not modules & {"tvm", "tvm_ffi", "numpy", "rich", "rich.console"}


def test_a_command_loads_what_it_needs(script):
    for arguments in (["-m", "distir_ext"], [script]):
        _, printed = imported(*arguments, "rules", "matmul")
        assert printed.startswith("relax.matmul")


def test_importing_the_package_loads_the_library():
    code = "import distir_ext, tvm_ffi; print(tvm_ffi.get_global_func('distir.version')())"
    _, printed = imported("-c", code)
    assert printed.strip()


def test_a_process_with_the_arguments_of_the_command_loads_the_library():
    code = "import sys; sys.argv = ['/bin/distir']; import distir_ext; print(distir_ext.Mesh)"
    _, printed = imported("-c", code)
    assert "Mesh" in printed
