"""Reads rank and size of this process from the environment variables of known launchers.

There is an entry for each launcher: torchrun, Open MPI, MPICH, Slurm, Kubernetes, and the package's
own variables (``DISTIR_EXT_RANK``). ``finding`` tries them in order and gets a ``Place``.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distir_ext.launch.place import Place
from distir_ext.text.printable import shown

THIS_HOST = "127.0.0.1"
RANK, SIZE, LEADER = "DISTIR_EXT_RANK", "DISTIR_EXT_WORLD_SIZE", "DISTIR_EXT_LEADER"
PORT = "DISTIR_EXT_PORT"
"""Port of rank 0, if the address of rank 0 states no port."""
LISTENER = "DISTIR_EXT_LISTENER"
"""The descriptor of a socket that ``distir launch`` has opened for rank 0."""
STORE_PORT = "MASTER_PORT"
"""Port of torchrun's store, at the host of rank 0."""
TIMEOUT = "DISTIR_EXT_START_TIMEOUT"
"""Seconds within which all copies have to start."""
TOO_HIGH_FOR_A_STEP = 0xFFFFFFF0
"""Slurm numbers steps of its own from here: of the batch script, of an interactive shell."""


class WrongValueError(ValueError):
    """A variable of the environment has a value that it cannot have."""


@dataclass
class Reader:
    """Reads variables of an environment, and keeps which."""

    environment: Mapping[str, str]
    read: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """A variable; None if it is not set, or empty."""
        value = self.environment.get(name, "").strip()
        if not value:
            return None
        self.read[name] = value
        return value

    def number(self, *names: str) -> int | None:
        """The first of these variables that is set, as a whole number."""
        for name in names:
            value = self.text(name)
            if value is None:
                continue
            if not re.fullmatch(r"[0-9]{1,18}", value):
                raise WrongValueError(f"{name}='{shown(value)}' is not a whole number")
            return int(value)
        return None

    def port(self, name: str) -> int | None:
        """A variable that is a port; None if it is not set, or empty."""
        value = self.text(name)
        if value is None:
            return None
        if not re.fullmatch(r"[0-9]{1,5}", value) or not 0 < int(value) < 1 << 16:
            raise WrongValueError(f"{name}='{shown(value)}' is no port")
        return int(value)

    def place(self, launcher: str, rank: int, size: int, **more: Any) -> Place:
        """A place, with the variables that were read."""
        return Place(launcher, rank, size, **more, variables=dict(self.read))


@dataclass(frozen=True)
class Launcher:
    """Variables by which the copies of one launcher know their ranks.

    Attributes:
        name: Its name for users.
        needed: The variables that all have to be set; otherwise it is not this launcher, or its
            variables came from elsewhere.
        read: Gives the place; None if these variables are set where no copies were started.
        telling: Variables that are worth being mentioned where some of ``needed`` are missing.
    """

    name: str
    needed: tuple[str, ...]
    read: Callable[[Reader], Place | None]
    telling: tuple[str, ...]


def _stated(reader: Reader) -> Place:
    rank, size = _rank_and_size(reader, RANK, SIZE)
    return reader.place("DISTIR_EXT_RANK", rank, size, leader=reader.text(LEADER))


def _torchrun(reader: Reader) -> Place:
    reader.port(STORE_PORT)
    rank, size = _rank_and_size(reader, "RANK", "WORLD_SIZE")
    return reader.place(
        "torchrun",
        rank,
        size,
        local_rank=reader.number("LOCAL_RANK"),
        local_size=reader.number("LOCAL_WORLD_SIZE"),
        leader=reader.text("MASTER_ADDR"),
    )


def _open_mpi(reader: Reader) -> Place:
    return _mpi(
        reader,
        "Open MPI",
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        reader.number("OMPI_COMM_WORLD_LOCAL_RANK"),
        reader.number("OMPI_COMM_WORLD_LOCAL_SIZE"),
    )


