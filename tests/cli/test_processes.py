"""The command as a process: pipes that close, interruptions, and where it starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.conftest import SHARDED


@pytest.fixture
def distir(tmp_path, monkeypatch):
    """The command as an installation has it."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # hides that nobody reads
    path = tmp_path / "bin" / "distir"
    path.parent.mkdir()
    path.write_text("import sys\nfrom distir_ext.cli import main\nsys.exit(main())\n")
    return [sys.executable, str(path)]


def run(command, **options):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


@pytest.mark.large
def test_a_report_of_an_installed_command(distir, model):
    done = run([*distir, "report", model, *SHARDED, "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["bytes_sent"] == 4 * 64 * 4


def test_an_error_has_no_traceback(distir, model):
    done = run([*distir, "report", model])
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.large
def test_nobody_reads_the_output_to_its_end(distir):
    """More than a pipe holds, whose reader goes after a line."""
    process = subprocess.Popen(
        [*distir, "rules"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=120) == 141


def test_nobody_reads_a_short_output(distir):
    reader, writer = os.pipe()
    os.close(reader)
    command = [*distir, "completion", "bash"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("arguments", "missing"),
    [
        (["report", "no.py"], "file no.py"),
        (["explain", "no.py:MLP", "x"], "file no.py"),
        (["report", "slow.py", "--mesh", "tp=2", "--plan", "no.json"], "plan no.json"),
        (["sweep", "slow.py", "--plan", "a=no.json", "--devices", "2"], "plan no.json"),
        (["simulate", "slow.py", "--cluster", "no.json"], "cluster no.json"),
        (["partition", "slow.py", "--config", "no.yaml"], "configuration no.yaml"),
        (["diff", "slow.py", "no.py"], "file no.py"),
    ],
)
def test_a_missing_file_is_found_before_tvm_is_imported(distir, file, arguments, missing):
    file("slow.py", "raise AssertionError('the program is read')")
    command = [distir[0], "-X", "importtime", "-m", "distir_ext", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"there is no {missing}" in done.stderr
    assert "distir_ext.cli" in done.stderr
    assert not re.search(r"\| *tvm$", done.stderr, re.MULTILINE)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c(distir, file):
    slow = file("slow.py", "import sys, time\nprint('here', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [*distir, "report", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr.readline() == "here\n"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "")
    assert time.monotonic() - begin < 30
