"""One script, unedited, has the same numbers under every launcher that is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch import slurm

import distir_ext as dx
from distir_ext.wire.tokens import new_token

SCRIPT = Path(__file__).parents[2] / "examples" / "launched.py"
MPICH = Path(sys.executable).with_name("mpiexec")
OPEN_MPI = os.environ.get("DISTIR_EXT_TEST_OPEN_MPI") or shutil.which("prterun")
COPIES = 2

# What a pod or a shell of tests may have left in the environment.
PREFIXES = ("DISTIR_EXT_", "PMI", "OMPI", "SLURM", "RANK", "WORLD", "LWS", "JOB", "MASTER")
CLEAN = {name: each for name, each in os.environ.items() if not name.startswith(PREFIXES)} | {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "DISTIR_EXT_START_TIMEOUT": "60",
}
if library := os.environ.get("DISTIR_EXT_LIBRARY"):
    CLEAN["DISTIR_EXT_LIBRARY"] = library


def run(*command, **environment):
    """The exit status of a command, and the lines that it prints."""
    done = subprocess.run(
        command, env={**CLEAN, **environment}, capture_output=True, text=True, timeout=200
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture(scope="session")
def expected():
    """Output of the script on a single process."""
    status, lines, errors = run(sys.executable, str(SCRIPT))
    assert status == 0, errors
    (line,) = lines
    assert line.startswith("sum ")
    return line


def check(expected, *command, **environment):
    status, lines, errors = run(*command, sys.executable, str(SCRIPT), **environment)
    assert status == 0, errors
    assert lines == [expected]


@pytest.mark.large
def test_distir_launch(expected):
    status, lines, errors = run(
        *(sys.executable, "-m", "distir_ext", "launch", "--nproc", str(COPIES), str(SCRIPT))
    )
    assert status == 0, errors
    assert lines == [f"[0] {expected}"]


@pytest.mark.large
@pytest.mark.skipif(not MPICH.exists(), reason="the wheel mpich is not installed")
def test_mpiexec_of_mpich(expected):
    check(expected, str(MPICH), "-n", str(COPIES))


@pytest.mark.large
@pytest.mark.skipif(OPEN_MPI is None, reason="Open MPI is not installed (no prterun on PATH)")
def test_mpiexec_of_open_mpi(expected):
    mpiexec = str(Path(OPEN_MPI).with_name("mpiexec"))
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    check(expected, mpiexec, "--oversubscribe", "-n", str(COPIES), **root)


@pytest.mark.large
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torchrun(expected):
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={COPIES}"]
    status, lines, errors = run(*torchrun, str(SCRIPT))
    assert status == 0, errors
    assert lines == [expected]


@pytest.fixture(scope="module")
def srun(tmp_path_factory):
    """The command that starts copies by Slurm, and its environment."""
    if reason := slurm.why_not():
        pytest.skip(reason)
    with slurm.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield [slurm.program("srun"), "-n", str(COPIES), "--overcommit"], environment


@pytest.mark.large
def test_srun(expected, srun):
    command, environment = srun
    check(expected, *command, DISTIR_EXT_TOKEN=new_token(), **environment)
    # Without a token the error says how to make one.
    status, _, errors = run(*command, sys.executable, str(SCRIPT), **environment)
    assert status == 1
    assert "make one with: distir token FILE" in errors
    assert "SLURM_PROCID=1" in errors


@pytest.mark.large
@pytest.mark.skipif(not MPICH.exists(), reason="the wheel mpich is not installed")
def test_mpi_between_copies_that_srun_has_started(expected, srun, tmp_path):
    command, environment = srun
    if not any("pmi2" in line for line in run(command[0], "--mpi=list", **environment)[1]):
        pytest.skip("this Slurm has no plugin pmi2")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.read_text().replace('workers="auto"', 'workers="auto", ccl="mpi"'))
    library = str(MPICH.parents[1] / "lib" / "libmpi.so.12")
    stated = {"DISTIR_EXT_TOKEN": new_token(), "DISTIR_EXT_MPI_LIBRARY": library}
    status, lines, errors = run(
        *command, "--mpi=pmi2", sys.executable, str(script), **stated, **environment
    )
    assert status == 0, errors
    assert lines == [expected]
    # Without PMI each copy would be alone.
    status, _, errors = run(*command, sys.executable, str(script), **stated, **environment)
    assert status != 0
    assert "says rank 0 of 1" in errors


def pods(kind, rank, port):
    """The environment of a pod; both pods are on this host."""
    shared = {"DISTIR_EXT_PORT": port, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    if kind == "LeaderWorkerSet":
        return shared | {
            "LWS_LEADER_ADDRESS": "localhost",
            "LWS_GROUP_SIZE": str(COPIES),
            "LWS_WORKER_INDEX": str(rank),
            "HOSTNAME": "localhost" if rank == 0 else f"llama-0-{rank}",
        }
    return shared | {
        "JOB_COMPLETION_INDEX": str(rank),
        "DISTIR_EXT_WORLD_SIZE": str(COPIES),
        "DISTIR_EXT_LEADER": "localhost",
        "HOSTNAME": f"train-{rank}",
    }


@pytest.mark.large
@pytest.mark.parametrize("kind", ["LeaderWorkerSet", "an indexed Job"])
def test_pods_of_kubernetes(expected, kind, free_port, tmp_path):
    file = tmp_path / "token"
    assert run(sys.executable, "-m", "distir_ext", "token", str(file))[0] == 0
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=CLEAN | pods(kind, rank, free_port) | {"DISTIR_EXT_TOKEN_FILE": str(file)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(COPIES)
    ]
    printed = [each.communicate(timeout=200)[0].splitlines() for each in started]
    assert [each.returncode for each in started] == [0, 0]
    assert printed == [[expected], []]


PROGRAM = """
import os, sys
import distir_ext as dx
for _ in range({sessions}):
    with dx.Session(2, workers="auto") as session:
        print(len(session.workers.addresses), session.num_workers, flush=True)
