"""Computes configurations of a sweep in several processes, and handles Ctrl-C meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import tvm

from distir_ext.analysis.sweeps.configurations import Configuration, Evaluator, Model
from distir_ext.analysis.sweeps.figures import Figures
from distir_ext.explain.user_rules import register_rule, registered_rules

Found = tuple[int, Figures]

_ENDED = (
    "a process of the sweep could not start, or was ended; a script needs "
    '`if __name__ == "__main__":` around what it does, or leave processes= out'
)


def evaluate(
    model: Model, evaluator: Evaluator, chosen: Sequence[Configuration], processes: int
) -> Generator[Found, None, None]:
    """Computes configurations, in any order.

    This process computes from the first on, the others from the last on, so that it need not wait
    until they have started.

    Args:
        model: Model of the configurations.
        evaluator: That of this process.
        chosen: The configurations.
        processes: Number of processes, with this one.

    Yields:
        Numbers of configurations, with their figures.

    Raises:
        ValueError: A process could not start, or was ended.
        KeyboardInterrupt: Ctrl-C was pressed; no other process is left then.
    """
    left = deque(enumerate(chosen))
    missing = len(chosen)
    with _interrupted() as check, _others(model, left, processes - 1) as others:
        while missing:
            check()
            found = others.done()
            if not found:
                try:
                    number, configuration = left.popleft()
                except IndexError:
                    others.wait()
                    continue
                found = [(number, evaluator(configuration))]
            missing -= len(found)
            yield from found


class _Others:
    """The other processes, each of which a thread gives work."""

    def __init__(self, left: deque[tuple[int, Configuration]]) -> None:
        self._left = left
        self._found: deque[tuple[int, Figures | Exception]] = deque()
        self._something = threading.Event()

    def serve(self, connection: Connection) -> None:
        """Gives a process one configuration after the other, from the last on."""
        number = -1
        try:
            while True:
                try:
                    number, configuration = self._left.pop()
                except IndexError:
                    return
                connection.send(configuration)
                self._add(number, connection.recv())
        except (EOFError, OSError):
            self._add(number, ValueError(_ENDED))

    def done(self) -> list[Found]:
        """Returns the results that processes have computed and that were not returned before.

        Raises:
            Exception: An exception of one of them, or an error that it has ended.
        """
        self._something.clear()
        found = []
        while self._found:
            number, figures = self._found.popleft()
            if isinstance(figures, Exception):
                raise figures
            found.append((number, figures))
        return found

    def wait(self) -> None:
        """Waits for something, but not long: Ctrl-C has to be looked for."""
        self._something.wait(0.1)

    def _add(self, number: int, figures: Figures | Exception) -> None:
        self._found.append((number, figures))
        self._something.set()


@contextmanager
def _others(model: Model, left: deque[tuple[int, Configuration]], number: int) -> Iterator[_Others]:
    others = _Others(left)
    context = multiprocessing.get_context("spawn")
    started: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        for _ in range(number):
            here, there = context.Pipe()
            values = (model.func, model.cluster, model.stages, model.batch, model.sizes)
            process = context.Process(
                target=_work,
                args=(
                    there,
                    tvm.ir.save_json(model.mod),
                    (*values, model.inputs),
                    registered_rules(),
                ),
                daemon=True,
            )
            with _without_interrupts():
                process.start()
            there.close()  # so that its end is seen here
            started.append(process)
            connections.append(here)
            threading.Thread(target=others.serve, args=(here,), daemon=True).start()
        yield others
    finally:
        left.clear()
        for each in started:
            each.kill()
        for each in started:
            each.join()
        for connection in connections:
            connection.close()


def _work(
    connection: Connection, mod: str, values: tuple[object, ...], rules: Mapping[str, str]
) -> None:
    """Evaluates configurations until the connection ends or the process is ended."""
    for name, rule in rules.items():
        register_rule(name, rule)
    evaluator = Evaluator(Model(tvm.ir.load_json(mod), *values))  # type: ignore[arg-type]
    try:
        while True:
            configuration = connection.recv()
            try:
                connection.send(evaluator(configuration))
            except (BrokenPipeError, ConnectionError):
                raise
            except Exception as error:
                connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
    except (EOFError, OSError):
        os._exit(0)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started here do not see Ctrl-C: this one says when to stop."""
    resource_tracker.ensure_running()  # starting it would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _interrupted() -> Iterator[Callable[[], None]]:
    """Holds Ctrl-C back, and gives what raises it.

    Raised while a pass calls Python, it would come out as another error. The second one is raised
    at once.
    """
    pressed = False

    def handler(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield check
        return
    signal.signal(signal.SIGINT, handler)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
