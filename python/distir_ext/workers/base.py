"""Interface of workers to their session; they are threads or processes."""

from __future__ import annotations

import os
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm_ffi

from distir_ext.params.checkpoint import open_params
from distir_ext.params.memory_file import MemoryFile
from distir_ext.params.stored_array import Stored
from distir_ext.text.printable import printable, shown, with_short_words
from distir_ext.wire.standard_streams import open_closed_ones
from distir_ext.workers.lifecycle import Lifecycle

# How long the first failure is waited for after another one, and a worker's end, in seconds.
UNWIND_LIMIT = 1.0

# How long processes may take to give back what they have opened, once their session is closed.
LEAVE_LIMIT = 5.0

# How long workers that are late are looked at, and how long those that wait may take to end then,
# in seconds. A timeout shows this much later, twice.
GRACE = 0.03

# How long it is between two looks at workers that are late, in seconds.
_LOOK_INTERVAL = 0.01

# How often an idle thread of TVM's pool gives up its core before it sleeps: about 0.1 ms. TVM's
# own 300,000 keep the cores busy between kernels.
_IDLE_YIELDS = 200


class WorkerError(RuntimeError):
    """A worker failed; the session it belonged to is closed.

    Attributes:
        worker: Rank of the worker in its session.
        device: Device id of the worker.
        function: Name of the function that the session ran.
        host: Address of the worker's host, with its node if that is one of Ray; empty if it is
            this one.
        operator: Name of the operator inside it that failed, empty if none was running.
        kind: Kind of the worker's error, such as ``"ValueError"``; ``"TimeoutError"`` if it took
            too long, ``"ProcessLostError"`` if its process has ended, ``"HostLostError"`` if
            nothing is heard of its host, ``"ProtocolError"`` if what it sends is no answer.
        backtrace: Backtrace of the worker's error, as text.
    """

    def __init__(self, failure: dict[str, Any]) -> None:
        self.worker: int = int(failure["worker"])
        self.device: int = int(failure["device"])
        self.host: str = shown(str(failure.get("host", "")))
        # Names and messages are of programs and files of others, whatever the workers are.
        self.function: str = shown(str(failure["function"]))
        self.operator: str = shown(str(failure["operator"]))
        self.kind: str = shown(str(failure["kind"]))
        self.backtrace: str = printable(str(failure["backtrace"]))
        where = f' in operator "{self.operator}"' if self.operator else ""
        on = f" on host {self.host}" if self.host else ""
        super().__init__(
            f'worker {self.worker} (device {self.device}{on}) failed in "{self.function}"{where}: '
            f"{self.kind}: {printable(with_short_words(str(failure['message'])))}"
        )


@dataclass(frozen=True)
class BoundProgram:
    """A program of a machine, with the weights that it takes: what workers have been told of it.

    Attributes:
        name: Of the program.
        ranks: Ranks that run the program, ascending.
        devices: Theirs; programs of the same devices have the same object.
        native: The program as the workers hold it.
    """

    name: str
    ranks: tuple[int, ...]
    devices: frozenset[int]
    native: Any


@dataclass(frozen=True)
class ProgramPart:
    """Part of a step: the program that some of the workers run.

    Attributes:
        program: The program of these workers.
        inputs: Values (``cuts``), in the order in which the program was bound to take them.
        continues: The step that has kept the last of their arguments, or None.
        keeps: Whether what the program returns, a tuple, is for a step that continues this one. It
            is no result then.
    """

    program: BoundProgram
    inputs: Sequence[Any]
    continues: int | None
    keeps: bool


@dataclass(frozen=True)
class ProgramStep:
    """Programs for workers: one of several steps, which are numbered from 0.

    A call of a function may be several steps; each worker keeps for the next of its own what that
    needs of this one.

    Attributes:
        parts: Each worker is in one of them at most; the others have nothing to do.
        call: The first step of the same call. Values move between workers within a call only.
        after: By rank a step that the finishers must have ended before the worker begins this
            one; workers that are not in it begin when they can.
    """

    parts: Sequence[ProgramPart]
    call: int
    after: Mapping[int, int]


@dataclass(frozen=True)
class StepOutcome:
    """Results of a step, and its times.

    Attributes:
        leaves: By part the leaves of its result, each by device.
        times: Per rank when the worker began the step, had received the last value from another
            mesh, and ended, in seconds of a clock that all workers share; None if they share none,
            or nobody has asked.
    """

    leaves: list[list[Mapping[int, Any]]]
    times: list[tuple[float, float, float]] | None


@dataclass(frozen=True)
class Takers:
    """Group of workers that take equal arguments for some values of a step.

    Attributes:
        ranks: The workers, ascending.
        indices: Indices of these values.
    """

    ranks: tuple[int, ...]
    indices: frozenset[int]


