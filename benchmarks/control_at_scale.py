"""A start, a load and a call of thousands of devices, with hosts that are played.

    python benchmarks/control_at_scale.py [--devices 64 512 4096] [--devices-per-host 8]
        [--weights 1 100 500] [--calls 20] [--one-level]
        [--connect 6.6 --start 3000 --agent 1.7 ...]

The controller is the real one: it reads the signature, cuts weights, makes frames, sends them to
the hosts that it writes to (all of them with ``--one-level``; otherwise those from which hosts pass
on to others) and checks what they answer. A second process plays these hosts: each answers at once
what agents of workers that all say the same would, which is one frame for a host and all below. So
processor time is what a controller takes at that size. The last table adds what this leaves out,
from constants that ``control.py`` measures for real workers: connecting to a host, the start of a
host's workers, what an agent does for a frame, also one that passes on to others, and a network's
latency and bandwidth. The program's own work is not in it, nor are weights that workers read from
disks.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tvm_ffi
from control import SIZE, build, table
from rich.console import Console
from safetensors.numpy import save_file

from distir_ext.native.executables import executable_module, pack
from distir_ext.session.function_calls import Origin
from distir_ext.session.model import load_model
from distir_ext.wire.byte_stream import Stream
from distir_ext.wire.channel import Frame, decode, receive, send
from distir_ext.workers.base import Workers
from distir_ext.workers.branches import HostBranch
from distir_ext.workers.diagnosis import Diagnosis
from distir_ext.workers.host_processes import HostProcesses, Started
from distir_ext.workers.hosts.tree import Subtree, subtrees, usual_fanout
from distir_ext.workers.processes import ProcessWorkers

CONSTANTS = (
    ("connect", 6.6, "milliseconds for the two connections to a host, with TLS"),
    ("start", 3000.0, "milliseconds until the workers of a host have started"),
    ("agent", 1.7, "milliseconds of an agent and its workers for a frame"),
    ("relay", 0.1, "milliseconds of an agent for a frame and its answer, for each host below"),
    ("latency", 0.05, "milliseconds of the network, one way"),
    ("bandwidth", 1.25, "gigabytes per second that the controller's network sends"),
)


class PlayedHost(HostProcesses):
    """A host of which nothing is asked but answers."""

    def abort(self) -> None:
        """Nobody waits."""

    def status(self, ranks: Sequence[int]) -> list[tuple[str, str]]:
        """They compute."""
        return [("", "")] * len(ranks)

    def progress(self, rank: int) -> list[int]:
        """Not known."""
        return []

    def how_it_ended(self, rank: int) -> str:
        """Returns the reason why there are no answers."""
        return "what plays the hosts has ended"

    def kill(self) -> None:
        """There is nothing to end."""

    def forget(self) -> None:
        """Does nothing: a played host owns no resources."""

    def close(self) -> None:
        """There is nothing to end."""


class PlayedWorkers(ProcessWorkers):
    """Workers whose hosts are played by another process.

    Args:
        num_workers: Their number.
        per_host: Of one host.
        one_level: Whether the controller writes to all hosts.

    Attributes:
        levels: Of hosts.
        widest: To how many hosts the controller writes, or one of them passes on.
    """

    def __init__(self, num_workers: int, per_host: int, one_level: bool) -> None:
        Workers.__init__(self, range(num_workers), None)
        self._hosts = None
        self._bitwise = True
        self._started = Started()
        self._diagnosis = Diagnosis(self._started, self.device_ids)
        self._lines = None
        self._released = []
        self._mutex = threading.RLock()
        self._next_step = 1
        theirs = []
        by_host = [
            range(first, min(first + per_host, num_workers))
            for first in range(0, num_workers, per_host)
        ]
        fanout = len(by_host) if one_level else usual_fanout(len(by_host))
        tree = subtrees(range(len(by_host)), fanout)
        self.levels = max(map(_levels, tree))
        self.widest = len(tree)
        for ranks in by_host:
            self._started.hosts.append(PlayedHost())
            self._started.host_of += [self._started.hosts[-1]] * len(ranks)
        for part in tree:
            ranks = range(by_host[part.hosts[0]][0], by_host[part.hosts[-1]][-1] + 1)
            ours, other = socket.socketpair()
            theirs.append(other)
            stream = Stream(ours)
            stream.setblocking(False)
            self._started.branches.append(HostBranch(stream, ranks))
        descriptors = [each.fileno() for each in theirs]
        self._player = subprocess.Popen(
            [sys.executable, __file__, "--play", *map(str, descriptors)],
            pass_fds=descriptors,
        )
        for each in theirs:
            each.close()
        self._finalizer = weakref.finalize(self, self._player.terminate)
        self._greet("cpu")


def _levels(part: Subtree) -> int:
    return 1 + max(map(_levels, part.below), default=0)


def play(descriptors: Sequence[int]) -> None:
    """Answers for all workers of the hosts behind these sockets, until they end."""
    answers: dict[bytes, Frame] = {}
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(Stream(socket.socket(fileno=descriptor)), selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                stream: Any = key.fileobj
                message = receive(stream)
                frame = message["frame"]
                if frame not in answers:
                    answers[frame] = Frame(answer_to(decode(frame)))
                send(stream, {"from": message["to"], "frame": answers[frame]})


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer that a worker would give to the request."""
    if "step" not in request:
        return {"ready": True, "clock": "of all", "device_type": 1}
    described = {"shape": tvm_ffi.Shape((SIZE,)), "dtype": "float32"}
    keep = request["keep"]
    result: Any = None
    if keep == "object":
        result = {}
    elif keep == "fields":
        result = [described] * len(request["arguments"])
    elif keep == "leaves":
        result = [{**described, "value": tvm_ffi.from_dlpack(np.ones(SIZE, "float32"))}]
    return {"step": request["step"], "result": result}


