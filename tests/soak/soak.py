"""Opens, calls, closes, restarts and kills sessions of every kind of worker, in several threads.

A session is used by a few threads at once. Each of them does one thing after the other, chosen at
random from a seed that is printed: it calls, prepares calls, grows a cache, pipelines, measures,
loads, counts, restarts, kills a worker, closes. Beside it copies of a script run under launchers,
and on Ray (`launched.py`), one after another. Every result is compared with NumPy's. Allowed are
errors that say that the session is closed, or that a worker was killed. When all sessions are
closed, nothing may be left: neither processes nor descriptors, threads, memory or temporary files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from safetensors.numpy import save_file
from tests.soak.launched import ENDS, LAUNCHERS, one_run
from tests.stages.programs import chain, chain_result, chain_values
from tvm.script.parser import ir as I
from tvm.script.parser import relax as R
from tvm.script.parser import tirx as T

import distir_ext as dx
from distir_ext.wire.tokens import TOKEN_VARIABLE

KINDS = ("threads", "processes", "hosts")
"""Workers of sessions of this process."""

_USERS = 3
_WIDTHS = [8, 12, 8]
_MESH = dx.Mesh(tp=2)
_PLAN = {"w0": (None, "tp"), "w1": ("tp", None)}

# A soak that is shorter, in seconds, leaves out the launcher that takes longest to start.
_LONG = 600.0

# One use of a session may not take longer, in seconds, on a loaded machine.
_HANGS_AFTER = 120.0

# What may be left of a run: descriptors and threads that are made once, of libraries, and memory
# that the C library keeps for later.
_MOST_DESCRIPTORS = 8
_MOST_THREADS = 8
_MOST_BYTES = 200e6


@I.ir_module
class Grows:
    """A cache that is returned longer."""

    @R.function
    def main(row: R.Tensor((1, 8), "float32"), cache: R.Tensor(("n", 8), "float32")):
        n = T.int64()
        with R.dataflow():
            longer = R.concat((cache, row), axis=0)
            R.output(longer)
        return longer


@dataclasses.dataclass(frozen=True)
class Left:
    """Resources of a process."""

    children: frozenset[int]
    descriptors: int
    threads: int
    num_bytes: int

    @staticmethod
    def now() -> Left:
        """Reads the resources of this process."""
        gc.collect()
        me = psutil.Process()
        children = frozenset(each.pid for each in me.children(recursive=True))
        return Left(children, me.num_fds(), me.num_threads(), me.memory_info().rss)

    def check(self) -> None:
        """Compares what there is with what there was; waits a moment for threads that end."""
        end = time.monotonic() + 10
        while True:
            now = Left.now()
            wrong = [
                f"{name}: {was} before, {found} now"
                for name, was, found, most in (
                    ("children", 0, len(now.children - self.children), 0),
                    ("descriptors", self.descriptors, now.descriptors, _MOST_DESCRIPTORS),
                    ("threads", self.threads, now.threads, _MOST_THREADS),
                    ("bytes", self.num_bytes, now.num_bytes, _MOST_BYTES),
                )
                if found - was > most
            ]
            if not wrong:
                return
            if time.monotonic() > end:
                raise AssertionError(f"something is left: {'; '.join(wrong)}")
            time.sleep(0.1)


class Uses:
    """Operations of threads on a session.

    Args:
        exe: The executable.
        grows: That of a cache.
        file: The weights of the first.
        values: An input, and what comes of it.
    """

    def __init__(self, exe: Any, grows: Any, file: Path, values: tuple[Any, Any]) -> None:
        self._exe = exe
        self._grows = grows
        self._file = file
        self._x, self._expected = values
        self.done: Counter[str] = Counter()

    def one(self, kind: str, workers: Any, rng: random.Random, problems: list[str]) -> None:
        """A session, from its opening to its end."""
        session = dx.Session(_MESH, workers=workers, timeout=_HANGS_AFTER)
        try:
            models = session.load(self._exe, params=self._file), session.load(self._grows)
            until = time.monotonic() + rng.choice((0.2, 1.0, 3.0))
            seeds = [rng.random() for _ in range(_USERS)]
            users = [
                threading.Thread(
                    target=self._use,
                    args=(kind, session, models, random.Random(seed), until, problems),
                )
                for seed in seeds
            ]
            for user in users:
                user.start()
            for user in users:
                user.join(_HANGS_AFTER)
                if user.is_alive():
                    problems.append(f"a thread hangs with {session!r}")
                    faulthandler.dump_traceback(all_threads=True)
        finally:
            session.close()
        self.done[f"{kind}: sessions"] += 1

    def _use(
        self,
        kind: str,
        session: dx.Session,
        models: tuple[Any, Any],
        rng: random.Random,
        until: float,
        problems: list[str],
    ) -> None:
        function, grows = (model["main"] for model in models)
        uses: list[tuple[str, float, Callable[[], Any]]] = [
            ("call", 20, lambda: self._check(function)),
            ("prepared", 4, lambda: self._check_prepared(function)),
            ("grow", 2, lambda: _check_growth(grows, rng)),
            ("pipeline", 4, lambda: self._check(function.pipeline(3))),
            ("profile", 2, lambda: function.profile(self._x, repeat=1, warmup=0)),
            ("load", 2, lambda: self._check(session.load(self._exe, params=self._file))),
            ("statistics", 2, session.statistics),
            ("restart", 1.0 if kind == "threads" else 0.3, session.restart),
            ("kill", 0.0 if kind == "threads" else 0.3, lambda: _kill(session, rng)),
            ("close", 0.2, session.close),
        ]
        names, weights = [each[0] for each in uses], [each[1] for each in uses]
        what = {name: use for name, _, use in uses}
        while time.monotonic() < until:
            name = rng.choices(names, weights)[0]
            try:
                what[name]()
            except Exception as error:
                if not _is_expected(error):
                    problems.append(f"{kind}, {name}: {type(error).__name__}: {error}")
                    return
                with contextlib.suppress(RuntimeError):
                    session.restart()
                self.done[f"{kind}: {name}, ended"] += 1
            else:
                self.done[f"{kind}: {name}"] += 1

    def _check(self, function: Callable[[Any], Any]) -> None:
        found = function(self._x).numpy()
        np.testing.assert_allclose(found, self._expected, rtol=1e-4, atol=1e-5)

    def _check_prepared(self, function: Any) -> None:
        prepared, out = function.prepare(self._x), np.empty_like(self._expected)
        for _ in range(2):
            out[:] = 0
            prepared(out=out)
            np.testing.assert_allclose(out, self._expected, rtol=1e-4, atol=1e-5)


def _check_growth(function: Any, rng: random.Random) -> None:
    """Appends rows to a cache that stays with the workers; an older one stays what it was."""
    rows = np.random.default_rng(rng.randrange(2**32)).standard_normal((6, 8)).astype("float32")
    caches = [function(rows[1:2], rows[:1])]
    caches += [caches[0]]
    for row in rows[2:]:
        caches[-1] = function(row[None], caches[-1])
    np.testing.assert_array_equal(caches[-1].numpy(), rows)
    np.testing.assert_array_equal(caches[0].numpy(), rows[:2])


def _kill(session: dx.Session, rng: random.Random) -> None:
    """Kills a worker; those of hosts are children of an agent of this process."""
    deadline = time.monotonic() + _HANGS_AFTER
    while not (found := _worker_processes()):
        session.statistics()  # which says if it is closed; it may be being restarted
        if time.monotonic() > deadline:
            raise AssertionError("no process is a worker")
    with contextlib.suppress(psutil.NoSuchProcess):
        rng.choice(found).send_signal(signal.SIGKILL)


def _worker_processes() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "distir_ext.workers.start" in " ".join(_command(each))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_expected(error: Exception) -> bool:
    """True if the error says that the session is closed, or that a process was killed."""
    text = str(error)
    return (
        (isinstance(error, RuntimeError) and "the session is closed" in text)
        or "SIGKILL" in text
        or (isinstance(error, ValueError) and "which is closed" in text)
        or getattr(error, "kind", "") in ("ProcessLostError", "ConnectionError")
    )


@contextlib.contextmanager
def _hosts() -> Iterator[dx.Hosts]:
    """Two agents of this machine."""
    token = "of a soak, and of no use elsewhere"
    environment = {
        **os.environ,
        TOKEN_VARIABLE: token,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONFAULTHANDLER": "1",
    }
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "distir_ext", "host", "--bind", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    try:
        addresses = []
        for agent in agents:
            assert agent.stdout is not None
            addresses.append(agent.stdout.readline().removeprefix("listening at ").strip())
        yield dx.Hosts(addresses, token=token)
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            _wait(agent)
            assert agent.stdout is not None
            agent.stdout.close()


@contextlib.contextmanager
def _temporary(folder: Path) -> Iterator[None]:
    """Has all processes make their temporary files here, and looks whether any are left."""
    before, stated = tempfile.tempdir, os.environ.get("TMPDIR")
    folder.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        if stated is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = stated
    left = [str(file.relative_to(folder)) for file in folder.rglob("*")]
    if left:
        raise AssertionError(f"files are left: {', '.join(left)}")


def _wait(agent: subprocess.Popen[str]) -> None:
    """Waits until it has ended; if it does not, its threads are printed."""
    try:
        agent.wait(20)
    except subprocess.TimeoutExpired:
        agent.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agent.wait(10)
        agent.kill()
        raise


def soak(seconds: float, kinds: tuple[str, ...] = KINDS, seed: int | None = None) -> str:
    """Uses sessions, of each kind in a thread of its own.

    Args:
        seconds: For how long.
        kinds: Of workers.
        seed: Of what is done; None: another one each time.

    Returns:
        What was done, in words.

    Raises:
        AssertionError: something was wrong, hung, or is left; says what.
    """
    seed = int(time.time()) if seed is None else seed
    print(f"seed {seed}", flush=True)
    exe = dx.build(dx.annotate(chain(_WIDTHS, rows="n"), _MESH, _PLAN))
    grows = dx.build(dx.annotate(Grows, _MESH, {"cache": (None, "tp")}))
    x, weights = chain_values(_WIDTHS, rows=6)
    problems: list[str] = []
    with (
        TemporaryDirectory() as folder,
        _temporary(Path(folder) / "temporary"),
        _hosts() as hosts,
    ):
        file = Path(folder) / "weights.safetensors"
        save_file(weights, file)
        uses = Uses(exe, grows, file, (x, chain_result(x, weights)))

        def repeat(number: int, kind: str, until: float) -> None:
            rng = random.Random(seed + number)
            workers = hosts if kind == "hosts" else kind
            while time.monotonic() < until and not problems:
                try:
                    uses.one(kind, workers, rng, problems)
                except Exception as error:
                    if not _is_expected(error):
                        problems.append(f"{kind}: {type(error).__name__}: {error}")

        def launch(until: float) -> None:
            """Runs copies in all ways, in another order each time."""
            rng = random.Random(seed - 1)
            names = [each for each in LAUNCHERS if each != "Ray" or seconds >= _LONG]
            left: list[tuple[str, str]] = []
            while time.monotonic() < until and not problems:
                if not left:
                    left = [(name, end) for name in names for end in ENDS]
                    rng.shuffle(left)
                launcher, end = left.pop()
                try:
                    one_run(launcher, end, rng)
                except AssertionError as error:
                    problems.append(str(error))
                uses.done[f"{launcher}: {end}"] += 1

        for kind in kinds:  # what libraries make once
            uses.one(kind, hosts if kind == "hosts" else kind, random.Random(0), problems)
        before = Left.now()
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=repeat, args=(*each, until)) for each in enumerate(kinds)
        ]
        threads += [threading.Thread(target=launch, args=(until,))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done = ", ".join(f"{name} {count}" for name, count in sorted(uses.done.items()))
        print(done, flush=True)
        if problems:
            raise AssertionError(f"seed {seed}: " + "\n".join(problems))
        before.check()
    return done
