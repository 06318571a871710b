"""Who can read the token: one that rank 0 has made, and one that is stated, under each launcher."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import psutil
import pytest
from tests.launch.test_introductions import ON_ONE_NODE
from tests.launch.test_places import STEP
from tests.launch.test_sessions import CLEAN, MPICH, pods, run

from distir_ext.wire.tokens import new_token

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


@pytest.mark.large
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


# Rank 0 looks at all processes while the workers of both copies run.
STATED = """
import json
import psutil
import distir_ext as dx
from distir_ext.wire.connections import is_loopback
from distir_ext.wire.tokens import read_token

token = read_token(None).decode()
with dx.Session(2, workers="auto") as session:
    found = {"argv": [], "environ": [], "workers": len(psutil.Process().children())}
    for process in psutil.process_iter():
        try:
            if any(token in each for each in process.cmdline()):
                found["argv"].append(process.pid)
            if any(token in each for each in process.environ().values()):
                found["environ"].append(process.pid)
        except psutil.Error:
            pass
    lines = [host.line for host in session._workers._started.hosts]
    found["tls"] = [[is_loopback(each.raw), each.tls is not None] for each in lines]
print(json.dumps(found), flush=True)
"""


def address_beyond_loopback():
    """One of this machine, if it has any; the loopback otherwise."""
    found = [each for of_one in psutil.net_if_addrs().values() for each in of_one]
    own = [each.address for each in found if each.family.name == "AF_INET"]
    return next((each for each in own if not each.startswith("127.")), "127.0.0.1")


@pytest.mark.large
@pytest.mark.parametrize(
    ("launcher", "variable"),
    [
        ("Slurm", "DISTIR_EXT_TOKEN_FILE"),
        ("LeaderWorkerSet", "DISTIR_EXT_TOKEN"),
        ("an indexed Job", "DISTIR_EXT_TOKEN"),
    ],
)
def test_a_token_that_is_stated(launcher, variable, free_port, tmp_path):
    """A file is read by copies and nobody else; a variable stays with them, and no worker has it.

    Copies of an indexed Job meet at an address that leaves the machine, as far as they know.
    """
    token, address = new_token(), address_beyond_loopback()
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token)
    value = str(file) if variable.endswith("FILE") else token

    def environment(rank):
        if launcher == "Slurm":
            step = {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2"}
            alone = {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": str(rank)}
            return STEP | ON_ONE_NODE | step | alone | {"DISTIR_EXT_PORT": free_port}
        stated = {"DISTIR_EXT_LEADER": address} if launcher == "an indexed Job" else {}
        return pods(launcher, rank, free_port) | stated

    copies = [
        subprocess.Popen(
            [sys.executable, "-c", STATED],
            env=CLEAN | environment(rank) | {variable: value},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (line, nothing) = (each.communicate(timeout=200)[0] for each in copies)
    assert [each.returncode for each in copies] == [0, 0]
    assert nothing == ""
    found = json.loads(line)
    assert found["workers"] > 0
    assert found["argv"] == []
    has_it = [] if launcher == "Slurm" else sorted(each.pid for each in copies)
    assert sorted(found["environ"]) == has_it
    assert all(encrypted != is_local for is_local, encrypted in found["tls"])
    leaves = launcher == "an indexed Job" and address != "127.0.0.1"
    assert any(encrypted for _, encrypted in found["tls"]) == leaves
