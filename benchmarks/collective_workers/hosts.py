"""The same collectives on workers of several hosts: over TCP, over MPI, and with Gloo."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from collective_workers.network import Network, launcher, network

HOST_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
FOLDER = Path(__file__).resolve().parent
# A run of one library takes no longer, in seconds.
LIMIT = 400

# How collectives go over MPI: as is the rule, by messages, and by MPI's own wherever it can.
MPI_CHOICES = {"MPI": "", "MPI, messages": "never", "MPI, its own": "always"}

# By collective and size: seconds of a call by repeat, and the bytes that the busiest host sends.
Found = dict[tuple[str, int], tuple[list[float], int]]


def least_bytes(collective: str, size: int, hosts: int) -> float:
    """What a host has to send at least, each of which has the same part of the work."""
    return size * (hosts - 1) / hosts * (2 if collective == "all_reduce" else 1)


def measure_hosts(
    hosts: int,
    workers: int,
    gigabits: float,
    milliseconds: float,
    sizes: Sequence[int],
    collectives: Sequence[str],
    repeats: int,
    with_gloo: bool,
) -> tuple[dict[str, Found], bool]:
    """What each library takes, and whether links had the delay."""
    arguments = [str(workers), str(repeats), *map(str, sizes), "--", *collectives]
    with network(hosts, gigabits, milliseconds) as made, tempfile.TemporaryDirectory() as folder:
        found = {"TCP": _tcp(made, arguments)}
        for name, choice in MPI_CHOICES.items():
            found[name] = _mpi(made, arguments, Path(folder), choice)
        if with_gloo:
            found["Gloo"] = _gloo(made, workers, sizes, collectives, repeats, Path(folder))
        return found, made.delayed


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def _loop(ccl: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-W", "ignore", "-m", "collective_workers.host_loop", ccl, *arguments]


def _read(lines: str) -> Found:
    read = [json.loads(line) for line in lines.splitlines()]
    return {(name, size): (times, sent) for name, size, times, sent in read}


def _tcp(made: Network, arguments: Sequence[str]) -> Found:
    token = secrets.token_hex(16)
    started = [
        subprocess.Popen(
            [*made.inside(rank), *_loop("cpu", arguments)],
            env=_environment(
                DISTIR_EXT_RANK=str(rank),
                DISTIR_EXT_WORLD_SIZE=str(len(made.hosts)),
                DISTIR_EXT_LEADER=made.address(0),
                DISTIR_EXT_TOKEN=token,
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(made.hosts))
    ]
    try:
        printed = [each.communicate(timeout=LIMIT)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    return _read(printed[0])


def _mpi(made: Network, arguments: Sequence[str], folder: Path, choice: str) -> Found:
    hosts = [made.address(i) for i in range(len(made.hosts))]
    command = [
        *made.inside(0),
        *(str(Path(sys.executable).with_name("mpiexec")), "-hosts", ",".join(hosts), "-ppn", "1"),
        *("-launcher", "ssh", "-launcher-exec", str(launcher(folder, made))),
        *("-localhost", hosts[0], "-n", str(len(hosts)), *_loop("mpi", arguments)),
    ]
    # Not through the memory of the one machine that all hosts are.
    environment = _environment(
        UCX_TLS="tcp,self", MPIR_CVAR_NOLOCAL="1", DISTIR_EXT_MPI_COLLECTIVES=choice
    )
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True
    )
    return _read(done.stdout)


def _gloo(
    made: Network,
    workers: int,
    sizes: Sequence[int],
    collectives: Sequence[str],
    repeats: int,
    folder: Path,
) -> Found:
    per_host = workers // len(made.hosts)
    processes = [
        subprocess.Popen(
            [*made.inside(rank // per_host), sys.executable, str(FOLDER / "gloo_loop.py"),
             str(rank), str(workers), str(folder / "store")],
            env=_environment(GLOO_SOCKET_IFNAME=made.interface(rank // per_host)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(workers)
    ]  # fmt: skip

    def ask(line: str) -> float:
        for process in processes:
            assert process.stdin is not None
            print(line, file=process.stdin, flush=True)
        return max(float(each.stdout.readline()) for each in processes if each.stdout)

    found: Found = {}
    try:
        for size in sizes:
            for name in collectives:
                ask(f"{name} {size}")
                calls = max(1, min(50, (32 << 20) // size))
                found[name, size] = [ask(str(calls)) / calls for _ in range(repeats)], 0
    finally:
        for process in processes:
            process.kill()
    return found