def processor_time(work: Any) -> tuple[Any, float]:
    """Returns the result of ``work()`` and the processor time of this process that it takes."""
    begin = time.process_time()
    found = work()
    return found, time.process_time() - begin


def call_time(model: Any, calls: int) -> float:
    """Median of the controller's processor time of a call."""
    main, x = model["main"], np.ones(SIZE, "float32")
    found = [processor_time(lambda: main(x).numpy())[1] for _ in range(calls + 2)]
    return statistics.median(found[2:])


def main() -> None:
    """Prints tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--devices-per-host", type=int, default=8)
    parser.add_argument("--weights", type=int, nargs="+", default=[1, 100, 500])
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--one-level", action="store_true", help="no host passes on to others")
    for name, value, text in CONSTANTS:
        parser.add_argument(f"--{name}", type=float, default=value, help=text)
    parser.add_argument("--play", type=int, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        play(arguments.play)
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    columns = [f"{each} weights" for each in arguments.weights]
    starts = table("the controller", ["devices", "hosts", "written to", "greeting, ms", "MB"])
    loads = table("a load, processor time of the controller, ms", ["devices", *columns])
    calls = table("a call, processor time of the controller, ms", ["devices", *columns])
    whole = table(
        f"simulated, {arguments.weights[-1]} weights",
        ["devices", "hosts", "a start, s", "a load, ms", "a call, ms"],
    )
    for devices in arguments.devices:
        executables = {each: build(devices, each) for each in arguments.weights}
        before = psutil.Process().memory_info().rss
        workers, greeting = processor_time(
            partial(PlayedWorkers, devices, arguments.devices_per_host, arguments.one_level)
        )
        hosts = len(workers._started.hosts)
        load_row, call_row = [], []
        models = []
        with tempfile.TemporaryDirectory() as folder:
            for num_weights, exe in executables.items():
                file = Path(folder) / f"{num_weights}.safetensors"
                save_file({f"w{i}": np.ones(SIZE, "float32") for i in range(num_weights)}, file)
                origin = Origin(exe, file, None, True)
                (model, _), seconds = processor_time(
                    lambda: load_model(workers, origin, file)  # noqa: B023
                )
                models.append(model)
                load_row.append(seconds)
                call_row.append(call_time(model, arguments.calls))
        memory = psutil.Process().memory_info().rss - before
        counts = map(str, (devices, hosts, workers.widest))
        starts.add_row(*counts, f"{greeting * 1e3:.0f}", f"{memory / 2**20:.0f}")
        for each, row in ((loads, load_row), (calls, call_row)):
            each.add_row(str(devices), *(f"{seconds * 1e3:.1f}" for seconds in row))
        program = sum(len(each) for each in pack(exe, executable_module(exe))["files"])
        # In milliseconds; each level sends to as many.
        sending = workers.levels * workers.widest * program / (arguments.bandwidth * 1e6)
        passing_on = (workers.levels - 1) * arguments.relay * workers.widest
        round_trip = arguments.agent + passing_on + workers.levels * 2 * arguments.latency
        start = arguments.start + hosts * arguments.connect + greeting * 1e3 + round_trip
        whole.add_row(
            str(devices),
            str(hosts),
            f"{start / 1e3:.1f}",
            f"{load_row[-1] * 1e3 + sending + 3 * round_trip:.0f}",
            f"{call_row[-1] * 1e3 + round_trip:.1f}",
        )
        workers.close()
    for each in (starts, loads, calls, whole):
        Console().print(each)


if __name__ == "__main__":
    main()