@dataclass(frozen=True)
class Addresses:
    """Addresses of tensors in the memory of a process.

    Attributes:
        process: Id of the process.
        begins: An address for each tensor.
    """

    process: int
    begins: Sequence[int]


class Holder(Protocol):
    """Owner of values that lie with workers, such as weights and programs."""

    def let_go(self) -> None:
        """Forgets the values."""


class Workers(Lifecycle):
    """The workers of one session and the steps that they run, in order.

    Functions, machines and held values are opaque to whoever uses this class: of a worker that is
    a thread they are the objects themselves, of a process names of objects that lie there.

    Args:
        device_ids: Ascending device ids; the worker of rank ``i`` is device ``device_ids[i]``.
        timeout: Time limit of a step, in seconds; None for no limit.
    """

    def __init__(self, device_ids: Sequence[int], timeout: float | None) -> None:
        super().__init__()
        open_closed_ones()
        self.device_ids = tuple(device_ids)
        self.num_workers = len(self.device_ids)
        self.rank_of = {device: rank for rank, device in enumerate(self.device_ids)}
        self._sets: dict[frozenset[int], frozenset[int]] = {}
        # What their tensors lie on, as DLPack says it.
        self.device_type = int(tvm_ffi.DLDeviceType.kDLCPU)
        # Whether they have to find each other although that is the host.
        self.connects = False
        self.timeout = timeout
        # Whether their times are of one clock.
        self.share_a_clock = True
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        # Whether they can read the memory of others, once it has been tried.
        self.reads: weakref.WeakKeyDictionary[Workers, bool] = weakref.WeakKeyDictionary()
        # Read when a pool's first thread starts; worker processes inherit it.
        os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(_IDLE_YIELDS))

    def devices_of(self, ranks: Sequence[int]) -> frozenset[int]:
        """The devices of some workers; of the same workers the same object."""
        found = frozenset(self.device_ids[rank] for rank in ranks)
        return self._sets.setdefault(found, found)

    def add_holder(self, holder: Holder) -> None:
        """Registers a holder, by a weak reference, that lets go when the workers end."""
        self._holders.add(holder)
        if not self.is_open:
            holder.let_go()

    def _give_memory_back(self) -> None:
        """Gives the system the memory of what the workers had, after their end.

        Users keep sessions and models that are closed.
        """
        for holder in list(self._holders):
            holder.let_go()
        tvm_ffi.get_global_func("distir.runtime.return_memory")()

    def connect(self) -> None:
        """Lets workers find each other that need it: those on GPUs, and those of MPI.

        They do it in a step of their own, so that all of them are known to be there.

        Raises:
            WorkerError: a worker failed; the workers are closed.
        """
        if not self._find_each_other:
            return
        others = self.num_workers - 1
        address, *_ = self.run(
            "connect", ["distir.runtime.make_address", *[None] * others], [[]] * self.num_workers
        )
        joins = ["distir.runtime.join"] * self.num_workers
        self.run("connect", joins, [[address]] * self.num_workers)

    @property
    def _find_each_other(self) -> bool:
        return self.connects or self.device_type != tvm_ffi.DLDeviceType.kDLCPU

    def open_groups(self, partitions: Sequence[str]) -> None:
        """Lets workers open groups together that need it, as :meth:`connect`.

        Args:
            partitions: Lists of disjoint groups of devices, as JSON.

        Raises:
            WorkerError: a worker failed; the workers are closed.
        """
        if not self._find_each_other or not partitions:
            return
        opens = ["distir.runtime.open_groups"] * self.num_workers
        self.run("open groups", opens, [[list(partitions)]] * self.num_workers)

    @abstractmethod
    def run(
        self, name: str, functions: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """Runs one function on each worker and waits for all of them.

        Args:
            name: Name of this step in messages.
            functions: Per rank a function: a program, or the name of a global function; None if
                the worker has nothing to do.
            arguments: Per rank its arguments; native shards among them are cut.

        Returns:
            Per rank what its function returned.

        Raises:
            WorkerError: a worker failed or took too long; the workers are closed.
            RuntimeError: the workers were closed before.
        """

    @abstractmethod
    def run_programs(
        self,
        name: str,
        steps: Sequence[ProgramStep],
        finishers: Sequence[int] = (),
        timed: bool = False,
    ) -> list[StepOutcome]:
        """As :meth:`run`, for programs of machines; tensors in results stay with the workers.

        Each worker runs its programs in the order of the steps, and begins the next one without
        waiting for other workers. The time limit is for each step.

        Args:
            name: Name of these steps in messages.
            steps: In order.
            finishers: Ranks; see :class:`ProgramStep`.
            timed: Whether times are asked for.

        Returns:
            What came of each step.

        Raises:
            As :meth:`run`.
        """

    def repeated(self, name: str, steps: Sequence[ProgramStep]) -> Callable[[], list[StepOutcome]]:
        """The steps as a function that runs them, for steps that are run many times."""
        return lambda: self.run_programs(name, steps)

    @abstractmethod
    def fetch(self, tensors: Mapping[int, Any]) -> Mapping[int, Any]:
        """Brings tensors that stay with the workers to the host.

        Args:
            tensors: By device id a tensor of its worker.

        Raises:
            WorkerError: a worker is gone.
            RuntimeError: the workers were closed, and have taken it with them.
        """

    @property
    @abstractmethod
    def is_this_process(self) -> bool:
        """True if the workers are threads of this process."""

    @property
    @abstractmethod
    def shares_memory(self) -> bool:
        """True if all workers can open the files that this process has in memory."""

    @abstractmethod
    def share(self, file: MemoryFile, tensors: Mapping[int, Sequence[tuple[Any, int]]]) -> None:
        """Writes tensors that stay with the workers to a file in memory.

        Args:
            file: The file, which is large enough.
            tensors: By device id tensors of its worker, and from which byte on each is written.

        Raises:
            As :meth:`fetch`.
        """

    @abstractmethod
    def addresses(self, tensors: Mapping[int, Sequence[Any]]) -> Mapping[int, Addresses]:
        """Returns the addresses of tensors that stay with the workers, in host memory.

        Args:
            tensors: By device id tensors of its worker.

        Raises:
            As :meth:`fetch`.
        """

    @abstractmethod
    def can_read(self, places: Sequence[tuple[int, int]]) -> bool:
        """Returns whether all workers can read the memory of processes of this machine.

        Args:
            places: Processes, each with the address of a byte.

        Raises:
            As :meth:`fetch`.
        """

    def check_alive(self) -> None:
        """Hears from all of them.

        Raises:
            As :meth:`run`.
        """
        self.run("hear from workers", [None] * self.num_workers, [[]] * self.num_workers)

    @abstractmethod
    def let_go_of_files(self) -> None:
        """Makes the workers unmap files in memory that they have written or read."""

    @abstractmethod
    def load(self, exe: Any, module: Any) -> Any:
        """Hands an executable to all workers.

        Args:
            exe: The executable that the user passed.
            module: Its module.

        Returns:
            The virtual machine that each of them has.
        """

    @abstractmethod
    def bind(
        self, machine: Any, name: str, devices: Sequence[int], takes: Sequence[Any]
    ) -> BoundProgram:
        """Makes a program ready to be run, with what every run takes.

        Args:
            machine: As :meth:`load` returned it.
            name: Of the program.
            devices: Devices that run the program.
            takes: The program's arguments in order: a number stands for the input of that index of
                a run, others are values that lie with the workers.

        Raises:
            As :meth:`run`.
        """

    @abstractmethod
    def hold(self, name: str, values: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Leaves values with the workers, to be passed as arguments later.

        Args:
            name: Name of this step in messages.
            values: Per rank arguments as for :meth:`run`; boxes of files among them are read by
                the workers.

        Returns:
            Per rank what stands for each of them.
        """

    @abstractmethod
    def keep(
        self, name: str, values: Sequence[Any], takers: Sequence[Takers]
    ) -> list[Mapping[int, Any]]:
        """As :meth:`hold`, for values of which devices get parts (``cuts``).

        Args:
            name: Name of this step in messages.
            values: The values.
            takers: Groups of workers, with the values of each; a worker is in at most one.

        Returns:
            For each value by device what stands for its part.
        """

    def open_params(self, path: str | os.PathLike[str]) -> Mapping[str, Stored]:
        """The weights of a file or directory, by name, of which workers read their boxes.

        Raises:
            As :func:`distir_ext.params.checkpoint.open_params`.
        """
        return open_params(path)


def check_timeout(timeout: float | None) -> None:
    """Raises ValueError unless it is None or a positive number of seconds."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"timeout is {timeout!r}; it must be a positive number of seconds or None")


def check_equal_counts(program: str, devices: Sequence[int], counts: Sequence[int]) -> None:
    """Raises ValueError unless a program has returned as many values on each device."""
    for device, count in zip(devices, counts, strict=True):
        if count != counts[0]:
            raise ValueError(
                f'program "{program}" returned {counts[0]} values on device {devices[0]}, {count} '
                f"on device {device}"
            )


def stalled_message(timeout: float) -> str:
    """Says that a step has reached its limit."""
    return f"it did not end within the session's timeout of {timeout:g} seconds"


def wait_for_one_running(num_running: Callable[[], int]) -> None:
    """Looks at workers that are late until at most one does not wait for others.

    The others may be about to wait for it. Gives up after :data:`GRACE` seconds.
    """
    deadline = time.monotonic() + GRACE
    while num_running() > 1 and time.monotonic() < deadline:
        time.sleep(_LOOK_INTERVAL)
