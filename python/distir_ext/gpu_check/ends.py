"""Checks how sessions end when a worker fails, is killed or is missing; two sessions on one GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from distir_ext.gpu_check.findings import Finding
from distir_ext.gpu_check.machine import SHARE, Machine, as_json_groups
from distir_ext.native.environment import changed_environment
from distir_ext.params.host_array import host_array
from distir_ext.session.session import Session, WorkerError

_WITHIN = 10.0  # seconds; a user takes what is longer for a hang
_BEFORE = 0.5  # seconds in which the other worker begins to wait
_TIMEOUT = 2.0

_ENDS = {
    "a worker fails": ("distir.gpu_check.fail", "on purpose"),
    "a worker is killed": ("distir.gpu_check.kill", "SIGKILL"),
    "a worker does not come": ("distir.gpu_check.sleep", "did not end within"),
}


def check_ends(machine: Machine) -> Iterator[Finding]:
    """Each of two processes' ends, while the other one waits for it in a collective."""
    for what, (function, expected) in _ENDS.items():
        for connected in machine.pick((True, False), (function.endswith("fail"),)):
            when = "in a collective" if connected else "while groups connect"
            with machine.processes(2) as session:
                yield _end(session, f"{what} {when}", function, expected, connected)
    yield _second_session()
    yield _second_process(machine)


def _end(session: Session, what: str, function: str, expected: str, connected: bool) -> Finding:
    workers = session._workers
    x = host_array(np.ones(1024, "float32"))
    reduce = [x.shard([0], x.shape), as_json_groups([[0, 1]])]
    if connected:
        workers.run("connect", ["distir.gpu_check.all_reduce"] * 2, [reduce] * 2)
    seconds = 60.0 if function.endswith("sleep") else _BEFORE
    if function.endswith("sleep"):
        workers.timeout = _TIMEOUT
    begin = time.monotonic()
    wanted = f"a WorkerError within {_WITHIN:.0f} s"
    try:
        workers.run("end", ["distir.gpu_check.all_reduce", function], [reduce, [seconds]])
    except WorkerError as error:
        took = time.monotonic() - begin
        text = str(error).splitlines()[0]
        return Finding(what, f"{took:.1f} s: {text}", wanted, expected in text and took < _WITHIN)
    return Finding(what, "no error", wanted, False)


def _second_process(machine: Machine) -> Finding:
    what = "a session of another process on a GPU"
    wanted = "refused until the first one is closed"
    with changed_environment({SHARE: "0"}, force=True), machine.processes(1):
        try:
            Session(1, ccl="nccl").close()
        except WorkerError as error:
            refused = str(error).splitlines()[0]
        else:
            return Finding(what, "it began", wanted, False)
    Session(1, ccl="nccl").close()
    return Finding(what, f"refused: {refused}", wanted, "is used by another session" in refused)


def _second_session() -> Finding:
    what = "a second session of this process on a GPU"
    wanted = "refused until the first one is closed"
    with Session(1, ccl="nccl"):
        try:
            Session(1, ccl="nccl").close()
        except RuntimeError as error:
            refused = str(error)
        else:
            return Finding(what, "it began", wanted, False)
    Session(1, ccl="nccl").close()
    return Finding(what, f"refused: {refused}", wanted, True)
