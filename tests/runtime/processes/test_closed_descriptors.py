"""Processes of a controller whose standard streams are closed, as those of daemons are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime.conftest import TOKEN

from distir_ext.wire.tokens import TOKEN_VARIABLE

FOLDER = str(Path(__file__).parents[1] / "on_workers")

# Closes some of its standard streams, once before the package is there, and once behind it. Then
# the numbers belong to a socket of the user.
SESSIONS = """
import os, socket, sys
closed, late, taken, address, out = sys.argv[1:]
file = open(out, "w")
def close():
    for number in closed:
        os.close(int(number))
    if taken == "taken":
        kept.extend(socket.socketpair())
        assert kept[0].fileno() == int(closed[0])
kept = []
if late == "early":
    close()
import distir_ext as dx
if late == "late":
    close()
sys.path.insert(0, {folder!r})
ports = [address] if address else []
for workers in ["processes", *(dx.Hosts([each]) for each in ports)]:
    with dx.Session(2, workers=workers, imports=["worker_functions"]) as session:
        says = session._workers.run("say", ["distir.test.write_to_all"] * 2, [["hello"]] * 2)
        print([list(each) for each in says], file=file, flush=True)
for each in kept:
    each.setblocking(False)
    try:
        print("the socket got", each.recv(9), file=file)
    except BlockingIOError:
        print("the socket is as it was", file=file, flush=True)
"""


def closing(numbers, *command):
    """A command whose standard streams of these numbers are closed."""
    redirections = "".join(f" {number}>&-" for number in numbers)
    return ["sh", "-c", f'exec "$@"{redirections}', "sh", *command]


@pytest.mark.large
def test_sessions_of_processes_start(tmp_path):
    """Any of the three; what workers write to theirs goes nowhere, and to no socket."""
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN, "PYTHONPATH": os.pathsep.join(sys.path)}
    host = subprocess.Popen(
        [sys.executable, "-m", "distir_ext", "host", "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stdin=None,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
        preexec_fn=lambda: os.close(0),
    )
    address = host.stdout.readline().removeprefix("listening at ").strip()
    cases = [
        ("0", "early", "", address),
        ("012", "early", "", address),
        ("1", "late", "", ""),
        ("12", "late", "taken", ""),
        ("0", "late", "taken", ""),
    ]
    running = {}
    for index, case in enumerate(cases):
        command = [sys.executable, "-c", SESSIONS.format(folder=FOLDER), *case]
        out = tmp_path / str(index)
        running[out] = subprocess.Popen([*command, str(out)], env=environment)
    for case, (out, process) in zip(cases, running.items(), strict=True):
        assert process.wait(120) == 0, case
        expected = ["[[0, 1, 2], [0, 1, 2]]"] * (2 if case[3] else 1)
        expected += ["the socket is as it was"] * (2 if case[2] else 0)
        assert out.read_text().splitlines() == expected, case
    host.terminate()
    host.wait(20)
    host.stdout.close()


@pytest.mark.large
def test_launch_starts_copies(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import distir_ext as dx\n"
        "with dx.Session(2, workers='auto') as session:\n"
        "    assert session.workers != 'threads'\n"
        f"    open({str(tmp_path / 'ran')!r}, 'w').write(str(session.num_workers))\n"
    )
    launch = [sys.executable, "-m", "distir_ext", "launch", "--nproc", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(closing("012", *launch), env=environment, timeout=120, check=False)
    assert done.returncode == 0
    assert (tmp_path / "ran").read_text() == "2"
