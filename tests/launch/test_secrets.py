"""Who can read the token that rank 0 has made, under launchers that are installed."""

from __future__ import annotations

import json
import stat
import sys

import pytest
from tests.launch.test_sessions import MPICH, run

# Rank 0 looks at all processes and files while the copies share its token: at the files of tokens
# that there are while copies meet, and at processes behind that.
SCRIPT = """
import glob, json, os, tempfile, threading, time
import psutil
import distir_ext as dx

modes, done = [], threading.Event()
def watch():
    while not done.is_set():
        for folder in glob.glob(tempfile.gettempdir() + "/distir_ext-*"):
            try:
                file = [os.stat(each).st_mode for each in glob.glob(folder + "/token")]
                modes.extend([os.stat(folder).st_mode, each] for each in file)
            except OSError:
                pass
        time.sleep(0.001)
watcher = threading.Thread(target=watch)
watcher.start()
try:
    hosts = dx.Hosts.from_env()
finally:
    done.set()
    watcher.join()
found = {"argv": [], "environ": []}
for process in psutil.process_iter():
    try:
        if any(hosts.token in each for each in process.cmdline()):
            found["argv"].append(process.name())
        if hosts.token in process.environ().values():
            found["environ"].append(process.environ().get("DISTIR_EXT_RANK"))
    except psutil.Error:
        pass
left = [each for each in glob.glob(tempfile.gettempdir() + "/distir_ext-*/token")]
print(json.dumps([len(hosts.token), found, modes, left]), flush=True)
"""


@pytest.mark.parametrize(
    ("command", "environ", "by_file"),
    [
        pytest.param(
            [sys.executable, "-m", "distir_ext", "launch", "--nproc", "2"],
            ["0", "1"],
            False,
            id="distir launch",
        ),
        pytest.param(
            [str(MPICH), "-n", "2", sys.executable],
            [],
            True,
            id="mpiexec",
            marks=pytest.mark.skipif(not MPICH.exists(), reason="MPICH is not installed"),
        ),
        pytest.param(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
            [],
            True,
            id="torchrun",
            marks=pytest.mark.large,
        ),
    ],
)
def test_a_token_that_rank_0_has_made(command, environ, by_file, tmp_path):
    """Not in arguments; in environments only where the launcher has made it; in private files."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    status, lines, errors = run(*command, str(script), TMPDIR=str(tmp_path))
    assert status == 0, errors
    length, found, modes, left = json.loads(lines[-1].removeprefix("[0] "))
    assert length == 64  # 256 random bits
    assert found["argv"] == []
    assert sorted(found["environ"]) == environ
    assert bool(modes) == by_file
    assert all(stat.S_IMODE(folder) == 0o700 for folder, _ in modes)
    assert all(stat.S_IMODE(file) == 0o600 for _, file in modes)
    assert left == []
