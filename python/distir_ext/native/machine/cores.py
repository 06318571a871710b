"""Assigns cores of a host to the kernels of each of its workers.

TVM gives each worker its own pool of threads for parallel kernels, by default as large as the
machine; the pools of several workers would compete. So each worker has a share, which its own
thread does not leave either: workers that wake each other in every collective are otherwise put on
one core, where they run one after the other while another core is idle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import psutil

# tvm::runtime::threading::ThreadGroup::AffinityMode: threads share the given cores.
_THREADS_SHARE_CORES = -3

# What a worker calls with the arguments of :func:`share_of_cores`. It binds the pool and the thread
# that calls, unless TVM_BIND_THREADS is 0.
CONFIGURE_CORES = "runtime.config_threadpool"


def cores_of_worker(
    rank: int, neighbours: Sequence[int], machine: Sequence[int], hosts: int
) -> list[Any]:
    """The arguments that give a worker its share of this machine's cores.

    Several hosts of a session may be one machine, as copies of a script are. Where they have not
    been given cores each, they share all of them.

    Args:
        rank: The worker.
        neighbours: The ranks of its host.
        machine: The ranks of all hosts that are this machine.
        hosts: Number of these hosts.

    Returns:
        Arguments of :data:`CONFIGURE_CORES`.
    """
    if hosts > 1 and len(allowed_cores()) == os.cpu_count():
        return share_of_cores(machine.index(rank), len(machine), hosts)
    return share_of_cores(neighbours.index(rank), len(neighbours))


def share_of_cores(position: int, count: int, hosts: int = 1) -> list[Any]:
    """The arguments that give a worker its share of this host's cores.

    Args:
        position: Of the worker among those that share the cores.
        count: Number of these workers.
        hosts: Number of hosts that they belong to; each may use as many cores as the environment
            says.

    Returns:
        Arguments of :data:`CONFIGURE_CORES`.
    """
    cores = _kernel_cores(hosts)
    share = max(1, len(cores) // count)
    first = position * share % len(cores)
    mine = [str(core) for core in cores[first : first + share]]
    return [_THREADS_SHARE_CORES, share, mine]


def allowed_cores() -> list[int]:
    """Ids of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _kernel_cores(hosts: int) -> list[int]:
    """Ids of the cores that kernels of so many hosts should use.

    As many as there are physical ones, or as the environment variables that TVM reads say.
    """
    cores = allowed_cores()
    limit = os.environ.get("TVM_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    if limit is not None and re.fullmatch("[0-9]{1,9}", limit):
        return cores[: max(1, int(limit) * hosts)]
    return cores[: psutil.cpu_count(logical=False) or len(cores)]
