"""Slurm on this machine alone, for the time of the tests: its own munged, slurmctld and slurmd."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
CONFIGURATION = """
ClusterName=tests
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={name} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
"""


def program(name: str) -> str | None:
    """The file of one of its programs, some of which are for root only."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def why_not() -> str:
    """Why it cannot be started here; empty if it can."""
    missing = [name for name in PROGRAMS if program(name) is None]
    if missing:
        return f"Slurm (slurm-wlm) is not installed: no {', '.join(missing)}"
    return "" if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[dict[str, str]]:
    """The environment for ``srun``."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o400)
    key.write_bytes(secrets.token_bytes(1024))
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    name = socket.gethostname().partition(".")[0]
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(name=name, folder=folder, ports=ports, cpus=os.cpu_count())
    )
    files = {
        "key-file": key,
        "socket": folder / "munge.socket",
        "pid-file": folder / "munged.pid",
        "log-file": folder / "munged.log",
        "seed-file": folder / "munged.seed",
    }
    munged = [program("munged"), "--foreground", "--force"]
    commands = [
        [*munged, *(f"--{option}={file}" for option, file in files.items())],
        [program("slurmctld"), "-D"],
        [program("slurmd"), "-D", "-N", name],
    ]
    environment = {"SLURM_CONF": str(configuration)}
    with contextlib.ExitStack() as stack:
        for command in commands:
            output = stack.enter_context((folder / f"{Path(command[0]).name}.out").open("wb"))
            daemon = subprocess.Popen(
                command, stdout=output, stderr=output, env=os.environ | environment
            )
            stack.callback(daemon.wait, 20)
            stack.callback(daemon.terminate)
            if command[0] == munged[0]:
                _wait(lambda: (folder / "munge.socket").exists())
        _wait(lambda: _state(environment) == "idle")
        yield environment


def _state(environment: dict[str, str]) -> str:
    command = [program("sinfo"), "--noheader", "--format=%T"]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    return done.stdout.strip()


def _wait(is_so) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline, "Slurm does not start"
        time.sleep(0.1)
