"""Times collectives among workers of several hosts: over TCP, over MPI, and with Gloo."""

from __future__ import annotations

import itertools
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

# Options of sessions over MPI: whether sums have group order, and whether collectives are by rule,
# by messages, or MPI's own wherever they can be.
MPI_LIBRARIES = {
    "MPI": (True, ""),
    "MPI-unordered": (False, ""),
    "MPI-messages": (False, "never"),
    "MPI-own": (False, "always"),
}
TCP, GLOO = "TCP", "Gloo"
LIBRARIES = (TCP, *MPI_LIBRARIES, GLOO)

# By collective and size: seconds of a call by repeat, and the bytes that the busiest host sends.
Found = dict[tuple[str, int], tuple[list[float], int]]


def least_bytes(collective: str, size: int, hosts: int) -> float:
    """Returns the least bytes that each host has to send, if hosts share the work equally."""
    return size * (hosts - 1) / hosts * (2 if collective == "all_reduce" else 1)


def measure_hosts(
    hosts: int,
    workers: int,
    gigabits: float,
    milliseconds: float,
    sizes: Sequence[int],
    collectives: Sequence[str],
    libraries: Sequence[str],
    repeats: int,
    rounds: int,
) -> tuple[dict[str, Found], bool]:
    """Returns each library's times, and whether links had the delay.

    Libraries are started one after the other, and all of them again in each round.
    """
    found: dict[str, Found] = {}
    loop = [str(workers), str(repeats), *map(str, sizes), "--", *collectives]
    with network(hosts, gigabits, milliseconds) as made:
        for _, name in itertools.product(range(rounds), libraries):
            with tempfile.TemporaryDirectory() as folder:
                if name == TCP:
                    times = _tcp(made, loop)
                elif name == GLOO:
                    times = _gloo(made, workers, sizes, collectives, repeats, Path(folder))
                else:
                    times = _mpi(made, loop, Path(folder), *MPI_LIBRARIES[name])
            for case, (seconds, sent) in times.items():
                before, _ = found.setdefault(name, {}).get(case, ([], 0))
                found[name][case] = [*before, *seconds], sent
        return found, made.delayed


def _environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def _loop(ccl: str, bitwise: bool, arguments: Sequence[str]) -> list[str]:
    loop = ["-W", "ignore", "-m", "collective_workers.host_loop"]
    return [sys.executable, *loop, ccl, "ordered" if bitwise else "unordered", *arguments]


def _read(lines: str) -> Found:
    read = [json.loads(line) for line in lines.splitlines()]
    return {(name, size): (times, sent) for name, size, times, sent in read}


def _tcp(made: Network, arguments: Sequence[str]) -> Found:
    token = secrets.token_hex(16)
    started = [
        subprocess.Popen(
            [*made.inside(rank), *_loop("cpu", False, arguments)],
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


def _mpi(
    made: Network, arguments: Sequence[str], folder: Path, bitwise: bool, choice: str
) -> Found:
    hosts = [made.address(i) for i in range(len(made.hosts))]
    command = [
        *made.inside(0),
        *(str(Path(sys.executable).with_name("mpiexec")), "-hosts", ",".join(hosts), "-ppn", "1"),
        *("-launcher", "ssh", "-launcher-exec", str(launcher(folder, made))),
        *("-localhost", hosts[0], "-n", str(len(hosts)), *_loop("mpi", bitwise, arguments)),
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
