"""Copies of a script under launchers, and Ray: run, one killed, or ended by a signal, in turn."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from distir_ext.launch import token_file

_SCRIPT = str(Path(__file__).with_name("copies.py"))
_MPIEXEC = Path(sys.executable).with_name("mpiexec")
_MARK = "DISTIR_SOAK"

# Starting copies, and what they do, takes no longer, in seconds, on a loaded machine.
_HANGS_AFTER = 240.0


def _launchers() -> dict[str, tuple[list[str], dict[str, str]]]:
    """Commands before the script, and variables, of the launchers that are here."""
    found: dict[str, tuple[list[str], dict[str, str]]] = {
        "distir launch": ([sys.executable, "-m", "distir_ext", "launch", "-n", "2"], {})
    }
    if _MPIEXEC.exists():
        under = [str(_MPIEXEC), "-n", "2", sys.executable]
        found |= {"mpiexec": (under, {}), "MPI": (under, {"DISTIR_SOAK_CCL": "mpi"})}
    if importlib.util.find_spec("ray") is not None:
        found["Ray"] = ([sys.executable], {})
    return found


LAUNCHERS = _launchers()
"""Commands and variables by launcher."""

ENDS = ("alone", "killed", "interrupted")
"""Endings of a run: by itself, by a copy that is killed, by SIGTERM to the launcher."""


def one_run(launcher: str, end: str, rng: random.Random) -> None:
    """Runs copies to their end.

    Raises:
        AssertionError: A run without faults has failed, one with faults has not, it hangs, or
            processes or files are left.
    """
    # The sockets of Ray have names that fit into no longer path. Its processes may end after it.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        _run(launcher, end, rng, {"TMPDIR": folder})
        left = sorted(str(file.relative_to(folder)) for file in Path(folder).rglob("*"))
        if launcher == "Ray":
            left = [each for each in left if each.split("/")[0] != "ray"]  # what it logs
        if end == "killed" and launcher in ("mpiexec", "MPI"):
            left = without_a_token_file(left)
        assert not left, f"{launcher}, {end}: files are left: {left}"


def without_a_token_file(left: list[str]) -> list[str]:
    """The files but that of one token, and its folder, if that has nothing else.

    mpiexec kills rank 0 when another copy was killed, also while copies meet: it leaves the file
    of the token then, as docs/security.md says.
    """
    for folder in left:
        file = f"{folder}/{token_file.FILE}"
        inside = [each for each in left if each.startswith(f"{folder}/")]
        if re.fullmatch(rf"{token_file.FOLDER}\w{{8}}", folder) and inside in ([], [file]):
            return [each for each in left if each not in (folder, file)]
    return left


def _run(launcher: str, end: str, rng: random.Random, place: Mapping[str, str]) -> None:
    """Runs copies and checks their end."""
    command, variables = LAUNCHERS[launcher]
    mark, seconds = secrets.token_hex(8), rng.choice((1, 3))
    # Rank 0 of a launcher, or any worker of Ray's.
    victim = rng.choice((0, 1)) if end == "killed" else -1
    more = ["ray"] if launcher == "Ray" else []
    process = subprocess.Popen(
        [*command, _SCRIPT, str(seconds), str(victim), *more],
        env={
            **os.environ,
            **variables,
            **place,
            _MARK: mark,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        start_new_session=True,
    )
    try:
        if end == "interrupted":
            time.sleep(rng.choice((1, 5, 15)))
            process.terminate()
        out, err = process.communicate(timeout=_HANGS_AFTER)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{launcher}, {end}: hangs") from None
    finally:
        left = _left(mark)
        if process.poll() is None:
            process.kill()
            process.communicate()
    said = f"{launcher}, {end} {victim}: status {process.returncode}: {err[-2000:]}"
    found = re.search(r"calls ([0-9]+)", out)
    if end == "alone":
        assert process.returncode == 0, said
        assert found is not None, said
        assert int(found[1]) >= 40, said
    elif end == "killed":
        assert process.returncode != 0, said
        if launcher == "distir launch":
            assert re.search(rf"rank {victim} \(pid [0-9]+\) was ended by SIGKILL", err), said
        else:
            assert launcher != "Ray" or "SIGKILL" in err, said
    assert not left, f"{said}\nleft: {left}"


def _left(mark: str) -> list[str]:
    """Commands of processes of a run that are still there; ends them."""
    deadline = time.monotonic() + 20
    while True:
        found = []
        for each in psutil.process_iter():
            try:
                if each.environ().get(_MARK) == mark:
                    found.append(each)
            except psutil.Error:
                continue
        if not found or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    commands = []
    for each in found:
        try:
            commands.append(" ".join(each.cmdline())[:200])
            each.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    return commands