print(len(dx.Hosts.from_env().addresses), flush=True)
{end}
"""


@pytest.mark.large
@pytest.mark.parametrize(
    ("sessions", "end", "status"),
    [
        (0, "raise SystemExit(7)", 7),
        (2, "raise ValueError('of the program')", 1),
        (1, "os._exit(9)", 9),
    ],
)
def test_all_copies_leave_with_the_status_of_rank_0(sessions, end, status, tmp_path, free_port):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.format(sessions=sessions, end=end))
    stated = {
        "DISTIR_EXT_WORLD_SIZE": "2",
        "DISTIR_EXT_LEADER": f"127.0.0.1:{free_port}",
        "DISTIR_EXT_TOKEN": new_token(),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env=CLEAN | stated | {"DISTIR_EXT_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [each.communicate(timeout=200) for each in started]
    assert printed[0][0].splitlines() == ["2 2"] * sessions + ["2"]
    assert printed[1][0] == ""
    without_farewell = "_exit" in end
    assert [each.returncode for each in started] == [status, 1 if without_farewell else status]
    assert ("rank 0 has ended without saying how" in printed[1][1]) == without_farewell


LOSES_RANK_1 = """
import os, signal, time
import distir_ext as dx
with dx.Session(3, workers="auto") as session:
    name = session.workers.names[1]
    print(name, flush=True)
    os.kill(int(name.rpartition(" ")[2].rstrip(")")), signal.SIGKILL)
    while True:
        session.statistics()
        time.sleep(0.01)
"""


def test_a_copy_that_is_lost_is_named(tmp_path):
    """By rank 0, whose error is printed before distir launch ends it, and by distir launch."""
    script = tmp_path / "program.py"
    script.write_text(LOSES_RANK_1)
    status, (line,), errors = run(
        *(sys.executable, "-m", "distir_ext", "launch", "-n", "3", str(script))
    )
    name = line.removeprefix("[0] ")
    assert name.startswith("127.0.0.1 (rank 1, pid ")
    pid = name.rpartition(" ")[2].rstrip(")")
    assert f"HostLostError: host {name} was lost" in errors
    assert f"distir launch: rank 1 (pid {pid}) was ended by SIGKILL" in errors
    assert status == 137


# A process is stopped when all of its threads are; until then they may end the session as usual.
STOPS_RANK_1 = """
import os, signal, time
from contextlib import suppress
from pathlib import Path
import distir_ext as dx
with dx.Session(3, workers="auto") as session:
    pid = int(session.workers.names[1].rpartition(" ")[2].rstrip(")"))
    os.kill(pid, signal.SIGSTOP)
    running = list(Path(f"/proc/{pid}/task").iterdir())
    while running:
        with suppress(FileNotFoundError):  # the thread has ended
            if (running[-1] / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                time.sleep(0.01)
                continue
        running.pop()
    1 / 0
"""


@pytest.mark.large
@pytest.mark.skipif(not MPICH.exists(), reason="the wheel mpich is not installed")
def test_a_copy_that_is_stopped_ends_when_rank_0_has_failed(tmp_path):
    """mpiexec waits for all copies; the workers of the stopped one see that the others are gone."""
    script = tmp_path / "program.py"
    script.write_text(STOPS_RANK_1)
    status, _, errors = run(str(MPICH), "-n", "3", sys.executable, str(script))
    assert "ZeroDivisionError" in errors
    assert status == 1


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"DISTIR_EXT_RANK": "0", "DISTIR_EXT_WORLD_SIZE": "1"},
        # A shell in an allocation of Slurm (jax#30073), and a pod of no indexed Job (jax#24964).
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOSTNAME": "web-0"},
        {"PMIX_RANK": "2"},
    ],
)
def test_alone(environment, clean_environment):
    for name, value in environment.items():
        clean_environment.setenv(name, value)
    with dx.Session(2, workers="auto") as session:
        assert session.workers == "threads"


def test_hosts_of_a_process_alone(clean_environment):
    hosts = dx.Hosts.from_env()
    assert dx.Hosts.from_env() == hosts
    assert hosts.token not in repr(hosts)
    (address,) = hosts.addresses
    assert address.startswith("127.0.0.1:")
    with dx.Session(2, workers=hosts) as session:
        assert session.num_workers == 2
    with pytest.raises(dx.launch.LauncherError, match="already, and cannot be"):
        dx.Hosts.from_env(token=new_token())


def test_a_fork_of_rank_0_is_not_rank_0(clean_environment):
    dx.Hosts.from_env()
    child = os.fork()
    if child == 0:
        try:
            dx.Hosts.from_env()
        except dx.launch.LauncherError as error:
            os._exit("is a fork of rank 0" in str(error))
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_devices_that_do_not_divide(clean_environment):
    clean_environment.setenv("DISTIR_EXT_RANK", "1")
    clean_environment.setenv("DISTIR_EXT_WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="6 devices do not divide among 4 copies"):
        dx.Session(dx.Mesh(a=3, b=2), workers="auto")