def _pmi(reader: Reader) -> Place:
    return _mpi(
        reader,
        "MPICH",
        ("PMI_RANK", "PMI_SIZE"),
        reader.number("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        reader.number("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
    )


def _mpi(
    reader: Reader,
    name: str,
    variables: tuple[str, str],
    local_rank: int | None,
    local_size: int | None,
) -> Place:
    """MPI's launchers do not say where rank 0 is, unless all copies are on one host."""
    rank, size = _rank_and_size(reader, *variables)
    leader = THIS_HOST if local_size == size else None
    return reader.place(
        name, rank, size, local_rank=local_rank, local_size=local_size, leader=leader
    )


def _slurm(reader: Reader) -> Place | None:
    reader.number("SLURM_JOB_ID")
    if (reader.number("SLURM_STEP_ID") or 0) >= TOO_HIGH_FOR_A_STEP:
        return None
    # SLURM_NTASKS is the allocation's, which a shell within it inherits; a step has a number of
    # its own.
    rank, size = _rank_and_size(reader, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    nodes = reader.text("SLURM_STEP_NODELIST")
    counts = reader.text("SLURM_STEP_TASKS_PER_NODE")
    node = reader.number("SLURM_NODEID")
    return reader.place(
        "Slurm",
        rank,
        size,
        local_rank=reader.number("SLURM_LOCALID"),
        local_size=None if counts is None or node is None else tasks_of_node(counts, node),
        leader=None if nodes is None else first_host(nodes),
    )


def _leader_worker_set(reader: Reader) -> Place:
    index, size = _rank_and_size(reader, "LWS_WORKER_INDEX", "LWS_GROUP_SIZE")
    leader = reader.text("LWS_LEADER_ADDRESS") or ""
    pod = reader.text("HOSTNAME")
    # Clusters whose StatefulSets cannot start at 1 number the first worker 0, as its leader is.
    if index == 0 and pod is not None and pod != leader.partition(".")[0]:
        raise WrongValueError(
            f"LWS_WORKER_INDEX=0 in the pod {shown(pod)}, which is not the leader {shown(leader)}; "
            "this cluster "
            "numbers workers from 0 (StatefulSetStartOrdinal is off), so two pods have this index"
        )
    return reader.place(
        "LeaderWorkerSet", index, size, local_rank=0, local_size=1, leader=leader or None
    )


def _indexed_job(reader: Reader) -> Place:
    index, size = _rank_and_size(reader, "JOB_COMPLETION_INDEX", SIZE)
    leader = reader.text(LEADER)
    pod = reader.text("HOSTNAME")
    if leader is None and pod is not None and pod.endswith(f"-{index}"):
        leader = _in_domain_of(pod, f"{pod.removesuffix(str(index))}0")  # name-0, name-1, ...
    return reader.place(
        "an indexed Job of Kubernetes", index, size, local_rank=0, local_size=1, leader=leader
    )


def _in_domain_of(pod: str, other: str) -> str:
    """The name of a pod of the same headless service: of ``train-0`` ``train-0.train.default.svc``.

    A pod knows its own whole name (``/etc/hosts``), and is found by others under such a one only.
    """
    if pod != socket.gethostname():
        return other
    _, dot, domain = socket.getfqdn(pod).partition(".")
    return f"{other}{dot}{domain}"


def _rank_and_size(reader: Reader, rank: str, size: str) -> tuple[int, int]:
    """Two numbers of variables that are set."""
    found_rank, found_size = reader.number(rank), reader.number(size)
    assert found_rank is not None
    assert found_size is not None
    return found_rank, found_size


STATED = Launcher("DISTIR_EXT_RANK", (RANK, SIZE), _stated, (RANK,))
TORCHRUN = Launcher(
    "torchrun",
    ("RANK", "WORLD_SIZE", "MASTER_ADDR"),
    _torchrun,
    ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
)
OPEN_MPI = Launcher(
    "Open MPI",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    _open_mpi,
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"),
)
PMI = Launcher("MPICH", ("PMI_RANK", "PMI_SIZE"), _pmi, ("PMI_RANK", "PMI_SIZE"))
SLURM = Launcher(
    "Slurm",
    ("SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    _slurm,
    ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"),
)
LEADER_WORKER_SET = Launcher(
    "LeaderWorkerSet",
    ("LWS_LEADER_ADDRESS", "LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
    _leader_worker_set,
    ("LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
)
INDEXED_JOB = Launcher(
    "an indexed Job of Kubernetes",
    ("JOB_COMPLETION_INDEX", SIZE),
    _indexed_job,
    ("JOB_COMPLETION_INDEX",),
)

LEVELS = (
    (STATED,),
    (TORCHRUN,),
    (OPEN_MPI, PMI),
    (SLURM,),
    (LEADER_WORKER_SET, INDEXED_JOB),
)
"""Launchers, the innermost first: each may be started within those behind it.

So ``srun torchrun script.py`` has the places of torchrun, and ``mpiexec`` in an allocation of Slurm
those of MPI. Launchers of one level do not start each other.
"""


def first_host(nodes: str) -> str:
    """The first host of a list as Slurm writes it: ``"node[001-003,7],other"`` is ``"node001"``."""
    hosts = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert hosts is not None
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", hosts[0])


def tasks_of_node(counts: str, node: int) -> int | None:
    """Returns the number of tasks of a node from Slurm's ``"2(x3),1"``.

    That is two on each of three nodes, and one on the fourth.

    Returns None if the text is not of this form, or has no such node.
    """
    for part in counts.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part.strip())
        if match is None:
            return None
        repeated = int(match[2] or 1)
        if node < repeated:
            return int(match[1])
        node -= repeated
    return None
