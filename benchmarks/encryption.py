"""Measures the cost of encryption between hosts: the same sessions with TLS and without.

    python benchmarks/encryption.py [--sizes 1K 1M 16M] [--repeats 9]

Two agents of this machine are two hosts with a worker each, and all connections are on loopback,
where nothing but the processors limits them: networks make the difference smaller. A permute sends
a tensor of the size from each worker to the other; "to workers" sends one from the controller to
each of them. Both kinds take turns; times are medians, ratios those of neighbours.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import threading
import time

import numpy as np
from collectives import LOOPS, MOST_CALLS, RUN_BYTES, Ours, named, number_of_bytes, ratio
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from distir_ext.params.host_array import host_array
from distir_ext.wire.credentials import Credentials
from distir_ext.wire.tokens import TOKEN_VARIABLE
from distir_ext.workers.hosts.host_agent import HostAgent
from distir_ext.workers.hosts.hosts import Hosts
from distir_ext.workers.processes import ProcessWorkers

TLS, PLAIN = "TLS", "plain TCP"
COLLECTIVES = ("permute", "all_reduce")
TO_WORKERS = "to workers"
SIZES = [1 << 10, 1 << 20, 16 << 20]


class OnHosts(Ours):
    """Two workers of two hosts."""

    def __init__(self, token: str, kind: str) -> None:
        self.num_workers = 2
        self.copies = False
        tls = True if kind == TLS else None
        self.agents = [
            HostAgent("127.0.0.1:0", Credentials(token.encode(), tls))
            for _ in range(self.num_workers)
        ]
        for agent in self.agents:
            threading.Thread(target=agent.serve, daemon=True).start()
        hosts = Hosts([agent.address for agent in self.agents], tls=tls)
        ids = range(self.num_workers)
        self.workers = ProcessWorkers(ids, "cpu", imports=[LOOPS], hosts=hosts)

    def send(self, size: int) -> float:
        """Seconds for an array from the controller to all workers."""
        array = host_array(np.ones(size // 4, "float32"))
        shards = [[array.shard((0,), array.shape)]] * self.num_workers
        begin = time.perf_counter()
        self.workers.hold("hold", shards)
        return time.perf_counter() - begin

    def close(self) -> None:
        """Ends the workers and the agents."""
        super().close()
        for agent in self.agents:
            agent.close()


def main() -> None:
    """Prints a table of both kinds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=number_of_bytes, default=SIZES)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    token = os.environ[TOKEN_VARIABLE] = secrets.token_hex()
    both = {kind: OnHosts(token, kind) for kind in (TLS, PLAIN)}
    table = Table(box=SIMPLE_HEAD, title="two hosts, one worker each")
    for column in ("", "size", *(f"{kind}, us" for kind in both), "MB/s with TLS", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for size in arguments.sizes:
        for what in (*COLLECTIVES, TO_WORKERS):
            calls = max(1, min(MOST_CALLS, RUN_BYTES // size))
            times: dict[str, list[float]] = {kind: [] for kind in both}
            for each in both.values():
                if what != TO_WORKERS:
                    each.prepare(what, size)
            for _ in range(arguments.repeats):
                for kind, each in both.items():
                    seconds = each.send(size) if what == TO_WORKERS else each.seconds(calls)
                    times[kind].append(seconds)
            medians = {kind: statistics.median(of_kind) for kind, of_kind in times.items()}
            table.add_row(
                what,
                named(size),
                *(f"{1e6 * seconds:.0f}" for seconds in medians.values()),
                f"{size / medians[TLS] / 1e6:.0f}",
                ratio(times[TLS], times[PLAIN]),
            )
    for each in both.values():
        each.close()
    Console().print(table)


if __name__ == "__main__":
    main()
